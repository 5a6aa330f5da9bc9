"""The group's process at work for one worker: proposes its commands, and answers what it forwards.

A forwarded request gets to the same application as any other. Its response goes back in pieces, of
which a client that receives slowly leaves only a few on their way (`WINDOW_BYTES`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import trio

from streamd.group.group import Group
from streamd.group.proposals import OutcomeUnknown, Settled, Unavailable
from streamd.http.door.parking import wait
from streamd.http.protocol.application import Application, Begun, BugGuard, Fate, Make
from streamd.http.protocol.connections import Buffer, ClientGone, ConnectionCount
from streamd.http.protocol.messages import Audience, LiveResponse, Parked, Request, Response
from streamd.http.protocol.wire import body_parts
from streamd.http.sockets.outgoing import FULL, UNCOUNTED_BYTES, Outgoing, OutgoingFull
from streamd.http.streams.recent_answers import MAX_BODY_BYTES
from streamd.process.metrics import Metrics
from streamd.streams.commands import Outcome
from streamd.workers.link import Link
from streamd.workers.messages import (
    Answer,
    AnswerNow,
    Began,
    BodyPiece,
    Closed,
    Commands,
    Counted,
    Ended,
    Failures,
    Forward,
    FromWorker,
    Gone,
    MoreBody,
    Outcomes,
    Piece,
    Ready,
    Sent,
    TlsLoaded,
)
from streamd.workers.versions import Stamp, Versions

# How much of one response may be on its way to its client's socket.
WINDOW_BYTES = 256 * 1024
PIECE_BYTES = 64 * 1024
# Larger answers wait for room in the link.
_SMALL_BYTES = 8 * 1024


class Desk:
    """Takes one worker's messages. Requests that wait do so in `nursery`, which outlives the
    worker: a handler ends by itself when its client is gone."""

    def __init__(
        self,
        link: Link[FromWorker],
        application: Application,
        groups: Mapping[int, Group],
        metrics: Metrics,
        outgoing: Outgoing,
        versions: Versions | None,
        fatal: tuple[type[BaseException], ...],
        nursery: trio.Nursery,
        ready: Callable[[], None],
        tls_loaded: Callable[[Sequence[str], str | None], None],
    ) -> None:
        """Without `versions` the worker keeps no answers. `ready` is called when it listens, and
        `tls_loaded` as `TlsFiles.on_load`."""
        self.link = link
        self.outgoing = outgoing
        self.is_ready = False
        self.connections = 0
        self.news = 0  # How often the worker has shown that it lives.
        self._application = application
        self._groups = groups
        self._metrics = metrics
        self._versions = versions
        self._guard = BugGuard(fatal, ClientGone)
        self._nursery = nursery
        self._ready = ready
        self._tls_loaded = tls_loaded
        self._outcomes: list[tuple[int, Outcome]] = []
        self._failures: list[tuple[int, str, bool]] = []
        self._event: Piece | None = None
        self._exchanges: dict[int, Exchange] = {}
        self._connections: dict[int, ConnectionCount] = {}
        link.before_write.append(self._send_outcomes)

    async def serve(self) -> None:
        """Serve until the worker ends its side. Its clients are gone then."""
        try:
            await self.link.run(self._take)
        finally:
            for exchange in self._exchanges.values():
                exchange.leave()
            for connection in self._connections.values():
                connection.close()

    def _take(self, message: FromWorker) -> None:
        match message:
            case Commands():
                self._submit(message)
            case Forward():
                self._begin(message)
            case Counted():
                self._count(message)
            case Closed():
                self._connections.pop(message.connection).close()
            case Ready():
                self.is_ready = True
                self._ready()
            case TlsLoaded():
                self._tls_loaded(message.files, message.error)
            case _:
                # A response may have ended while this was on its way.
                if (exchange := self._exchanges.get(message.number)) is not None:
                    exchange.take(message)

    # -- commands -----------------------------------------------------------------------------

    def _submit(self, message: Commands) -> None:
        group = self._groups[message.group_id]
        for number, (command, size) in enumerate(message.commands, message.first):
            try:
                group.writes.submit([command], size, partial(self._settle, number))
            except Unavailable as error:
                self._settle(number, [error])

    def _settle(self, number: int, settled: Sequence[Settled]) -> None:
        [found] = settled
        if isinstance(found, Outcome):
            self._outcomes.append((number, found))
        else:
            self._failures.append((number, str(found), isinstance(found, OutcomeUnknown)))
        self.link.wake()

    def _send_outcomes(self) -> None:
        if self._outcomes:
            outcomes, self._outcomes = self._outcomes, []
            self.link.send(Outcomes(outcomes))
        if self._failures:
            failures, self._failures = self._failures, []
            self.link.send(Failures(failures))

    # -- forwarded requests -------------------------------------------------------------------

    def _begin(self, forward: Forward) -> None:
        """Answer a request, at once if that is possible."""
        connection = self._connections.get(forward.connection)
        if connection is None:
            connection = self._connections[forward.connection] = ConnectionCount(
                forward.certificate
            )
        exchange = self._exchanges[forward.number] = Exchange(self, forward, connection)
        if forward.pieces:
            self._nursery.start_soon(self._handle, exchange)
            return
        begun = self._guard.call(forward.method, exchange.begin, self._application)
        if isinstance(begun, Exception):
            begun = self._guard.answer(forward.method, begun)
        if begun is Begun.MUST_WAIT:
            self._nursery.start_soon(self._handle, exchange)
        elif isinstance(begun, Response) and _size(begun) <= _SMALL_BYTES and self.link.has_room:
            self.answer(forward, begun, self._stamp(exchange.request, begun))
        elif begun is not Begun.UNDER_WAY:
            self._nursery.start_soon(self._respond, exchange, begun)

    def make_answer(self, exchange: Exchange, make: Make, argument: Any) -> None:
        """Send the answer to a request that was under way."""
        method = exchange.forward.method
        answer = self._guard.call(method, lambda: make(argument)[0])
        if isinstance(answer, Exception):
            answer = self._guard.answer(method, answer)
        assert isinstance(answer, Response), "only workers forward"
        self.answer(exchange.forward, answer)

    async def _handle(self, exchange: Exchange) -> None:
        handling = self._application.handle(exchange.request)
        try:
            found = await self._guard.wait(exchange.forward.method, handling)
        except ClientGone:
            self.end(exchange, whole=False)
        else:
            await self._respond(exchange, found)

    async def _respond(
        self, exchange: Exchange, found: Response | LiveResponse | Parked | None
    ) -> None:
        """Send a response, whole or in pieces, once there is one."""
        forward = exchange.forward
        method, is_live, whole = forward.method, isinstance(found, LiveResponse), False
        try:
            if isinstance(found, LiveResponse):
                self.link.send(Began(forward.number, found.status, found.head, found.length))
                found = await self._guard.wait(method, found.run(exchange))
            while found is not None and not isinstance(found, Response):
                assert not isinstance(found, LiveResponse), "it has begun by now"
                # The worker ends those that have begun itself.
                scope = None if is_live else exchange.waiting()
                waiting = wait(self._application, found, exchange, scope)
                found = await self._guard.wait(method, waiting)
            if found is None:
                await exchange.flush()
                whole = True
            elif not is_live:  # In the midst of a body nothing can be told.
                whole = await self._send_answer(exchange, found)
        except ClientGone:
            pass
        finally:
            self.end(exchange, whole=whole)

    async def _send_answer(self, exchange: Exchange, response: Response) -> bool:
        """Send an answer. Returns whether it was sent whole. Raises `ClientGone`."""
        parts, size = body_parts(response.body)
        is_small = size <= PIECE_BYTES or exchange.forward.method == "HEAD"
        if is_small or response.close or response.audience is not Audience.ANYONE:
            await self.link.room()
            self.answer(exchange.forward, response)
            return True
        return await self._send_large(exchange, response, parts, size)

    async def _send_large(
        self, exchange: Exchange, response: Response, parts: Sequence[Buffer], size: int
    ) -> bool:
        """As `_send_answer`, in pieces."""
        assert size > PIECE_BYTES >= UNCOUNTED_BYTES
        forward = exchange.forward
        try:
            with self.outgoing.holding(parts, size, forward.client):
                self.link.send(Began(forward.number, response.status, response.head, size))
                for part in parts:
                    await exchange.send(part)
                return True
        except OutgoingFull:
            self.answer(forward, FULL)
            return False

    def _stamp(self, request: Request, response: Response) -> Stamp | None:
        """The stamp of an answer that was made in this moment, if the worker may keep it. One that
        has waited since, for room in the link or for the group, may show an earlier state; and each
        that someone has to pay for is made here."""
        if (
            request.accounts
            or not response.shows
            or self._versions is None
            or _size(response) > MAX_BODY_BYTES
        ):
            return None
        return self._versions.stamp(response.shows)

    def answer(self, forward: Forward, response: Response, stamp: Stamp | None = None) -> None:
        """Send a whole answer, which ends the request."""
        if self._exchanges.pop(forward.number, None) is None:
            return
        body = b"".join(body_parts(response.body)[0])
        self.link.send(
            Answer(
                forward.number,
                response.status,
                response.head,
                body,
                response.close,
                response.audience,
                stamp,
            )
        )

    def end(self, exchange: Exchange, *, whole: bool) -> None:
        """End a response that was sent in pieces; nothing if it was answered whole."""
        if self._exchanges.pop(exchange.forward.number, None) is not None:
            self.link.send(Ended(exchange.forward.number, whole))

    def send_event(self, number: int, data: bytes) -> None:
        """Send a piece of a live response. The same event for many readers is sent once."""
        event = self._event
        if event is not None and event.data is data and self.link.last is event:
            event.numbers.append(number)
        else:
            self._event = Piece([number], data)
            self.link.send_growing(self._event)

    # -- counts -------------------------------------------------------------------------------

    def _count(self, counted: Counted) -> None:
        self.news += 1
        self.connections = counted.connections
        metrics = self._metrics
        for route, method, status, count in counted.requests:
            metrics.request(route, method, status, count)
        metrics.append_latency.add(*counted.append_latency)
        metrics.bytes_in += counted.bytes_in
        metrics.bytes_out += counted.bytes_out
        metrics.outcomes_unknown += counted.outcomes_unknown


class Exchange:
    """A forwarded request, the `Channel` to its client, and its `IncomingBody`."""

    def __init__(self, desk: Desk, forward: Forward, connection: ConnectionCount) -> None:
        self.forward = forward
        self.length = forward.length
        self.request = Request(
            forward.method,
            forward.path,
            forward.query,
            forward.headers,
            forward.body,
            self,
            forward.scheme,
            self if forward.pieces else None,
            forward.client,
            connection,
        )
        self._desk = desk
        self._window = WINDOW_BYTES
        self._left = b""
        self._gone = False
        self._answers_now = False
        self._waiting: trio.CancelScope | None = None
        self._piece = b""
        self._body_wanted = False
        self._body_ended = False
        self._news = trio.lowlevel.ParkingLot()

    def begin(self, application: Application) -> Fate:
        """Let the application begin the request."""

        def later(_: Sequence[int], make: Make, argument: Any) -> None:
            self._desk.make_answer(self, make, argument)

        [begun] = application.begin([self.request], later)
        return begun

    def take(self, message: BodyPiece | Sent | Gone | AnswerNow) -> None:
        """Take news of the client."""
        match message:
            case BodyPiece():
                self._piece = message.data
                self._body_wanted, self._body_ended = False, not message.data
            case Sent():
                self._window += message.size
            case Gone():
                self._gone = True
            case AnswerNow():
                self._answers_now = True
                if self._waiting is not None:
                    self._waiting.cancel()
        self._news.unpark_all()

    def waiting(self) -> trio.CancelScope:
        """A scope for a wait that ends when the worker asks for the answer now."""
        self._waiting = trio.CancelScope()
        if self._answers_now:
            self._waiting.cancel()
        return self._waiting

    def leave(self) -> None:
        """The client has left."""
        self._gone = True
        self._news.unpark_all()

    # -- as a channel -------------------------------------------------------------------------

    def try_send(self, data: bytes) -> bool:
        if self._left or self._gone or len(data) > self._window or not self._desk.link.has_room:
            self._left += data
            return False
        self._window -= len(data)
        self._desk.send_event(self.forward.number, data)
        return True

    def piece(self, data: bytes) -> tuple[int, bytes] | None:
        return None  # There is no socket here.

    def keep(self, rest: bytes) -> None:
        self._left = rest

    async def flush(self) -> None:
        left, self._left = self._left, b""
        await self._send(left)

    async def send(self, data: Buffer) -> None:
        await self.flush()
        await self._send(data)

    async def _send(self, data: Buffer) -> None:
        """Send as the client takes it. Raises `ClientGone`."""
        view = memoryview(data)
        while view:
            while not self._window and not self._gone:
                await self._news.park()
            await self._desk.link.room()
            if self._gone:
                raise ClientGone
            piece = view[: min(PIECE_BYTES, self._window)]
            self._window -= len(piece)
            self._desk.link.send(Piece([self.forward.number], bytes(piece)))
            view = view[len(piece) :]

    async def wait_disconnected(self) -> None:
        while not self._gone:
            await self._news.park()

    # -- as a body in pieces ------------------------------------------------------------------

    async def receive(self) -> bytes:
        if not self._body_ended and not self._body_wanted:
            self._body_wanted = True
            self._desk.link.send(MoreBody(self.forward.number))
        while self._body_wanted and not self._gone:
            await self._news.park()
        if self._gone:
            raise ClientGone
        piece, self._piece = self._piece, b""
        return piece


def _size(response: Response) -> int:
    return body_parts(response.body)[1]
