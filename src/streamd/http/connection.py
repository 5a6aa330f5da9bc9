"""One client's connection: reads requests one after another, and sends their answers.

A connection in its normal way has no task. The reactor calls `advance` when its socket has bytes,
and that call serves a request that has come whole, or proposes its write and leaves a callback.
A live read that waits for its stream is kept as a value (`Parked`) until it is woken. What must
wait otherwise goes on in a task, `run`: a body that comes in pieces, a handler that waits, a full
socket. The task stays for as long as the requests need one. Over TLS all do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

import trio

from streamd.http import incoming
from streamd.http.channels import WireChannel
from streamd.http.heads import Head
from streamd.http.incoming import Pace, WholeBody, WireBody
from streamd.http.messages import (
    Begun,
    Buffer,
    ClientGone,
    LiveResponse,
    Parked,
    Request,
    Response,
    internal_error,
)
from streamd.http.outgoing import FULL, UNCOUNTED_BYTES, OutgoingFull
from streamd.http.parking import wait
from streamd.http.transports import RECEIVE_BYTES, SocketTransport, Transport
from streamd.http.wire import (
    CONTINUE,
    PREFACE_HEAD,
    RequestRejected,
    answer_parts,
    live_head,
    take_head,
)

if TYPE_CHECKING:
    from streamd.http.front_door import FrontDoor

# What a task has to do for a request. Returns whether another request may follow.
Rest = Callable[[], Awaitable[bool]]

T = TypeVar("T")
Args = TypeVarTuple("Args")


class Phase(Enum):
    """What a connection waits for; each has its time limit."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    BUSY = "busy"
    ENDED = "ended"


# How long an idle connection keeps its task for the next request: at least a sweep's interval.
_LENT_MS = 1500
_BETWEEN_REQUESTS = (Phase.IDLE, Phase.HEAD)


class Connection:
    """One client's connection. `buffer` holds the bytes received but not yet consumed."""

    def __init__(self, door: FrontDoor, transport: Transport, client: str) -> None:
        self._door = door
        self._client = client
        self.transport = transport
        self.buffer = bytearray()
        self._searched = 0  # How much of `buffer` certainly has no end of a head.
        self.hung_up = False  # The reactor reported the end of the client's input.
        self.has_more = False  # The socket may have something that was reported already.
        self._head: Head | None = None  # That of the request being answered by the reactor.
        self._channel = WireChannel(transport, door)
        self._refusal: RequestRejected | None = None
        self.rest: Rest | None = None  # What its task has to do.
        self._ends = False
        self._is_lent = False  # Its task waits for a request, as the reactor could.
        self._scope: trio.CancelScope | None = None  # Its task's, while it has one.
        self.phase = Phase.IDLE
        self.since = door.swept_at
        self.held = door.bodies.share(client)
        self._body: WholeBody | None = None
        self._is_new = True

    def check_time(self, now: float) -> None:
        """Called by the sweeper: end the connection if it has waited too long. While a body
        arrives, `since` is the time of the last check of its pace."""
        config = self._door.config
        waited_ms = (now - self.since) * 1000
        if self.phase is Phase.IDLE and waited_ms > config.idle_timeout_ms:
            self.end()
        elif self._is_lent and waited_ms > _LENT_MS and self.phase is Phase.IDLE:
            assert self._scope is not None
            self._scope.cancel()  # The reactor takes it back.
        elif self.phase is Phase.HEAD and waited_ms > config.header_timeout_ms:
            self.end(incoming.head_too_slow())
        elif self.phase is Phase.BODY:
            assert self._body is not None
            if not self._body.keeps_up(now - self.since):
                self.end(incoming.too_slow())
            self.since = now

    def end(self, refusal: RequestRejected | None = None) -> None:
        """End the connection, which waits for its client, with an answer if there is a refusal."""
        if self._scope is not None:
            self._refusal = refusal
            self._ends = True
            self._scope.cancel()
        elif refusal is not None:
            self._continue(partial(self._refuse, refusal))
        else:
            self._door.end(self)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.since = self._door.swept_at

    # -- in the reactor: nothing here waits ---------------------------------------------------

    def advance(self) -> None:
        """Serve the next request, as far as it has come and needs no waiting.

        May be called at any time. What follows a request being answered stays in the socket.
        """
        if self.hung_up and self in self._door.parked:
            self.end()
        elif self._scope is not None or self.phase not in _BETWEEN_REQUESTS:
            self.has_more = True
        else:
            self._continue(self._serve_now())

    def _serve_now(self) -> Rest | None:
        """Serve the next request as `advance` does. Returns what is left, for a task."""
        try:
            raw = self._take_head() or self._receive_head()
            if raw is None:
                return None
            if self._is_http2(raw):
                return partial(self.speak_http2, raw)
            head = self._door.heads.parse(raw)
            body = self._whole_body(head)
        except RequestRejected as refused:
            return partial(self._refuse, refused)
        if body is None:
            return partial(self._serve_rest, head)
        return self._begin(head, self._request(head, body))

    def _receive_head(self) -> bytes | None:
        """Receive once; the head, if that completes it. Raises `RequestRejected`."""
        assert isinstance(self.transport, SocketTransport)
        data = self.transport.receive_now()
        if not data:
            self.has_more = False
            if data is not None:
                self.end()
            return None
        self.has_more = self.hung_up or len(data) >= RECEIVE_BYTES
        self._take_in(data)
        raw = self._take_head()
        if raw is None and self.has_more:
            self._door.reactor.advance_later(self)
        return raw

    def _begin(self, head: Head, request: Request) -> Rest | None:
        self._enter(Phase.BUSY)
        self._head = head
        begun = self._guarded(self._door.application.begin, request, self._answer_later)
        if begun is Begun.UNDER_WAY:
            return None
        if begun is Begun.MUST_WAIT:
            return partial(self._serve, head, request)
        return self._take_up(begun)

    def _take_up(self, found: Response | Parked) -> Rest | None:
        """Send an answer, or keep the request that waits. Returns as `_serve_now`."""
        if isinstance(found, Response):
            return self._answer(found)
        self._door.parked.keep(self, found)
        if self.hung_up:
            self.end()
        return None

    def resume(self, parked: Parked) -> None:
        """Go on with the request that was kept."""
        found = self._guarded(self._door.application.resume, parked)
        self._continue(partial(self._go_on, parked) if found is None else self._take_up(found))

    def _answer_later(self, make: Callable[[T], Response | LiveResponse], argument: T) -> None:
        self._door.reactor.now(self._make_answer, make, argument)

    def _make_answer(self, make: Callable[[T], Response | LiveResponse], argument: T) -> None:
        answer, head = self._guarded(make, argument), self._head
        if self.phase is Phase.ENDED:  # Its server may have stopped before the write ended.
            if isinstance(answer, LiveResponse):
                answer.abandon()
        elif isinstance(answer, Response):
            self._continue(self._answer(answer))
        elif head:
            self._continue(partial(self._respond, head, answer))

    def _answer(self, response: Response) -> Rest | None:
        """Send an answer, or the part of it that the socket takes now. Returns as `_serve_now`."""
        head = self._head
        assert head is not None
        if self._channel.is_open:
            self.end()  # In the midst of a body nothing can be told.
            return None
        keep_alive = self._keeps_alive(head, response)
        parts, size = self._parts(response, head, keep_alive=keep_alive)
        if size > UNCOUNTED_BYTES:
            return partial(self._respond, head, response)
        data = b"".join(parts)
        self._door.metrics.bytes_out += len(data)
        sent = self.transport.send_now(data)
        if sent < len(data):
            return partial(self._send_rest, data[sent:], keep_alive)
        if not self._answered(keep_alive):
            self.end()
        elif self.buffer or self.has_more:
            # In a later turn: a client that pipelines requests must not starve the others.
            self._door.reactor.advance_later(self)
        return None

    def _continue(self, rest: Rest | None) -> None:
        """Let a task do the rest, if there is any."""
        if rest is not None:
            self._enter(Phase.BUSY)
            self.rest = rest
            self._door.leave_to_task(self)

    # -- in a task ----------------------------------------------------------------------------

    async def run(self) -> bool:
        """Do the rest of a request, and of those after it while they have one: a task for each
        would cost more than the request. Returns whether the reactor goes on."""
        goes_on = False
        try:
            try:
                with trio.CancelScope() as self._scope:
                    while self.rest is not None and (goes_on := await self._do_rest()):
                        if self in self._door.parked:
                            break
                        self.rest = await self._next_rest()
            except RequestRejected as refused:
                self._refusal = refused
            if self._refusal is not None:
                return await self._refuse(self._refusal)
        except ClientGone:
            return False
        self._scope, self._is_lent = None, False
        return goes_on and not self._ends

    async def _do_rest(self) -> bool:
        # In no frame that lives on: an idle connection must not hold its last request.
        rest, self.rest = self.rest, None
        assert rest is not None
        return await rest()

    async def _next_rest(self) -> Rest | None:
        """Wait for the next request. What is left of it, or None if the reactor can go on."""
        transport, scope = self.transport, self._scope
        assert isinstance(transport, SocketTransport)
        assert scope is not None
        self._is_lent = True
        if self.buffer or self.has_more:
            await trio.lowlevel.checkpoint()
        else:
            await transport.wait_readable()
        self._is_lent = False
        # A request taken now would be cancelled and lost.
        return None if scope.cancel_called else self._serve_now()

    async def serve_all(self) -> bool:
        """Answer requests, in order, until either side ends the connection."""
        while await self._serve_one():
            if self.buffer:
                # A client that pipelines requests must not starve the others.
                await trio.lowlevel.checkpoint()
        return False

    async def speak_http2(self, ahead: bytes = b"") -> bool:
        """Serve HTTP/2 to the end; `ahead` has already been read from the connection."""
        assert self._door.http2 is not None
        self._enter(Phase.BUSY)
        await self._door.http2.serve(self.transport.stream(ahead + self.buffer))
        return False

    async def _serve_one(self) -> bool:
        """Serve one request. Returns whether another may follow. Raises `RequestRejected`."""
        while (raw := self._take_head()) is None:
            if not await self._receive():
                return False
        if self._is_http2(raw):
            return await self.speak_http2(raw)
        return await self._serve_rest(self._door.heads.parse(raw))

    async def _serve_rest(self, head: Head) -> bool:
        """Serve a request whose head was taken. As `_serve_one`."""
        if (body := self._whole_body(head)) is None:
            incoming.check_head(self._door.application, self._request(head, b""))
            if self._comes_in_pieces(head):
                return await self._serve_pieces(head)
            self._body = WholeBody(self, head.fields, self._door.config, self.held)
            self.phase, self.since = Phase.BODY, trio.current_time()
            body = await self._body.receive()
        return await self._serve(head, self._request(head, body))

    async def _serve(self, head: Head, request: Request) -> bool:
        """Serve a request that has come whole. As `_serve_one`."""
        self._enter(Phase.BUSY)
        return await self._respond(head, await self._handle(request))

    async def _go_on(self, parked: Parked) -> bool:
        """Go on with a request that was parked. As `_serve_one`."""
        head = self._head
        assert head is not None
        found = await self._told(head.method, self._door.application.go_on(parked))
        return await self._respond(head, found)

    async def _serve_pieces(self, head: Head) -> bool:
        """Serve a request whose body the handler receives in pieces. As `_serve_one`."""
        self._enter(Phase.BUSY)
        body = WireBody(self, head.fields, Pace(self._door.config))
        response = await self._handle(self._request(head, b"", body))
        if not body.ended and isinstance(response, Response):
            response = Response(response.status, response.head, response.body, close=True)
        keep_alive = await self._respond(head, response)
        if not body.ended:
            await self.transport.linger()
        return keep_alive and body.ended

    async def _respond(self, head: Head, response: Response | LiveResponse | Parked | None) -> bool:
        """Send a response, or what is left of one; None ends a live body. Returns whether another
        request may follow."""
        while response is not None and not isinstance(response, Response):
            if isinstance(response, LiveResponse):
                response = await self._told(head.method, self._begin_live(head, response))
            elif isinstance(self.transport, SocketTransport):
                self._head = head
                self._door.parked.keep(self, response)
                return True
            else:
                waiting = wait(self._door.application, response, self._channel)
                response = await self._told(head.method, waiting)
        if response is None:
            await self._channel.end()
            return self._answered(head.fields.version == "1.1" and head.fields.keep_alive)
        if self._channel.is_open:
            raise ClientGone  # As in `_answer`.
        keep_alive = self._keeps_alive(head, response)
        try:
            await self._send(*self._parts(response, head, keep_alive=keep_alive))
        except OutgoingFull:
            await self._send(*self._parts(FULL, head, keep_alive=keep_alive))
        return self._answered(keep_alive)

    async def _send_rest(self, data: bytes, keep_alive: bool) -> bool:
        """Send what the socket did not take of an answer. Returns as `_respond`."""
        await self.transport.send((data,))
        return self._answered(keep_alive)

    def _is_http2(self, raw: bytes) -> bool:
        """Whether the first head begins HTTP/2, and that is served."""
        is_new, self._is_new = self._is_new, False
        return is_new and raw == PREFACE_HEAD and self._door.http2 is not None

    def _comes_in_pieces(self, head: Head) -> bool:
        return head.method == "PUT" and self._door.application.takes_pieces(head.path)

    def _request(self, head: Head, body: bytes, pieces: WireBody | None = None) -> Request:
        headers, scheme = head.fields.headers, self._door.scheme
        return Request(
            head.method, head.path, head.query, headers, body,
            self._channel, scheme, pieces, self._client,
        )  # fmt: skip

    async def _handle(self, request: Request) -> Response | LiveResponse | Parked:
        return await self._told(request.method, self._door.application.handle(request))

    async def _told(self, method: str, answering: Awaitable[T]) -> T | Response:
        """What the application says, or the answer to a request that met a bug."""
        try:
            return await answering
        except self._door.passed_on:
            raise
        except Exception:
            return internal_error(method)

    def _guarded(self, call: Callable[[*Args], T], *args: *Args) -> T | Response:
        """As `_told`, for a part of the application that does not wait."""
        try:
            return call(*args)
        except self._door.fatal:
            raise
        except Exception:
            assert self._head is not None, "only a request in the reactor is guarded"
            return internal_error(self._head.method)

    def _keeps_alive(self, head: Head, response: Response) -> bool:
        return head.fields.keep_alive and not self._door.draining and not response.close

    def _answered(self, keep_alive: bool) -> bool:
        """Note that an answer was sent. Returns whether another request may follow."""
        self.held.release()
        self._head = self._body = None
        self._enter(Phase.IDLE)
        return keep_alive and not self._door.draining

    def _take_in(self, data: bytes) -> None:
        self.buffer += data
        self._door.metrics.bytes_in += len(data)

    async def _receive(self) -> bool:
        data = await self.transport.receive()
        self._take_in(data)
        return bool(data)

    def _take_head(self) -> bytes | None:
        """The next request's head, or None if that has not come whole. Raises `RequestRejected`."""
        if not self.buffer:
            return None
        head = take_head(self.buffer, self._searched, self._door.config.max_header_bytes)
        self._searched = 0 if head is not None else max(0, len(self.buffer) - 3)
        if head is None and self.phase is Phase.IDLE:
            self._enter(Phase.HEAD)
        return head

    def _whole_body(self, head: Head) -> bytes | None:
        """The body, or None if it comes in pieces or has not come whole. Raises `RequestRejected`
        for one that is too large."""
        length = head.fields.content_length
        if length is None or self._comes_in_pieces(head):
            return None
        if length == 0:
            return b""
        limit = self._door.config.max_body_bytes
        if length > limit:
            raise incoming.body_too_large(limit)
        if len(self.buffer) < length:
            return None
        body = bytes(self.buffer[:length])
        del self.buffer[:length]
        return body

    async def receive_more(self) -> bytes:
        """The next bytes of a body. Raises `ClientGone` at the end."""
        data = await self.transport.receive()
        if not data:
            raise ClientGone
        self._take_in(data)
        return data

    async def send_continue(self) -> None:
        await self.transport.send((CONTINUE,))

    async def _refuse(self, refused: RequestRejected) -> bool:
        """Send the error, then close so that the client can still read it."""
        self._enter(Phase.BUSY)
        self.held.release()
        self.buffer.clear()
        await self._send(*self._parts(refused.response, None, keep_alive=False))
        await self.transport.linger()
        return False

    def _parts(
        self, response: Response, head: Head | None, *, keep_alive: bool
    ) -> tuple[Sequence[Buffer], int]:
        """A response to the request with that head as it goes on the wire (`answer_parts`)."""
        tail_head = self._door.private_tail_head if response.private else self._door.tail_head
        is_head = head is not None and head.method == "HEAD"
        is_http_1_0 = head is not None and head.fields.version == "1.0"
        return answer_parts(
            response, tail_head, is_head=is_head, keep_alive=keep_alive, is_http_1_0=is_http_1_0
        )

    async def _send(self, parts: Sequence[Buffer], size: int) -> None:
        """Send a response whose body has that size in bytes. Raises `OutgoingFull`."""
        self._door.metrics.bytes_out += len(parts[0]) + size
        if size <= UNCOUNTED_BYTES:
            await self.transport.send(parts)
            return
        with self._door.outgoing.holding(parts[1:], size, self._client):
            await self.transport.send(parts)

    async def _begin_live(self, head: Head, response: LiveResponse) -> Parked | None:
        is_1_1 = head.fields.version == "1.1"
        keep_alive = is_1_1 and head.fields.keep_alive and not self._door.draining
        chunked = is_1_1 and response.length is None
        wire = live_head(response, self._door.tail_head, chunked=chunked, keep_alive=keep_alive)
        self._channel.begin(wire, chunked=chunked)
        return await response.run(self._channel)
