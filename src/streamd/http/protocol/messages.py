"""Requests and responses as values: what a handler sees of HTTP, whichever server carries it.

Two adapters convert the traffic on the wire to these and back: the front door (HTTP/1.1 on Trio and
httptools) and the ASGI application that Hypercorn serves (HTTP/2). A handler is a function from
a `Request` to a `Response` or a `LiveResponse` and knows neither sockets nor ASGI.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import Protocol

from streamd.auth.identity import Identity
from streamd.auth.rates import Account
from streamd.http.protocol.connections import Buffer, Channel, ConnectionCount, IncomingBody

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
# Sent instead with the files of the console, which run in a browser: they state a policy of their
# own (`http.console`).
CONSOLE_HEAD = b"X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\n"


class Audience(IntEnum):
    """Which pages may read an answer: those of any origin, or those of the node's own. The console
    is read by none, and is a page itself."""

    ANYONE = 0
    OWN_PAGES = 1
    CONSOLE = 2


# The headers that adapters add to an answer, by its audience.
SHARED_HEADS = {
    Audience.ANYONE: COMMON_HEAD,
    Audience.OWN_PAGES: PRIVATE_HEAD,
    Audience.CONSOLE: CONSOLE_HEAD,
}


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
    Content-Length (never for 204 and 304) and the headers that `SHARED_HEADS` has for its
    `audience`; for HEAD requests it leaves the body out. `close` asks the adapter to end the
    connection afterwards.

    `shows` is the key of a stream on whose state alone this answer to a GET or HEAD depends,
    besides path and query: the same request without `If-None-Match` gets it again until the stream
    changes. Empty if it depends on more, such as the clock.
    """

    __slots__ = ("status", "head", "body", "close", "audience", "shows")

    def __init__(
        self,
        status: int,
        head: bytes = b"",
        body: Buffer | Sequence[Buffer] = b"",
        close: bool = False,
        audience: Audience = Audience.ANYONE,
        shows: bytes = b"",
    ) -> None:
        assert not head or head.endswith(b"\r\n"), "a head is whole lines"
        self.status = status
        self.head = head
        self.body = body
        self.close = close
        self.audience = audience
        self.shows = shows

    @property
    def shared_head(self) -> bytes:
        """What the adapter adds to `head`."""
        return SHARED_HEADS[self.audience]


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
    certainly releases what the handler holds for it; of a response that is not sent after all
    the adapter calls `abandon`.
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
