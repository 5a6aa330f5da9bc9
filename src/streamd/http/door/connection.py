"""One client's connection: reads requests one after another, and sends their answers.

A connection in its normal way has no task. The reactor calls `advance` when its socket has bytes,
and that call serves a request that has come whole, or proposes its write and leaves a callback.
A live read that waits for its stream is kept as a value (`Parked`) until it is woken. What must
wait otherwise goes on in a task (`connection_task`). `states` draws the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from streamd.http.door.arrivals import Arrivals
from streamd.http.door.channels import WireChannel
from streamd.http.door.continuations import (
    Continuation,
    FinishRequest,
    Refuse,
    Respond,
    Resume,
    SendRemainder,
    Serve,
    SpeakHttp2,
)
from streamd.http.door.parking import ParkedRequests
from streamd.http.door.reactor import Reactor
from streamd.http.door.shared import Shared
from streamd.http.door.states import FOLLOWING, State, WrongTransition
from streamd.http.protocol.application import Begun, Fate
from streamd.http.protocol.connections import Buffer, ConnectionCount
from streamd.http.protocol.heads import Head
from streamd.http.protocol.messages import LiveResponse, Parked, Request, Response
from streamd.http.protocol.refusals import answer_to, error_response
from streamd.http.protocol.wire import PREFACE_HEAD, answer_parts, take_head
from streamd.http.sockets import incoming
from streamd.http.sockets.incoming import WholeBody
from streamd.http.sockets.outgoing import UNCOUNTED_BYTES
from streamd.http.sockets.transports import RECEIVE_BYTES, SocketTransport, Transport
from streamd.protocol.problems import Problem, ProblemError

# Until Python 3.12 a look-up in an enumeration takes five times as long as one of a global.
(
    _IDLE, _HEAD, _ANSWERING, _PARKED, _TASK_IDLE, _TASK_HEAD, _TASK_BODY, _TASK_BUSY, _ENDED,
) = State  # fmt: skip
# How long an idle connection keeps its task for the next request: at least a sweep's interval.
_LENT_MS = 1500


class Host(Protocol):
    """The server that a connection belongs to, as far as the connection uses it."""

    @property
    def shared(self) -> Shared: ...

    @property
    def arrivals(self) -> Arrivals: ...

    @property
    def reactor(self) -> Reactor: ...

    @property
    def parked(self) -> ParkedRequests: ...

    def has_sent_head(self, connection: Connection) -> None:
        """The connection's first request has come, so it may no longer have to make room."""

    def may_give_way(self, connection: Connection) -> None:
        """Let the connection, of which nothing more is expected, end in favour of another."""

    def hand_to_task(self, connection: Connection, continuation: Continuation) -> None:
        """Let a task go on with a connection of the reactor."""

    def take_back(self, connection: Connection) -> None:
        """Let the reactor go on with a connection of a task."""

    def end(self, connection: Connection) -> None:
        """End a connection of the reactor."""

    def forget(self, connection: Connection) -> None:
        """Count a connection no longer that ends."""


class Task(Protocol):
    """The task of a connection, as far as the connection uses it."""

    def go_on(self, continuation: Continuation) -> None:
        """Carry this out next."""

    def give_back(self) -> None:
        """Let the reactor wait for the next request, for which this task waits; not over TLS."""

    def end(self, refusal: Response | None = None) -> None:
        """End the connection, which waits for its client, with an answer if there is a refusal."""


class Connection:
    """One client's connection. `buffer` holds the bytes received but not yet consumed."""

    def __init__(self, host: Host, transport: Transport, client: str) -> None:
        self.host = host
        self.shared = shared = host.shared
        self.client = client
        self.transport = transport
        self.buffer = bytearray()
        self._searched = 0  # How much of `buffer` certainly has no end of a head.
        self.hung_up = False  # The reactor reported the end of the client's input.
        self.has_more = False  # The socket may have something that was reported already.
        self.head: Head | None = None  # That of the request being answered by the reactor.
        self.channel = WireChannel(transport, shared.chunks, shared.metrics)
        self.task: Task | None = None  # While it has one.
        self.state = _IDLE
        self.since = shared.clock.now
        self.held = shared.bodies.allotment(client)
        self.count = ConnectionCount()
        self.body: WholeBody | None = None
        self._is_new = True
        self._keeps_alive = True  # After the answer that is being sent.

    def enter(self, state: State) -> None:
        """Change the state. One that ended stays so, while its task goes on to where it waits.
        Raises `WrongTransition`."""
        if self.state is not _ENDED:
            if state not in FOLLOWING[self.state]:
                raise WrongTransition(self.state, state, self.end)
            self.state = state
            self.since = self.shared.clock.now

    def take_back(self) -> None:
        """Wait for the next request in the reactor instead of the task, and no longer for that."""
        since = self.since
        self.enter(_IDLE)
        self.since = since

    def check_time(self, now: float) -> None:
        """Called by the sweeper: end the connection if it has waited too long. While a body
        arrives, `since` is the time of the last check of its pace."""
        config = self.shared.config
        waited_ms = (now - self.since) * 1000
        match self.state:
            case State.IDLE | State.TASK_IDLE if waited_ms > config.idle_timeout_ms:
                self.end()
            case State.TASK_IDLE if waited_ms > _LENT_MS:
                assert self.task is not None
                self.task.give_back()
            case State.HEAD | State.TASK_HEAD if waited_ms > config.header_timeout_ms:
                self.end(error_response(Problem.HEADER_TIMEOUT))
            case State.TASK_BODY:
                assert self.body is not None
                if not self.body.keeps_up(now - self.since):
                    self.end(error_response(Problem.BODY_TIMEOUT))
                self.since = now

    def end(self, refusal: Response | None = None) -> None:
        """End the connection, which waits for its client, with an answer if there is a refusal."""
        if self.task is not None:
            self.task.end(refusal)
        elif refusal is not None:
            self._hand_to_task(Refuse(refusal))
        else:
            self.host.end(self)

    # -- in the reactor: nothing here waits ---------------------------------------------------

    def advance(self) -> None:
        """Serve the next request, as far as it has come and needs no waiting.

        May be called at any time. What follows a request being answered stays in the socket.
        """
        state = self.state
        if state is _PARKED and self.hung_up:
            self.end()
        elif state is _IDLE or state is _HEAD:
            if (request := self._next_request()) is not None:
                self.host.arrivals.add(self, request)
        elif state is not _ENDED:
            self.has_more = True
            self.host.reactor.pause(self)

    def take(self, data: bytes) -> None:
        """Serve the next request as `advance` does, after `data` was received, empty at the end."""
        state = self.state
        if state is _ENDED:
            return  # By a call for another connection.
        assert state is _IDLE or state is _HEAD, "only the next request is received"
        if not data:
            self.end()
            return
        self.has_more = self.hung_up or len(data) >= RECEIVE_BYTES
        shared = self.shared
        known = None if self.buffer else shared.heads.whole(data)
        if known is not None and len(data) <= shared.config.max_body_bytes:
            if self._is_new:
                self._is_new = False
                self.host.has_sent_head(self)
            shared.metrics.bytes_in += len(data)
            head, body = known
            self.host.arrivals.add(self, self._ask(head, body))
        else:
            self.take_in(data)
            if (request := self._next_request()) is not None:
                self.host.arrivals.add(self, request)

    def serve_alone(self) -> None:
        """Serve the next request as `advance` does, from the connection's task: together with no
        other, and what is left of it is for that task."""
        if (request := self._next_request()) is not None:
            self.host.arrivals.serve((self,), (request,))

    def _next_request(self) -> Request | None:
        """The next request, if it has come whole. What has to be done otherwise is left to a
        task."""
        try:
            raw = self.take_head() or self._receive_head()
            if raw is None:
                return None
            continuation: Continuation
            if self.is_http2(raw):
                continuation = SpeakHttp2(raw)
            else:
                head = self.shared.heads.parse(raw)
                body = self.whole_body(head)
                if body is not None:
                    return self._ask(head, body)
                continuation = FinishRequest(head)
        except ProblemError as error:
            # Not the exception, which holds this frame: they would wait for the garbage collector.
            continuation = Refuse(answer_to(error))
        self._hand_to_task(continuation)
        return None

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
            self.host.reactor.advance_later(self)
        return raw

    def _ask(self, head: Head, body: bytes) -> Request:
        """A request that the application is to begin."""
        self.enter(_ANSWERING)
        self.head = head
        return Request(
            head.method, head.path, head.query, head.fields.headers, body,
            self.channel, self.shared.scheme, None, self.client, self.count,
        )  # fmt: skip

    def must_wait(self, request: Request) -> None:
        """As `Arrived.must_wait`."""
        assert self.head is not None
        self._hand_to_task(Serve(self.head, request))

    def follow(self, fate: Fate | LiveResponse) -> tuple[int, bytes] | None:
        """As `Arrived.follow`."""
        head = self.head
        assert head is not None
        if isinstance(fate, Exception):
            fate = self.shared.guard.answer(head.method, fate)
        if isinstance(fate, Response):
            return self._answer(fate, head)
        assert not isinstance(fate, Begun)
        if self.state is _ENDED:
            fate.abandon()
        elif isinstance(fate, LiveResponse):
            self._hand_to_task(Respond(head, fate))
        else:
            self.enter(_PARKED)
            self.host.parked.keep(self, fate)
            self.host.reactor.pause(self)
            if self.hung_up:
                self.end()
        return None

    def resume(self, parked: Parked) -> None:
        """Go on with the request that was kept."""
        shared, head = self.shared, self.head
        assert head is not None
        self.enter(_ANSWERING)
        found = shared.guard.call(head.method, shared.application.resume, parked)
        if found is None:
            self._hand_to_task(Resume(parked))
        else:
            self.host.arrivals.answer((self,), (found,))

    def _answer(self, response: Response, head: Head) -> tuple[int, bytes] | None:
        """Prepare an answer. Returns as `follow`."""
        descriptor = self.transport.descriptor
        if self.state is _ENDED or descriptor is None:
            return None  # Its server may have stopped before the write ended.
        if self.channel.is_open:
            self.end()  # In the midst of a body nothing can be told.
            return None
        self._keeps_alive = keep_alive = self.keeps_alive(head, response)
        parts, size = self.parts(response, head, keep_alive=keep_alive)
        if size > UNCOUNTED_BYTES:
            self._hand_to_task(Respond(head, response))
            return None
        data = b"".join(parts)
        self.shared.metrics.bytes_out += len(data)
        return descriptor, data

    def sent(self, answer: bytes, taken: int) -> None:
        """As `Arrived.sent`."""
        if taken < len(answer):
            self._hand_to_task(SendRemainder(answer[taken:], self._keeps_alive))
        elif not self.answered(self._keeps_alive):
            self.end()
        elif self.buffer or self.has_more:
            # In a later turn: a client that pipelines requests must not starve the others.
            self.host.reactor.advance_later(self)

    def _hand_to_task(self, continuation: Continuation) -> None:
        """Let its task go on, or a new one."""
        self.enter(_TASK_BUSY)
        if self.task is None:
            self.host.hand_to_task(self, continuation)
        else:
            self.task.go_on(continuation)

    # -- both ways ----------------------------------------------------------------------------

    def is_http2(self, raw: bytes) -> bool:
        """Whether the first head begins HTTP/2, and that is served."""
        is_new, self._is_new = self._is_new, False
        if is_new and raw == PREFACE_HEAD and self.shared.http2 is not None:
            return True  # Its first request is still to come.
        if is_new:
            self.host.has_sent_head(self)
        return False

    def comes_in_pieces(self, head: Head) -> bool:
        return head.method == "PUT" and self.shared.application.takes_pieces(head.path)

    def request(self, head: Head, body: bytes) -> Request:
        headers, scheme = head.fields.headers, self.shared.scheme
        return Request(
            head.method, head.path, head.query, headers, body,
            self.channel, scheme, None, self.client, self.count,
        )  # fmt: skip

    def keeps_alive(self, head: Head, response: Response) -> bool:
        return head.fields.keep_alive and not self.shared.draining and not response.close

    def answered(self, keep_alive: bool) -> bool:
        """Note that an answer was sent. Returns whether another request may follow."""
        if self.held.held:
            self.held.release()
        self.head = self.body = None
        if not keep_alive or self.shared.draining:
            return False
        self.enter(_IDLE if self.state is _ANSWERING else _TASK_IDLE)
        return True

    def take_in(self, data: bytes) -> None:
        self.buffer += data
        self.shared.metrics.bytes_in += len(data)

    def take_head(self) -> bytes | None:
        """The next request's head, or None if that has not come whole. Raises `ProblemError`."""
        if not self.buffer:
            return None
        head = take_head(self.buffer, self._searched, self.shared.config.max_header_bytes)
        self._searched = 0 if head is not None else max(0, len(self.buffer) - 3)
        if head is None and self.state is _IDLE:
            self.enter(_HEAD)
        elif head is None and self.state is _TASK_IDLE:
            self.enter(_TASK_HEAD)
        return head

    def whole_body(self, head: Head) -> bytes | None:
        """The body, or None if it comes in pieces or has not come whole. Raises `ProblemError`
        for one that is too large."""
        length = head.fields.content_length
        if length is None or self.comes_in_pieces(head):
            return None
        if length == 0:
            return b""
        limit = self.shared.config.max_body_bytes
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
        tail_head = self.shared.clock.tail_heads[response.audience]
        is_head = head is not None and head.method == "HEAD"
        is_http_1_0 = head is not None and head.fields.version == "1.0"
        return answer_parts(
            response, tail_head, is_head=is_head, keep_alive=keep_alive, is_http_1_0=is_http_1_0
        )
