"""Requests and responses as values: what a handler sees of HTTP, whichever server carries it.

Two adapters convert the traffic on the wire to these and back: the front door (HTTP/1.1 on Trio and
httptools) and the ASGI application that Hypercorn serves (HTTP/2). A handler is a function from
a `Request` to a `Response` or a `LiveResponse` and knows neither sockets nor ASGI.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, Protocol

import msgspec

from streamd.auth.certificates import Certificate
from streamd.auth.identity import Identity
from streamd.auth.rates import Account
from streamd.protocol.problems import Problem

Buffer = bytes | memoryview

# A stream may hold HTML. `sandbox` makes a browser show it without scripts and outside this
# origin, so that it can neither act for its reader nor read other streams.
_SAFE_HEAD = b"X-Content-Type-Options: nosniff\r\nContent-Security-Policy: sandbox\r\n"
# Sent with every response, errors included (protocol 10.7 and CORS for browser clients).
COMMON_HEAD = (
    _SAFE_HEAD + b"Cross-Origin-Resource-Policy: cross-origin\r\n"
    b"Access-Control-Allow-Origin: *\r\n"
    b"Access-Control-Expose-Headers: *\r\n"
)
# Sent instead with answers that pages of other origins must not read.
PRIVATE_HEAD = _SAFE_HEAD + b"Cross-Origin-Resource-Policy: same-origin\r\n"


class Channel(Protocol):
    """The way back to one client, for a response that stays open.

    By `try_send` the hub serves a thousand readers without waking a task for each; a reader's own
    task takes over when its socket would block.
    """

    def try_send(self, data: bytes) -> bool:
        """Write as much of `data` as the socket takes now, without waiting.

        Returns whether all of it was written. If not, the channel holds the rest (one piece at
        most), and the reader's own task must `flush` before anything more is sent. A broken
        connection also gives False, and `flush` then raises.
        """
        ...

    def piece(self, data: bytes) -> tuple[int, bytes] | None:
        """A socket, and what to write to it for `data`: the caller does that now, together with
        those of others, and lets the channel `keep` what the socket does not take.

        None if only `try_send` can.
        """
        ...

    def keep(self, rest: bytes) -> None:
        """Keep the rest of a `piece`, as `try_send` does."""
        ...

    async def flush(self) -> None:
        """Write what `try_send` left over. Raises `ClientGone`."""
        ...

    async def send(self, data: Buffer) -> None:
        """Write all of `data`, after anything left over.

        Raises `ClientGone` on a broken connection, or one that took nothing for
        `write_timeout_ms`.
        """
        ...

    async def wait_disconnected(self) -> None:
        """Return once the client has disconnected. May be cancelled and called again."""
        ...


class IncomingBody(Protocol):
    """A request's body that the handler receives piece by piece.

    `length` is its size in bytes by Content-Length, or None.
    """

    @property
    def length(self) -> int | None: ...

    async def receive(self) -> bytes:
        """The next piece, of about 64 KiB at most; empty at the end and from then on.

        Raises `ClientGone`, and `ProblemError` for a body that is malformed or arrives too slowly:
        after that nothing more can be received.
        """
        ...


class ClientGone(Exception):
    """The client closed its connection, or was too slow."""


class ConnectionCount:
    """A connection, as connections are counted: for the accounts of its last request.

    `certificate` is what its client proved by TLS, if anything; no header can say so. `on_behalf`
    says of what the accounts depend; `on_close`, if it is set, is called when the connection ends,
    and `begun` when its first request has come, if that is not seen otherwise (HTTP/2).
    """

    __slots__ = ("_is_closed", "accounts", "begun", "certificate", "on_behalf", "on_close")

    def __init__(self, certificate: Certificate | None = None) -> None:
        self.certificate = certificate
        self.accounts: Sequence[Account] = ()
        self.on_behalf: tuple[object, ...] | None = None
        self.on_close: Callable[[ConnectionCount], None] | None = None
        self.begun: Callable[[], object] | None = None
        self._is_closed = False

    def count_for(self, accounts: Sequence[Account]) -> None:
        """Count the connection for these accounts only; for none if it has ended."""
        self.on_behalf = None
        if not self._is_closed:
            for account in self.accounts:
                account.connections -= 1
            for account in accounts:
                account.connections += 1
        self.accounts = accounts

    def close(self) -> None:
        """The connection ends. A request of a worker's client may be handled after that."""
        self.count_for(())
        self._is_closed = True
        if self.on_close is not None:
            self.on_close(self)


class Request:
    """One HTTP request. Its `body` is complete (adapters enforce `max_body_bytes`). Where the
    application `takes_pieces` it is empty, and the handler receives the body from `incoming`.

    `path` is the raw path as sent, still percent-encoded and without the query; `query` is the
    raw query string without ``?``. Header names are lower-case; a header sent twice has its
    values joined by ``", "`` (adapters refuse repeats of Host, Content-Length and the like).
    Requests may share their `headers`, so nothing may write to them. `client` is the address that
    limits count the request for (`addresses.client_of`). `identity` is the sender, once the
    application has admitted the request; None where no credentials are needed. `accounts` are those
    to which it is charged (`rates`), so far with `charged_bytes` of its body, or None before that;
    `connection` is that on which it came.
    """

    __slots__ = (
        "method",
        "path",
        "query",
        "headers",
        "body",
        "channel",
        "scheme",
        "incoming",
        "client",
        "identity",
        "accounts",
        "charged_bytes",
        "connection",
    )

    def __init__(
        self,
        method: str,
        path: bytes,
        query: bytes,
        headers: dict[bytes, bytes],
        body: bytes,
        channel: Channel,
        scheme: bytes = b"http",
        incoming: IncomingBody | None = None,
        client: str = "",
        connection: ConnectionCount | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body
        self.channel = channel
        self.scheme = scheme
        self.incoming = incoming
        self.client = client
        self.identity: Identity | None = None
        self.accounts: Sequence[Account] = ()
        self.charged_bytes: int | None = None
        self.connection = connection or ConnectionCount()

    def charge_body(self, size: int) -> None:
        """Charge the first `size` bytes of the body, as far as that was not done."""
        if self.charged_bytes is not None and size > self.charged_bytes:
            for account in self.accounts:
                account.spend_in(size - self.charged_bytes)
            self.charged_bytes = size

    def uncharge_body(self, size: int) -> None:
        """Give back what was charged for more than the first `size` bytes of the body, because they
        do not come."""
        if self.charged_bytes is not None and size < self.charged_bytes:
            for account in self.accounts:
                account.spend_in(size - self.charged_bytes)
            self.charged_bytes = size


class Response:
    """A complete response.

    `head` holds header lines in wire form (``b"Name: value\\r\\n"`` each) because building
    pairs only to join them again costs the hot path a tenth of its time. The adapter adds
    Content-Length (never for 204 and 304) and `COMMON_HEAD`, or `PRIVATE_HEAD` if the response is
    `private`; for HEAD requests it leaves the body out. `close` asks the adapter to end the
    connection afterwards.

    `shows` is the key of a stream on whose state alone this answer to a GET or HEAD depends,
    besides path and query: the same request without `If-None-Match` gets it again until the stream
    changes. Empty if it depends on more, such as the clock.
    """

    __slots__ = ("status", "head", "body", "close", "private", "shows")

    def __init__(
        self,
        status: int,
        head: bytes = b"",
        body: Buffer | Sequence[Buffer] = b"",
        close: bool = False,
        private: bool = False,
        shows: bytes = b"",
    ) -> None:
        assert not head or head.endswith(b"\r\n"), "a head is whole lines"
        self.status = status
        self.head = head
        self.body = body
        self.close = close
        self.private = private
        self.shows = shows

    @property
    def shared_head(self) -> bytes:
        """What the adapter adds to `head`."""
        return PRIVATE_HEAD if self.private else COMMON_HEAD


class Parked(Protocol):
    """A request that waits for something other than its client, and needs no task meanwhile.

    An adapter that gets one must `park` it before it waits for anything. Then it either goes on
    with it, once `wake` was called or at `deadline` (by Trio's clock), or `abandon`s it.
    """

    @property
    def deadline(self) -> float: ...

    def park(self, wake: Callable[[Parked], None]) -> None:
        """Call `wake` with this request when it can go on. `wake` must return at once."""
        ...

    def resume(self) -> Response | Parked | None:
        """Go on without waiting: the response, or what it waits for next. None leaves the request
        to `go_on`."""
        ...

    async def go_on(self) -> Response | LiveResponse | Parked | None:
        """Go on: as `resume`, but here None says that the body of a live response is complete.
        Raises `ClientGone`."""
        ...

    def abandon(self) -> None:
        """End the request without an answer: its client has left."""
        ...


class LateAnswer:
    """An answer that is sent at `deadline`: a `Parked` that nothing wakes earlier."""

    __slots__ = ("answer", "deadline")

    def __init__(self, answer: Response, deadline: float) -> None:
        self.answer = answer
        self.deadline = deadline

    def park(self, wake: Callable[[Parked], None]) -> None:
        """Only the deadline wakes it."""

    def resume(self) -> Response:
        return self.answer

    async def go_on(self) -> Response:
        return self.answer

    def abandon(self) -> None:
        """It holds nothing."""


class LiveResponse:
    """A response whose body `run` writes.

    The adapter frames what `run` sends through its channel (chunked transfer coding on HTTP/1.1,
    DATA frames on HTTP/2) and ends the body when `run` returns None; if it returns a `Parked`, that
    writes the rest. If `length` is given, the head states it as the body's size in bytes, and `run`
    sends exactly as much. `run` raises `ClientGone` when the client has left, and also to abort a
    body that it cannot finish. The adapter calls it before it waits for anything, so `run`
    certainly releases what the handler holds for it; a response that is not sent after all is told
    to `abandon` that.
    """

    __slots__ = ("status", "head", "run", "length", "abandon")

    def __init__(
        self,
        status: int,
        head: bytes,
        run: Callable[[Channel], Awaitable[Parked | None]],
        length: int | None = None,
        abandon: Callable[[], None] = lambda: None,
    ) -> None:
        assert head.endswith(b"\r\n"), "a head is whole lines"
        self.status = status
        self.head = head
        self.run = run
        self.length = length
        self.abandon = abandon


class Begun(Enum):
    """What has become of a request that is not answered at once (`Application.begin`)."""

    UNDER_WAY = "under way"
    MUST_WAIT = "must wait"


# Takes the function that makes the answer, and its argument.
Later = Callable[[Callable[[Any], Response | LiveResponse], Any], None]


class Application(Protocol):
    """What the adapters serve."""

    def takes_pieces(self, path: bytes) -> bool:
        """Whether the handler of a PUT to the raw `path` receives the body in pieces."""
        ...

    def refusal(self, request: Request) -> Response | LateAnswer | None:
        """The answer to a request that is refused by its head, so that its body is not received;
        asked only where it would be waited for. `begin` and `handle` refuse the same requests."""
        ...

    async def foreseen(self, request: Request) -> Response | None:
        """The answer to a request that `refusal` admits, but that nothing in its body can save."""
        ...

    def begin(self, request: Request, later: Later) -> Response | Parked | Begun:
        """Answer `request` without waiting.

        Or begin it: `UNDER_WAY` says that `later` will be called once, after the return, with what
        makes the answer. Or do nothing: `MUST_WAIT` leaves the request to `handle`.
        """
        ...

    async def handle(self, request: Request) -> Response | LiveResponse | Parked:
        """Answer `request`. A client can cause no exception but `ClientGone`."""
        ...

    def resume(self, parked: Parked) -> Response | Parked | None:
        """As `Parked.resume`, of a request that was begun or handled here."""
        ...

    async def go_on(self, parked: Parked) -> Response | LiveResponse | Parked | None:
        """As `Parked.go_on`. A client can cause no exception but `ClientGone`."""
        ...


class ErrorDetail(msgspec.Struct):
    """What went wrong: a stable code for programs, a message for people."""

    code: str
    message: str


class ErrorBody(msgspec.Struct):
    """The body of every error."""

    error: ErrorDetail


_JSON = msgspec.json.Encoder()
_ERROR_HEAD = b"Content-Type: application/json\r\nCache-Control: no-store\r\n"


def error_response(
    problem: Problem, detail: str = "", head: bytes = b"", *, close: bool = False
) -> Response:
    """The answer that a problem is: ``{"error":{"code","message"}}``. `detail` replaces its
    message, and `head` is added to its own header lines."""
    body = _JSON.encode(ErrorBody(ErrorDetail(problem.code, detail or problem.message)))
    return Response(problem.status, _ERROR_HEAD + problem.head + head, body, close)
