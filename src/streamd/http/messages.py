"""Requests and responses as values: what a handler sees of HTTP, whichever server carries it.

Two adapters turn wire traffic into these and back: the front door (HTTP/1.1 on Trio and
httptools) and the ASGI application that Hypercorn serves (HTTP/2). A handler is a function from
a `Request` to a `Response` or a `LiveResponse` and knows neither sockets nor ASGI.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

Buffer = bytes | memoryview

# What a client has stored may be HTML. `sandbox` lets a browser show it without scripts and apart
# from this origin, so that it neither acts for its reader nor reads other streams as this origin.
_SAFE_HEAD = b"X-Content-Type-Options: nosniff\r\nContent-Security-Policy: sandbox\r\n"
# Sent with every response, errors included (protocol 10.7 and CORS for browser clients).
COMMON_HEAD = (
    _SAFE_HEAD + b"Cross-Origin-Resource-Policy: cross-origin\r\n"
    b"Access-Control-Allow-Origin: *\r\n"
    b"Access-Control-Expose-Headers: *\r\n"
)
# Sent instead with what pages of other origins may not read.
PRIVATE_HEAD = _SAFE_HEAD + b"Cross-Origin-Resource-Policy: same-origin\r\n"


class Channel(Protocol):
    """The way back to one client, for a response that stays open.

    `try_send` lets a fan-out serve a thousand readers without waking a task for each; the
    reader's own task takes over only when the socket would block.
    """

    def try_send(self, data: bytes) -> bool:
        """Write `data` as far as the socket takes it now, never waiting.

        Returns True when all of it went. On False the channel holds the rest (one piece at
        most), and the reader's own task must `flush` before anything more is sent; a broken
        connection also gives False, and `flush` then raises.
        """
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
        """Return once the client has gone away. Safe to cancel and to call again."""
        ...


class IncomingBody(Protocol):
    """A request's body that the handler takes as it comes, a piece at a time.

    `length` is its size in bytes as told beforehand, or None.
    """

    @property
    def length(self) -> int | None: ...

    async def receive(self) -> bytes:
        """The next piece, of at most some 64 KiB; empty at the end, and ever after.

        Raises `ClientGone`, and `wire.RequestRejected` for a body that is malformed or comes too
        slowly: the adapter answers that, a handler only tidies up.
        """
        ...


class ClientGone(Exception):
    """The client closed its connection, or was too slow to be served any longer."""


class Request:
    """One HTTP request, its body complete (adapters enforce `max_body_bytes`) or, where the
    application asked for that (`takes_pieces`), still to come: then `body` is empty.

    `path` is the raw path as sent, still percent-encoded and without the query; `query` is the
    raw query string without ``?``. Header names are lower-case; a header sent twice has its
    values joined by ``", "`` (adapters refuse repeats of Host, Content-Length and the like).
    Requests may share their `headers`: nobody writes to them. `client` is the address the request
    came from, as limits are shared among clients (`shares.client_of`).
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


class Response:
    """A complete response.

    `head` holds header lines in wire form (``b"Name: value\\r\\n"`` each) because building
    pairs only to join them again costs the hot path a tenth of its time. The adapter adds
    Content-Length (never for 204 and 304) and `COMMON_HEAD`, or `PRIVATE_HEAD` if the response is
    `private`; for HEAD requests it leaves the body out. `close` asks the adapter to end the
    connection afterwards.
    """

    __slots__ = ("status", "head", "body", "close", "private")

    def __init__(
        self,
        status: int,
        head: bytes = b"",
        body: Buffer | Sequence[Buffer] = b"",
        close: bool = False,
        private: bool = False,
    ) -> None:
        self.status = status
        self.head = head
        self.body = body
        self.close = close
        self.private = private

    @property
    def shared_head(self) -> bytes:
        """What the adapter adds to `head`."""
        return PRIVATE_HEAD if self.private else COMMON_HEAD


class LiveResponse:
    """A response whose body is written as it goes: `run` does that.

    The adapter frames what goes through the channel it passes to `run` (chunked transfer
    coding on HTTP/1.1, DATA frames on HTTP/2) and ends the body when `run` returns. With a
    `length`, the body's size in bytes is told in the head, and `run` sends exactly that much.
    `run` raises `ClientGone` through when the client left, or to break the connection off where
    the body cannot be finished. The adapter calls it before it waits for anything, so what a
    handler holds for it is let go for certain.
    """

    __slots__ = ("status", "head", "run", "length")

    def __init__(
        self,
        status: int,
        head: bytes,
        run: Callable[[Channel], Awaitable[None]],
        length: int | None = None,
    ) -> None:
        self.status = status
        self.head = head
        self.run = run
        self.length = length


class Application(Protocol):
    """What the adapters serve."""

    def takes_pieces(self, path: bytes) -> bool:
        """Whether the body of a PUT to the raw `path` goes to the handler as it comes."""
        ...

    async def handle(self, request: Request) -> Response | LiveResponse:
        """Answer `request`. Raises `ClientGone` when the client left, and nothing else that a
        client can cause."""
        ...


class ErrorDetail(msgspec.Struct):
    """What went wrong: a stable code for programs, a message for people."""

    code: str
    message: str


class ErrorBody(msgspec.Struct):
    """The body of every error."""

    error: ErrorDetail


_JSON = msgspec.json.Encoder()


def error_response(
    status: int, code: str, message: str, head: bytes = b"", *, close: bool = False
) -> Response:
    """An error as every route gives it: ``{"error":{"code","message"}}`` with a stable code."""
    body = _JSON.encode(ErrorBody(ErrorDetail(code, message)))
    return Response(
        status,
        b"Content-Type: application/json\r\nCache-Control: no-store\r\n" + head,
        body,
        close,
    )
