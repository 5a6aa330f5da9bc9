"""One client's connection: reads requests one after another, and sends their answers.

A connection is the `Channel` of its live responses, so that the hub writes events straight to its
socket. Two tasks may then have bytes for it. One rule keeps their order: bytes that do not fit into
the socket go to `_left`, all later bytes follow them there, and only the connection's own task
takes them out, by `flush`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import structlog
import trio

from streamd.http.heads import Fields, Head
from streamd.http.incoming import Pace, WireBody, body_too_large, too_many_bodies, too_slow
from streamd.http.messages import (
    Buffer,
    ClientGone,
    LiveResponse,
    Request,
    Response,
    error_response,
)
from streamd.http.outgoing import FULL, UNCOUNTED_BYTES, OutgoingFull
from streamd.http.shares import LimitReached
from streamd.http.transports import Transport
from streamd.http.wire import (
    CONTINUE,
    PREFACE_HEAD,
    STATUS_LINES,
    Chunked,
    RequestRejected,
    body_parts,
    empty_lines,
    head_too_large,
)

if TYPE_CHECKING:
    from streamd.http.front_door import FrontDoor

log = structlog.get_logger("streamd.http")


class Phase(Enum):
    """What a connection waits for; each has its time limit."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    BUSY = "busy"


class Connection:
    """One client's connection, and the `Channel` of its live responses. `buffer` holds the bytes
    received but not yet consumed."""

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
                        # A client that pipelines requests must not starve the others.
                        await trio.lowlevel.checkpoint()
            if self._late is not None:
                await self._refuse(self._late)
        except ClientGone:
            pass

    async def _speak_http2(self, ahead: bytes = b"") -> None:
        """Serve HTTP/2 to the end; `ahead` has already been read from the connection."""
        assert self._door.http2 is not None
        self._enter(Phase.BUSY)
        await self._door.http2.serve(self.transport.stream(ahead + self.buffer))

    def check_time(self, now: float) -> None:
        """Called by the sweeper: end the connection if it has waited too long. While a body
        arrives, `since` is the time of the last check of its pace."""
        config = self._door.config
        waited_ms = (now - self.since) * 1000
        if self.phase is Phase.IDLE and waited_ms > config.idle_timeout_ms:
            self.scope.cancel()
        elif self.phase is Phase.HEAD and waited_ms > config.header_timeout_ms:
            self._late = RequestRejected(
                408, "HEADER_TIMEOUT", "the request's head arrived too slowly"
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
        """Serve a request whose body the handler receives in pieces. Raises `RequestRejected`."""
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
            # A bug of ours: this client gets an error, other clients are not affected.
            log.exception("handler failed", method=request.method)
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
                del buffer[: empty_lines(buffer)]  # RFC 9112 section 2.2: ignored.
            if (end := buffer.find(b"\r\n\r\n", searched)) >= 0:
                break
            searched = max(0, len(buffer) - 3)
            if len(buffer) > limit:
                raise head_too_large(limit)
            if b"\n\n" in buffer or b"\0" in buffer:
                raise RequestRejected(400, "BAD_REQUEST", "a bare LF or NUL in the head")
            if not await self._receive():
                return None
            if self.phase is Phase.IDLE:
                self._enter(Phase.HEAD)
        if end + 4 > limit:
            raise head_too_large(limit)
        head = bytes(buffer[: end + 4])
        del buffer[: end + 4]
        return head

    async def _read_body(self, fields: Fields) -> bytes:
        length = fields.content_length
        if length == 0:
            return b""
        limit = self._door.config.max_body_bytes
        if length is not None and length > limit:
            raise body_too_large(limit)
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
                raise body_too_large(limit)
            self._account(len(chunked.body))
            if chunked.done:
                return bytes(chunked.body)
            if has_more:
                await trio.lowlevel.checkpoint()
            else:
                await self._receive_body()

    async def receive_more(self) -> bytes:
        """The next bytes of a body received in pieces. Raises `ClientGone` at the end."""
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
        """Count the received part of a body against the limit of all connections."""
        try:
            self.held.hold(size)
        except LimitReached:
            raise too_many_bodies() from None

    # -- sending ------------------------------------------------------------------------------

    async def _refuse(self, refused: RequestRejected) -> None:
        """Send the error, then close so that the client can still read it."""
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
        """Send a live response. Returns whether another request may follow."""
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
        """A piece of a live body in wire format, after the head if it is the first."""
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
