"""The application as an ASGI app, for servers of protocols that the front door lacks (HTTP/2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import trio

from streamd.config.settings import ServerConfig
from streamd.http.door.parking import wait
from streamd.http.protocol.application import Application, BugGuard
from streamd.http.protocol.connections import Buffer, ClientGone, ConnectionCount
from streamd.http.protocol.heads import (
    check_expectation,
    check_host,
    check_method,
    single_headers,
    split_target,
)
from streamd.http.protocol.messages import COMMON_HEAD, LiveResponse, Parked, Request, Response
from streamd.http.protocol.refusals import answer_to
from streamd.http.protocol.wire import body_parts, head_too_large, too_many_headers
from streamd.http.sockets.fair_limits import Allotment, FairLimit, LimitReached
from streamd.http.sockets.incoming import Pace, body_too_large, check_head, too_many_bodies
from streamd.http.sockets.outgoing import FULL, Outgoing, OutgoingFull
from streamd.http.sockets.transports import SEND_BYTES
from streamd.process.addresses import client_of
from streamd.protocol.problems import Problem, ProblemError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_MAX_DISCARDED_BYTES = 64 * 1024 * 1024
_MAX_DISCARDING_S = 10.0


class AsgiApplication:
    """Serves an `Application` to an ASGI server.

    An ASGI server logs what an application raises, and continues. So `raise_fatal` raises the
    errors that are `fatal` to the node.
    """

    def __init__(
        self,
        application: Application,
        config: ServerConfig,
        *,
        fatal: tuple[type[Exception], ...] = (),
    ) -> None:
        self._application = application
        self._config = config
        self._fatal = fatal
        self._guard = BugGuard(fatal, ClientGone, ProblemError)
        self._failure: Exception | None = None
        self._failed = trio.Event()
        self.outgoing = Outgoing(config.max_buffered_bytes)
        self.bodies = FairLimit(config.max_buffered_bytes)

    async def raise_fatal(self) -> None:
        """Wait for a fatal error and raise it."""
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure

    async def __call__(
        self,
        scope: Message,
        receive: Receive,
        send: Send,
        connection: ConnectionCount | None = None,
    ) -> None:
        """Serve one request, on a connection that is counted."""
        if scope["type"] != "http":
            return
        if connection is not None and connection.begun is not None:
            connection.begun()
        client = client_of(scope["client"][0]) if scope["client"] else ""
        timeout_s = self._config.write_timeout_ms / 1000
        channel = AsgiChannel(receive, send, timeout_s, self.bodies.allotment(client), client)
        try:
            await self._serve(scope, channel, connection)
        except ClientGone:
            return
        except self._fatal as error:
            self._failure = error
            self._failed.set()
            raise
        finally:
            channel.buffered.release()

    async def _serve(
        self, scope: Message, channel: AsgiChannel, connection: ConnectionCount | None
    ) -> None:
        response: Response | LiveResponse | Parked | None
        try:
            request = self._request(scope, channel, connection)
            response = await self._receive(request, channel)
            if response is None:
                response = await self._guard.wait(request.method, self._application.handle(request))
        except ProblemError as error:
            channel.buffered.release()
            response = answer_to(error, close=True)
        while response is not None and not isinstance(response, Response):
            if isinstance(response, LiveResponse):
                channel.start(response.status, response.head, length=response.length)
                response = await response.run(channel)
            else:
                waiting = wait(self._application, response, channel)
                response = await self._guard.wait(request.method, waiting)
        if response is None:
            await channel.finish()
            return
        # Servers of HTTP/2 fail on the rest of a body that comes after the answer.
        await channel.discard_body(_MAX_DISCARDED_BYTES)
        head = response.head
        if response.close and scope["http_version"].startswith("1"):
            head += b"Connection: close\r\n"
        parts, size = body_parts(response.body if scope["method"] != "HEAD" else b"")
        try:
            with self.outgoing.holding(parts, size, channel.client):
                await _send_whole(channel, response.status, head, parts, response.shared_head)
        except OutgoingFull:
            await _send_whole(channel, FULL.status, FULL.head, body_parts(FULL.body)[0])

    def _request(
        self, scope: Message, channel: AsgiChannel, connection: ConnectionCount | None
    ) -> Request:
        """The request in `scope`, checked as the front door checks it. Raises `ProblemError`."""
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        check_method(scope["method"].encode("latin-1"))
        path, query = split_target(target)
        limit = self._config.max_header_bytes
        if len(scope["headers"]) > self._config.max_headers:
            raise too_many_headers(self._config.max_headers)
        if sum(len(name) + len(value) for name, value in scope["headers"]) > limit:
            raise head_too_large(limit)
        headers = single_headers(scope["headers"])
        if b"content-length" in headers and b"transfer-encoding" in headers:
            raise Problem.AMBIGUOUS_LENGTH.error()
        check_host(headers.get(b"host"))
        check_expectation(headers.get(b"expect"))
        return Request(
            scope["method"],
            path,
            query,
            headers,
            b"",
            channel,
            scope["scheme"].encode(),
            client=channel.client,
            connection=connection,
        )

    async def _receive(self, request: Request, channel: AsgiChannel) -> Response | None:
        """Receive the body, or begin to, unless the head is enough to refuse the request: then
        return the answer. Raises `ProblemError`, `ClientGone`."""
        in_pieces = request.method == "PUT" and self._application.takes_pieces(request.path)
        length = request.headers.get(b"content-length", b"")
        limit = self._config.max_body_bytes
        if not in_pieces and length.isdigit() and int(length) > limit:
            raise body_too_large(limit)
        if refused := await check_head(self._application, request):
            return refused
        if in_pieces:
            request.incoming = AsgiBody(channel, length, Pace(self._config))
        else:
            request.body = await self._read_body(channel, request)
        return None

    async def _read_body(self, channel: AsgiChannel, request: Request) -> bytes:
        """A body within all limits. Raises `ProblemError`, `ClientGone`."""
        limit, pace = self._config.max_body_bytes, Pace(self._config)
        body = bytearray()
        try:
            while not channel.body_ended:
                piece = await pace.wait(channel.receive_body)
                body += piece
                request.charge_body(len(body))
                if len(body) > limit:
                    raise body_too_large(limit)
                try:
                    channel.buffered.hold(len(body))
                except LimitReached:
                    raise too_many_bodies() from None
        except BaseException:
            request.uncharge_body(len(body))
            raise
        return bytes(body)


class AsgiBody:
    """A body that the handler receives piece by piece: an `IncomingBody`."""

    def __init__(self, channel: AsgiChannel, length: bytes, pace: Pace) -> None:
        self.length = int(length) if length.isdigit() else None
        self._channel = channel
        self._pace = pace

    async def receive(self) -> bytes:
        while not self._channel.body_ended:
            if data := await self._pace.wait(self._channel.receive_body):
                return data
        return b""


class AsgiChannel:
    """One exchange. The ASGI server buffers what it gets, so every piece is awaited."""

    def __init__(
        self,
        receive: Receive,
        send: Send,
        write_timeout_s: float,
        buffered: Allotment,
        client: str,
    ) -> None:
        self._receive = receive
        self._send = send
        self._write_timeout_s = write_timeout_s
        self._left = b""
        self._gone = False
        self._head: Message | None = None
        self.body_ended = False
        self.buffered = buffered
        self.client = client

    async def receive_body(self) -> bytes:
        """The next piece of the request's body; sets `body_ended` at the last. Raises
        `ClientGone`."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        self.body_ended = not message.get("more_body", False)
        return bytes(message.get("body", b""))

    async def discard_body(self, limit: int) -> None:
        """Receive and drop the rest of the request's body, up to `limit` bytes and for a bounded
        time. Raises `ClientGone`."""
        size = 0
        with trio.move_on_after(_MAX_DISCARDING_S):
            while not self.body_ended and size <= limit:
                size += len(await self.receive_body())

    def start(
        self,
        status: int,
        head: bytes,
        shared_head: bytes = COMMON_HEAD,
        length: int | None = None,
    ) -> None:
        """Send this head before the first piece of the body."""
        lines = (head + shared_head).split(b"\r\n")
        headers = [(name.lower(), value) for name, _, value in _pairs(lines)]
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        self._head = {"type": "http.response.start", "status": status, "headers": headers}

    async def finish(self) -> None:
        await self.flush()
        await self._pass({"type": "http.response.body", "body": b"", "more_body": False})

    def piece(self, data: bytes) -> None:
        return None

    def keep(self, rest: bytes) -> None:
        self._left += rest

    def try_send(self, data: bytes) -> bool:
        self._left += data
        return False

    async def flush(self) -> None:
        if self._left:
            left, self._left = self._left, b""
            await self._pass({"type": "http.response.body", "body": left, "more_body": True})

    async def send(self, data: Buffer) -> None:
        await self.flush()
        for start in range(0, len(data), SEND_BYTES):
            piece = bytes(data[start : start + SEND_BYTES])
            await self._pass({"type": "http.response.body", "body": piece, "more_body": True})

    async def wait_disconnected(self) -> None:
        while not self._gone:
            message = await self._receive()
            self._gone = message["type"] == "http.disconnect"

    async def _pass(self, message: dict[str, Any]) -> None:
        with trio.move_on_after(self._write_timeout_s):
            if self._head is not None:
                head, self._head = self._head, None
                await self._send(head)
            await self._send(message)
            return
        raise ClientGone


async def _send_whole(
    channel: AsgiChannel,
    status: int,
    head: bytes,
    parts: Sequence[Buffer],
    shared_head: bytes = COMMON_HEAD,
) -> None:
    channel.start(status, head, shared_head)
    for part in parts:
        await channel.send(part)
    await channel.finish()


def _pairs(lines: list[bytes]) -> list[tuple[bytes, bytes, bytes]]:
    return [line.partition(b": ") for line in lines if line]
