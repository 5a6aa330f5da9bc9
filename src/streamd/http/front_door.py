"""The front door: a small, strict HTTP/1.1 server on Trio, for all traffic of a node.

One task per connection, and none besides: time limits are kept by a single sweeper that looks at
all connections once a second, because a cancel scope per request costs as much as parsing it.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from email.utils import formatdate
from enum import Enum
from functools import partial
from typing import Any, Protocol

import structlog
import trio

from streamd.config import ServerConfig
from streamd.http.heads import Fields, Head, HeadParser
from streamd.http.incoming import Pace, WireBody, too_many_bodies, too_slow
from streamd.http.listeners import accept_for_ever, turn_away
from streamd.http.messages import (
    COMMON_HEAD,
    PRIVATE_HEAD,
    Application,
    Buffer,
    ClientGone,
    LiveResponse,
    Request,
    Response,
    error_response,
)
from streamd.http.outgoing import FULL, UNCOUNTED_BYTES, Outgoing, OutgoingFull
from streamd.http.shares import LimitReached, Shares
from streamd.http.transports import SocketTransport, StreamTransport, Transport
from streamd.http.wire import (
    CONTINUE,
    PREFACE_HEAD,
    STATUS_LINES,
    Chunked,
    RequestRejected,
    body_parts,
    empty_lines,
)
from streamd.metrics import Metrics

_SWEEP_INTERVAL_S = 1.0

log = structlog.get_logger("streamd.http")


class Phase(Enum):
    """What a connection waits for; each has its time limit."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    BUSY = "busy"


class Http2(Protocol):
    """Serves the same application on connections that speak HTTP/2."""

    def share_limits(self, bodies: Shares, outgoing: Outgoing) -> None:
        """Count what bodies and answers hold together with what the others' do."""

    async def serve(self, stream: Any) -> None:
        """Serve a Trio stream, plain or TLS, to its end."""

    async def drain(self) -> None:
        """End idle connections now, and the others after their responses."""

    async def raise_fatal(self) -> None:
        """Wait for an error that is fatal to the node, and raise it."""


class FrontDoor:
    """Serves an application on listening sockets. `fatal` errors of a handler end the server.

    With `http2`, connections that begin with HTTP/2 are its own, the others are served here: there
    is one parser of HTTP/1.1.
    """

    def __init__(
        self,
        application: Application,
        config: ServerConfig,
        metrics: Metrics,
        *,
        fatal: tuple[type[BaseException], ...] = (),
        http2: Http2 | None = None,
    ) -> None:
        self.application = application
        self.config = config
        self.metrics = metrics
        self.fatal = fatal
        self.http2 = http2
        self.connections: set[Connection] = set()
        self.bodies = Shares(config.max_buffered_bytes)
        self.outgoing = Outgoing(config.max_buffered_bytes)
        if http2 is not None:
            http2.share_limits(self.bodies, self.outgoing)
        self.draining = False
        self.scheme = b"http"
        self._handshakes = 0
        self._renew_tail_heads()
        # The time of the last sweep: precise enough for limits of seconds, and free to read.
        self.swept_at = trio.current_time()
        self.heads = HeadParser(config.max_headers)
        self._chunked_data: Buffer = b""
        self._chunk = b""
        self._accepting = trio.CancelScope()
        self._idle = trio.Event()

    async def serve(
        self, listeners: Sequence[socket.socket], ssl_context: ssl.SSLContext | None = None
    ) -> None:
        """Serve until `drain` or cancelled. The listeners are non-blocking, and closed after."""
        self.scheme = b"http" if ssl_context is None else b"https"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sweep)
            if self.http2 is not None:
                nursery.start_soon(self.http2.raise_fatal)
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    take = partial(self._take, ssl_context=ssl_context, nursery=nursery)
                    for listener in listeners:
                        accepting.start_soon(accept_for_ever, listener, take)
            for listener in listeners:
                trio.lowlevel.notify_closing(listener)
                listener.close()
            if self.http2 is not None:
                await self.http2.drain()
            with trio.move_on_after(self.config.drain_timeout_ms / 1000):
                while self.connections:
                    await self._idle.wait()
                    self._idle = trio.Event()
            nursery.cancel_scope.cancel()

    def drain(self) -> None:
        """Accept no more; idle connections end now, the others after their response."""
        self.draining = True
        self._accepting.cancel()
        for connection in self.connections:
            if connection.phase is Phase.IDLE:
                connection.scope.cancel()

    def _take(
        self,
        sock: socket.socket,
        client: str,
        ssl_context: ssl.SSLContext | None,
        nursery: trio.Nursery,
    ) -> None:
        """Serve a connection that was accepted, or turn it away."""
        if len(self.connections) + self._handshakes >= self.config.max_connections:
            turn_away(sock)
        elif ssl_context is None:
            transport = SocketTransport(sock, self.config.write_timeout_ms / 1000)
            nursery.start_soon(self._serve_connection, self._connection(transport, client))
        else:
            self._handshakes += 1
            nursery.start_soon(self._serve_tls, sock, client, ssl_context)

    async def _serve_tls(
        self, sock: socket.socket, client: str, ssl_context: ssl.SSLContext
    ) -> None:
        plain = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        stream = trio.SSLStream(plain, ssl_context, server_side=True, https_compatible=True)
        try:
            with trio.fail_after(self.config.header_timeout_ms / 1000):
                await stream.do_handshake()
        except (trio.BrokenResourceError, trio.TooSlowError):
            await trio.aclose_forcefully(plain)
            return
        finally:
            self._handshakes -= 1
        transport = StreamTransport(stream, self.config.write_timeout_ms / 1000)
        connection = self._connection(transport, client)
        speaks_http2 = self.http2 is not None and stream.selected_alpn_protocol() == "h2"
        await self._serve_connection(connection, speaks_http2=speaks_http2)

    def _connection(self, transport: Transport, client: str) -> Connection:
        connection = Connection(self, transport, client)
        self.connections.add(connection)
        return connection

    async def _serve_connection(
        self, connection: Connection, *, speaks_http2: bool = False
    ) -> None:
        try:
            await connection.run(speaks_http2=speaks_http2)
        finally:
            self.connections.discard(connection)
            connection.held.release()
            if not self.connections:
                self._idle.set()
            with trio.CancelScope(shield=True):
                await connection.transport.close()

    def chunk(self, data: Buffer) -> bytes:
        """`data` as a chunk of a chunked body. One event goes to many readers: framed once.

        A chunk of no bytes would end the body (RFC 9112 section 7.1), so empty data has none.
        """
        if not data:
            return b""
        if data is not self._chunked_data:
            self._chunked_data = data
            self._chunk = b"".join((b"%x\r\n" % len(data), data, b"\r\n"))
        return self._chunk

    def _renew_tail_heads(self) -> None:
        """The header lines that end the heads of this second's responses."""
        date = b"Date: %b\r\n" % formatdate(usegmt=True).encode()
        self.tail_head = COMMON_HEAD + date
        self.private_tail_head = PRIVATE_HEAD + date

    async def _sweep(self) -> None:
        """Keep the time limits of all connections, and the clock for the Date header."""
        while True:
            await trio.sleep(_SWEEP_INTERVAL_S)
            self._renew_tail_heads()
            self.swept_at = trio.current_time()
            for connection in self.connections:
                connection.check_time(self.swept_at)


class Connection:
    """One client's connection; also the `Channel` of its live responses. `buffer` holds what was
    received and not yet taken."""

    def __init__(self, door: FrontDoor, transport: Transport, client: str) -> None:
        self._door = door
        self._client = client
        self.transport = transport
        self.buffer = bytearray()
        self._chunked = False
        self._left = b""
        self._pending_head = b""
        self._late: RequestRejected | None = None
        self.scope = trio.CancelScope()
        self.phase = Phase.IDLE
        self.since = door.swept_at
        self.held = door.bodies.share(client)
        self._pace: Pace | None = None
        self._body_came = 0
        self._is_new = True

    # -- its life -----------------------------------------------------------------------------

    async def run(self, *, speaks_http2: bool = False) -> None:
        """Answer requests, in order, until either side ends the connection."""
        try:
            with self.scope:
                if speaks_http2:
                    await self._speak_http2()
                    return
                while await self._serve_one():
                    if self.buffer:
                        # A client that sends ahead must not keep the others waiting.
                        await trio.lowlevel.checkpoint()
            if self._late is not None:
                await self._refuse(self._late)
        except ClientGone:
            pass

    async def _speak_http2(self, ahead: bytes = b"") -> None:
        """Serve HTTP/2 to the end; `ahead` is what was taken of it."""
        assert self._door.http2 is not None
        self._enter(Phase.BUSY)
        await self._door.http2.serve(self.transport.stream(ahead + self.buffer))

    def check_time(self, now: float) -> None:
        """Called by the sweeper: end the connection if it has waited too long. While a body comes,
        `since` is the time of the last look at its pace."""
        config = self._door.config
        waited_ms = (now - self.since) * 1000
        if self.phase is Phase.IDLE and waited_ms > config.idle_timeout_ms:
            self.scope.cancel()
        elif self.phase is Phase.HEAD and waited_ms > config.header_timeout_ms:
            self._late = RequestRejected(
                408, "HEADER_TIMEOUT", "the request's head came too slowly"
            )
            self.scope.cancel()
        elif self.phase is Phase.BODY:
            assert self._pace is not None
            if not self._pace.keeps_up(now - self.since, self._body_came):
                self._late = too_slow()
                self.scope.cancel()
            self.since, self._body_came = now, 0

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.since = self._door.swept_at

    async def _serve_one(self) -> bool:
        """Serve one request. Returns whether another may follow."""
        try:
            raw = await self._read_head()
            if raw is None:
                return False
            is_new, self._is_new = self._is_new, False
            if is_new and raw == PREFACE_HEAD and self._door.http2 is not None:
                await self._speak_http2(raw)
                return False
            head = self._door.heads.parse(raw)
            if head.method == "PUT" and self._door.application.takes_pieces(head.path):
                return await self._serve_pieces(head)
            body = await self._read_body(head.fields)
        except RequestRejected as refused:
            await self._refuse(refused)
            return False
        self._enter(Phase.BUSY)
        request = Request(
            head.method,
            head.path,
            head.query,
            head.fields.headers,
            body,
            self,
            self._door.scheme,
            client=self._client,
        )
        return await self._respond(head, await self._handle(request))

    async def _serve_pieces(self, head: Head) -> bool:
        """Serve a request whose body the handler takes piece by piece. Raises `RequestRejected`."""
        self._enter(Phase.BUSY)
        body = WireBody(self, head.fields, Pace(self._door.config))
        request = Request(
            head.method,
            head.path,
            head.query,
            head.fields.headers,
            b"",
            self,
            self._door.scheme,
            body,
            self._client,
        )
        response = await self._handle(request)
        if not body.ended and isinstance(response, Response):
            response = Response(response.status, response.head, response.body, close=True)
        keep_alive = await self._respond(head, response)
        if not body.ended:
            await self.transport.linger()
        return keep_alive and body.ended

    async def _respond(self, head: Head, response: Response | LiveResponse) -> bool:
        """Send a response. Returns whether another request may follow."""
        keep_alive = head.fields.keep_alive and not self._door.draining
        if isinstance(response, LiveResponse):
            keep_alive = await self._send_live(head, response, keep_alive)
        else:
            keep_alive = keep_alive and not response.close
            is_head, is_http_1_0 = head.method == "HEAD", head.fields.version == "1.0"
            try:
                await self._send(response, is_head, keep_alive, is_http_1_0)
            except OutgoingFull:
                await self._send(FULL, is_head, keep_alive, is_http_1_0)
        self.held.release()
        self._enter(Phase.IDLE)
        return keep_alive and not self._door.draining

    async def _handle(self, request: Request) -> Response | LiveResponse:
        try:
            return await self._door.application.handle(request)
        except ClientGone:
            raise
        except RequestRejected:
            raise
        except self._door.fatal:
            raise
        except Exception:
            # A bug of ours: this client gets an answer, all others go on.
            log.exception("a handler failed", method=request.method)
            return error_response(500, "INTERNAL", "an internal error", close=True)

    # -- receiving ----------------------------------------------------------------------------

    async def _receive(self) -> bool:
        data = await self.transport.receive()
        self.buffer += data
        self._door.metrics.bytes_in += len(data)
        return bool(data)

    async def _read_head(self) -> bytes | None:
        """The next request's head, or None when the client is done."""
        limit = self._door.config.max_header_bytes
        buffer = self.buffer
        searched = 0
        if buffer:
            self._enter(Phase.HEAD)
        while True:
            if buffer[:2] == b"\r\n":
                del buffer[: empty_lines(buffer)]  # RFC 9112 section 2.2 asks to overlook them.
            if (end := buffer.find(b"\r\n\r\n", searched)) >= 0:
                break
            searched = max(0, len(buffer) - 3)
            if len(buffer) > limit:
                raise RequestRejected(431, "HEADERS_TOO_LARGE", f"the head exceeds {limit} bytes")
            if b"\n\n" in buffer or b"\0" in buffer:
                raise RequestRejected(400, "BAD_REQUEST", "a bare LF or NUL in the head")
            if not await self._receive():
                return None
            if self.phase is Phase.IDLE:
                self._enter(Phase.HEAD)
        if end + 4 > limit:
            raise RequestRejected(431, "HEADERS_TOO_LARGE", f"the head exceeds {limit} bytes")
        head = bytes(buffer[: end + 4])
        del buffer[: end + 4]
        return head

    async def _read_body(self, fields: Fields) -> bytes:
        length = fields.content_length
        if length == 0:
            return b""
        limit = self._door.config.max_body_bytes
        if length is not None and length > limit:
            raise RequestRejected(413, "BODY_TOO_LARGE", f"a body may have {limit} bytes")
        if length is not None and len(self.buffer) >= length:
            body = bytes(self.buffer[:length])
            del self.buffer[:length]
            return body
        self._pace, self._body_came = Pace(self._door.config), len(self.buffer)
        self.phase, self.since = Phase.BODY, trio.current_time()
        if fields.expects_continue and not self.buffer:
            await self.send_continue()
        if length is None:
            return await self._read_chunked(limit)
        while len(self.buffer) < length:
            self._account(len(self.buffer))
            await self._receive_body()
        self._account(length)
        body = bytes(self.buffer[:length])
        del self.buffer[:length]
        return body

    async def _read_chunked(self, limit: int) -> bytes:
        chunked = Chunked()
        while True:
            has_more = chunked.feed(self.buffer)
            if len(chunked.body) > limit:
                raise RequestRejected(413, "BODY_TOO_LARGE", f"a body may have {limit} bytes")
            self._account(len(chunked.body))
            if chunked.done:
                return bytes(chunked.body)
            if has_more:
                await trio.lowlevel.checkpoint()
            else:
                await self._receive_body()

    async def receive_more(self) -> bytes:
        """For a body that is taken in pieces. Raises `ClientGone` when there is no more."""
        data = await self.transport.receive()
        if not data:
            raise ClientGone
        self.buffer += data
        self._door.metrics.bytes_in += len(data)
        return data

    async def send_continue(self) -> None:
        await self.transport.send((CONTINUE,))

    async def _receive_body(self) -> None:
        before = len(self.buffer)
        if not await self._receive():
            raise ClientGone
        self._body_came += len(self.buffer) - before

    def _account(self, size: int) -> None:
        """Count what has come of a body against what all connections together may hold."""
        try:
            self.held.hold(size)
        except LimitReached:
            raise too_many_bodies() from None

    # -- sending ------------------------------------------------------------------------------

    async def _refuse(self, refused: RequestRejected) -> None:
        """Answer what is no request, and end the connection so that it is read."""
        self.held.release()
        self.buffer.clear()
        await self._send(refused.response, False, False, False)
        await self.transport.linger()

    async def _send(
        self, response: Response, is_head: bool, keep_alive: bool, is_http_1_0: bool
    ) -> None:
        parts, size = body_parts(response.body)
        tail_head = self._door.private_tail_head if response.private else self._door.tail_head
        head = STATUS_LINES[response.status] + response.head + tail_head
        if response.status not in (204, 304) and (size or not is_head):
            head += b"Content-Length: %d\r\n" % size
        if not keep_alive:
            head += b"Connection: close\r\n\r\n"
        elif is_http_1_0:
            head += b"Connection: keep-alive\r\n\r\n"
        else:
            head += b"\r\n"
        if is_head or not size:
            parts = ()
            size = 0
        self._door.metrics.bytes_out += len(head) + size
        if size <= UNCOUNTED_BYTES:
            await self.transport.send((head, *parts) if parts else (head,))
            return
        with self._door.outgoing.holding(parts, size, self._client):
            await self.transport.send((head, *parts))

    async def _send_live(self, head: Head, response: LiveResponse, keep_alive: bool) -> bool:
        """Send a live response. Returns whether the connection may go on."""
        self._chunked = response.length is None and head.fields.version == "1.1"
        wire = STATUS_LINES[response.status] + response.head + self._door.tail_head
        if self._chunked:
            wire += b"Transfer-Encoding: chunked\r\n"
        elif response.length is not None:
            wire += b"Content-Length: %d\r\n" % response.length
        keep_alive = keep_alive and head.fields.version == "1.1"
        if not keep_alive:
            wire += b"Connection: close\r\n"
        self._pending_head = wire + b"\r\n"
        await response.run(self)
        end = self._pending_head + (b"0\r\n\r\n" if self._chunked else b"")
        self._pending_head = b""
        await self.flush()
        if end:
            await self.transport.send((end,))
        return keep_alive

    def _framed(self, data: Buffer) -> bytes:
        """A piece of a live body as it goes on the wire, the head before the first."""
        framed = self._door.chunk(data) if self._chunked else bytes(data)
        if self._pending_head:
            framed, self._pending_head = self._pending_head + framed, b""
        self._door.metrics.bytes_out += len(framed)
        return framed

    def try_send(self, data: bytes) -> bool:
        framed = self._framed(data)
        if self._left:
            self._left += framed
            return False
        sent = self.transport.send_now(framed)
        if sent == len(framed):
            return True
        self._left = framed[sent:]
        return False

    async def flush(self) -> None:
        if self._left:
            left, self._left = self._left, b""
            await self.transport.send((left,))

    async def send(self, data: Buffer) -> None:
        await self.flush()
        await self.transport.send((self._framed(data),))

    async def wait_disconnected(self) -> None:
        await self.transport.wait_disconnected()
