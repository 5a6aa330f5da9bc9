"""One client's connection: reads requests one after another, and sends their answers.

A connection in its normal way has no task. The reactor calls `advance` when its socket has bytes,
and that call serves a request that has come whole, or proposes its write and leaves a callback.
A live read that waits for its stream is kept as a value (`Parked`) until it is woken. What must
wait otherwise goes on in a task (`connection_task`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from streamd.http.door.channels import WireChannel
from streamd.http.protocol.heads import Head
from streamd.http.protocol.messages import (
    Begun,
    Buffer,
    LiveResponse,
    Parked,
    Request,
    Response,
    Seat,
    error_response,
)
from streamd.http.protocol.refusals import answer_to
from streamd.http.protocol.wire import (
    PREFACE_HEAD,
    answer_parts,
    take_head,
)
from streamd.http.sockets import incoming
from streamd.http.sockets.incoming import WholeBody
from streamd.http.sockets.outgoing import UNCOUNTED_BYTES
from streamd.http.sockets.transports import RECEIVE_BYTES, SocketTransport, Transport
from streamd.protocol.problems import Problem, ProblemError

if TYPE_CHECKING:
    from streamd.http.door.connection_task import ConnectionTask
    from streamd.http.door.front_door import FrontDoor

# What a task has to do for a request. Returns whether another request may follow.
Rest = Callable[["ConnectionTask"], Awaitable[bool]]

T = TypeVar("T")


class Phase(Enum):
    """What a connection waits for; each has its time limit."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    BUSY = "busy"
    ENDED = "ended"


# Until Python 3.12 a look-up in an enumeration takes five times as long as one of a global.
_IDLE, _HEAD, _BODY, _BUSY, _ENDED = Phase
# How long an idle connection keeps its task for the next request: at least a sweep's interval.
_LENT_MS = 1500
_BETWEEN_REQUESTS = (_IDLE, _HEAD)


class Connection:
    """One client's connection. `buffer` holds the bytes received but not yet consumed."""

    def __init__(self, door: FrontDoor, transport: Transport, client: str) -> None:
        self.door = door
        self.client = client
        self.transport = transport
        self.buffer = bytearray()
        self._searched = 0  # How much of `buffer` certainly has no end of a head.
        self.hung_up = False  # The reactor reported the end of the client's input.
        self.has_more = False  # The socket may have something that was reported already.
        self.head: Head | None = None  # That of the request being answered by the reactor.
        self.channel = WireChannel(transport, door)
        self.task: ConnectionTask | None = None  # While it has one.
        self.phase = _IDLE
        self.since = door.swept_at
        self.held = door.bodies.share(client)
        self.seat = Seat()
        self.body: WholeBody | None = None
        self._is_new = True

    def check_time(self, now: float) -> None:
        """Called by the sweeper: end the connection if it has waited too long. While a body
        arrives, `since` is the time of the last check of its pace."""
        config = self.door.config
        waited_ms = (now - self.since) * 1000
        if self.phase is _IDLE and waited_ms > config.idle_timeout_ms:
            self.end()
        elif self.task is not None and waited_ms > _LENT_MS and self.phase is _IDLE:
            self.task.give_back()
        elif self.phase is _HEAD and waited_ms > config.header_timeout_ms:
            self.end(error_response(Problem.HEADER_TIMEOUT))
        elif self.phase is _BODY:
            assert self.body is not None
            if not self.body.keeps_up(now - self.since):
                self.end(error_response(Problem.BODY_TIMEOUT))
            self.since = now

    def end(self, refusal: Response | None = None) -> None:
        """End the connection, which waits for its client, with an answer if there is a refusal."""
        if self.task is not None:
            self.task.end(refusal)
        elif refusal is not None:
            self._continue(lambda task: task.refuse(refusal))
        else:
            self.door.end(self)

    def enter(self, phase: Phase) -> None:
        self.phase = phase
        self.since = self.door.swept_at

    # -- in the reactor: nothing here waits ---------------------------------------------------

    def advance(self) -> None:
        """Serve the next request, as far as it has come and needs no waiting.

        May be called at any time. What follows a request being answered stays in the socket.
        """
        if self.hung_up and self in self.door.parked:
            self.end()
        elif self.task is None and self.phase in _BETWEEN_REQUESTS:
            self._continue(self.serve_now())
        elif self.phase is not _ENDED:
            self.has_more = True
            self.door.reactor.pause(self)

    def take(self, data: bytes) -> None:
        """Serve the next request as `advance` does, after `data` was received, empty at the end."""
        if self.phase is _ENDED:
            return  # By a call for another connection.
        assert self.phase in _BETWEEN_REQUESTS, "nothing is received for a request being answered"
        if not data:
            self.end()
            return
        self.has_more = self.hung_up or len(data) >= RECEIVE_BYTES
        known = None if self.buffer else self.door.heads.whole(data)
        if known is not None and len(data) <= self.door.config.max_body_bytes:
            if self._is_new:
                self._is_new = False
                self.door.newcomers.discard(self)
            self.door.metrics.bytes_in += len(data)
            self._continue(self._begin(known[0], self.request(*known)))
        else:
            self.take_in(data)
            self._continue(self.serve_now())

    def serve_now(self) -> Rest | None:
        """Serve the next request as `advance` does. Returns what is left, for a task."""
        try:
            raw = self.take_head() or self._receive_head()
            if raw is None:
                return None
            if self.is_http2(raw):
                return lambda task: task.speak_http2(raw)
            head = self.door.heads.parse(raw)
            body = self.whole_body(head)
        except ProblemError as error:
            refused = answer_to(error)
            return lambda task: task.refuse(refused)
        if body is None:
            return lambda task: task.serve_rest(head)
        return self._begin(head, self.request(head, body))

    def _receive_head(self) -> bytes | None:
        """Receive once; the head, if that completes it. Raises `ProblemError`."""
        assert isinstance(self.transport, SocketTransport)
        data = self.transport.receive_now()
        if not data:
            self.has_more = False
            if data is not None:
                self.end()
            return None
        self.has_more = self.hung_up or len(data) >= RECEIVE_BYTES
        self.take_in(data)
        raw = self.take_head()
        if raw is None and self.has_more:
            self.door.reactor.advance_later(self)
        return raw

    def _begin(self, head: Head, request: Request) -> Rest | None:
        self.enter(_BUSY)
        self.head = head
        begin = self.door.application.begin
        begun = self.door.guard.call(head.method, begin, request, self._answer_later)
        if isinstance(begun, Response):
            return self._answer(begun)
        if begun is Begun.UNDER_WAY:
            self.door.reactor.pause(self)
            return None
        if begun is Begun.MUST_WAIT:
            return lambda task: task.serve(head, request)
        return self._take_up(begun)

    def _take_up(self, found: Response | Parked) -> Rest | None:
        """Send an answer, or keep the request that waits. Returns as `_serve_now`."""
        if isinstance(found, Response):
            return self._answer(found)
        self.door.parked.keep(self, found)
        self.door.reactor.pause(self)
        if self.hung_up:
            self.end()
        return None

    def resume(self, parked: Parked) -> None:
        """Go on with the request that was kept."""
        assert self.head is not None
        found = self.door.guard.call(self.head.method, self.door.application.resume, parked)
        rest = self._take_up(found) if found is not None else lambda task: task.go_on(parked)
        self._continue(rest)

    def _answer_later(self, make: Callable[[T], Response | LiveResponse], argument: T) -> None:
        self.door.reactor.now(self._make_answer, make, argument)

    def _make_answer(self, make: Callable[[T], Response | LiveResponse], argument: T) -> None:
        head = self.head
        method = "" if head is None else head.method
        answer = self.door.guard.call(method, make, argument)
        if self.phase is _ENDED:  # Its server may have stopped before the write ended.
            if isinstance(answer, LiveResponse):
                answer.abandon()
        elif isinstance(answer, Response):
            self._continue(self._answer(answer))
        elif head is not None:
            self._continue(lambda task: task.respond(head, answer))

    def _answer(self, response: Response) -> Rest | None:
        """Send an answer, or the part of it that the socket takes now. Returns as `_serve_now`."""
        head = self.head
        assert head is not None
        if self.channel.is_open:
            self.end()  # In the midst of a body nothing can be told.
            return None
        keep_alive = self.keeps_alive(head, response)
        parts, size = self.parts(response, head, keep_alive=keep_alive)
        if size > UNCOUNTED_BYTES:
            return lambda task: task.respond(head, response)
        data = b"".join(parts)
        self.door.metrics.bytes_out += len(data)
        sent = self.transport.send_now(data)
        if sent < len(data):
            return lambda task: task.send_rest(data[sent:], keep_alive)
        if not self.answered(keep_alive):
            self.end()
        elif self.buffer or self.has_more:
            # In a later turn: a client that pipelines requests must not starve the others.
            self.door.reactor.advance_later(self)
        return None

    def _continue(self, rest: Rest | None) -> None:
        """Let a task do the rest, if there is any."""
        if rest is not None:
            self.enter(_BUSY)
            self.door.leave_to_task(self, rest)

    # -- both ways ----------------------------------------------------------------------------

    def is_http2(self, raw: bytes) -> bool:
        """Whether the first head begins HTTP/2, and that is served."""
        is_new, self._is_new = self._is_new, False
        if is_new and raw == PREFACE_HEAD and self.door.http2 is not None:
            return True  # Its first request is still to come.
        if is_new:
            self.door.newcomers.discard(self)
        return False

    def comes_in_pieces(self, head: Head) -> bool:
        return head.method == "PUT" and self.door.application.takes_pieces(head.path)

    def request(self, head: Head, body: bytes) -> Request:
        headers, scheme = head.fields.headers, self.door.scheme
        return Request(
            head.method, head.path, head.query, headers, body,
            self.channel, scheme, None, self.client, self.seat,
        )  # fmt: skip

    def keeps_alive(self, head: Head, response: Response) -> bool:
        return head.fields.keep_alive and not self.door.draining and not response.close

    def answered(self, keep_alive: bool) -> bool:
        """Note that an answer was sent. Returns whether another request may follow."""
        self.held.release()
        self.door.reactor.resume(self)
        self.head = self.body = None
        self.enter(_IDLE)
        return keep_alive and not self.door.draining

    def take_in(self, data: bytes) -> None:
        self.buffer += data
        self.door.metrics.bytes_in += len(data)

    def take_head(self) -> bytes | None:
        """The next request's head, or None if that has not come whole. Raises `ProblemError`."""
        if not self.buffer:
            return None
        head = take_head(self.buffer, self._searched, self.door.config.max_header_bytes)
        self._searched = 0 if head is not None else max(0, len(self.buffer) - 3)
        if head is None and self.phase is _IDLE:
            self.enter(_HEAD)
        return head

    def whole_body(self, head: Head) -> bytes | None:
        """The body, or None if it comes in pieces or has not come whole. Raises `ProblemError`
        for one that is too large."""
        length = head.fields.content_length
        if length is None or self.comes_in_pieces(head):
            return None
        if length == 0:
            return b""
        limit = self.door.config.max_body_bytes
        if length > limit:
            raise incoming.body_too_large(limit)
        if len(self.buffer) < length:
            return None
        body = bytes(self.buffer[:length])
        del self.buffer[:length]
        return body

    def parts(
        self, response: Response, head: Head | None, *, keep_alive: bool
    ) -> tuple[Sequence[Buffer], int]:
        """A response to the request with that head as it goes on the wire (`answer_parts`)."""
        tail_head = self.door.private_tail_head if response.private else self.door.tail_head
        is_head = head is not None and head.method == "HEAD"
        is_http_1_0 = head is not None and head.fields.version == "1.0"
        return answer_parts(
            response, tail_head, is_head=is_head, keep_alive=keep_alive, is_http_1_0=is_http_1_0
        )
