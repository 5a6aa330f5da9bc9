"""A worker's application: what it can do without the state it does, everything else it forwards.

It judges writes by the same functions as the group's process, and sends their commands there in
batches. It keeps answers to reads for as long as their stamps hold (`versions`). Every other
request goes to the group's process whole, and comes back as a response, whole or in pieces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

import trio

from streamd.config.settings import ServerConfig
from streamd.group.proposals import OutcomeUnknown, Settled, unavailable
from streamd.http.access.page_guards import StreamGuard
from streamd.http.application import check_coding
from streamd.http.dispatcher import Beginning, Dispatcher
from streamd.http.protocol.application import Begun, Fate, Later, Make
from streamd.http.protocol.connections import Channel, ClientGone, ConnectionCount
from streamd.http.protocol.messages import LiveResponse, Parked, Request, Response
from streamd.http.protocol.routing import StreamRoute, Target, takes_pieces
from streamd.http.router import RESOURCES, find
from streamd.http.routes import Judge
from streamd.http.streams.writes import Write
from streamd.process.metrics import Metrics
from streamd.protocol.headers import IF_NONE_MATCH
from streamd.protocol.problems import ProblemError
from streamd.streams.checks import payload_bytes
from streamd.streams.commands import Command
from streamd.workers.link import Link
from streamd.workers.messages import (
    Answer,
    AnswerNow,
    Began,
    BodyPiece,
    Closed,
    Commands,
    Ended,
    Failures,
    Forward,
    Gone,
    MoreBody,
    Outcomes,
    Piece,
    Sent,
    ToWorker,
)
from streamd.workers.versions import Stamp, VersionsView

MAX_KEPT = 4096
# After so many bytes the group's process hears what a client has taken: a part of the window.
_REPORTED_BYTES = 64 * 1024
_LONG_S = 3600.0
# So many do not wait for more.
MANY_COMMANDS = 256


class WorkerApplication:
    """The `Application` of a worker. `count` sends the group's process what was counted."""

    def __init__(
        self,
        link: Link[ToWorker],
        versions: VersionsView,
        metrics: Metrics,
        server: ServerConfig,
        group_id: int,
        count: Callable[[], None],
        *,
        authenticates: bool,
    ) -> None:
        self.link = link
        self._versions = versions
        self._metrics = metrics
        self._count = count
        # A redirect depends on who leads, and who may do what on the tokens in the state.
        self._judges = not authenticates and server.non_leader == "forward"
        self.proposer = Proposer(link, group_id)
        self._dispatcher = Dispatcher(metrics, self.proposer.submit)
        self._guard = StreamGuard(server, requires_tokens=authenticates)
        self._kept: dict[tuple[str, bytes, bytes], tuple[Response, Stamp]] = {}
        self._exchanges: dict[int, Exchange] = {}
        self._next_number = 0
        self._connections: dict[ConnectionCount, int] = {}
        self._last_connection = 0
        self.is_ending = False

    def takes_pieces(self, path: bytes) -> bool:
        return takes_pieces(path)

    def refusal(self, request: Request) -> Response | None:
        """None: the group's process refuses it, once the body has come."""
        return None

    async def foreseen(self, request: Request) -> Response | None:
        """None: the group's process foresees it, once the body has come."""
        return None

    def begin(self, requests: Sequence[Request], later: Later) -> Sequence[Fate]:
        """As `Application.begin`."""
        # Then the writes are judged here, and none is charged to anybody.
        may_repeat = self._judges and not self._versions.has_limits
        begin_one = partial(self._begin, later)
        return self._dispatcher.begin(requests, later, begin_one, may_repeat=may_repeat)

    def _begin(self, later: Later, request: Request, beginning: Beginning) -> Fate:
        method, place = request.method, len(beginning.begun)
        if self._is_suspect(request):
            return self._exchange(request).begin(place, later)
        if method in ("GET", "HEAD"):
            if (kept := self._kept_answer(request)) is not None:
                return kept
        elif self._judges and not self._versions.has_limits:
            found = find(request.path)
            route = found.resource.routes.get(method)
            if route is not None and (judge := route.handler.judge) is not None:
                label = found.resource.label
                return beginning.begin(request, label, _judged, judge, request, found.target)
            return Begun.MUST_WAIT
        return self._exchange(request).begin(place, later)

    def _is_suspect(self, request: Request) -> bool:
        """Whether the group's process must judge this: if it is for a stream, it is refused."""
        try:
            self._guard.check(request)
        except ProblemError:
            return True
        return False

    def _kept_answer(self, request: Request) -> Response | None:
        kept = self._kept.get((request.method, request.path, request.query))
        if kept is None or IF_NONE_MATCH.key in request.headers:
            return None
        response, stamp = kept
        if not self._versions.holds(stamp):
            return None
        self._metrics.request(RESOURCES[StreamRoute].label, request.method, response.status)
        return response

    def keep(self, request: Request, response: Response, stamp: Stamp) -> None:
        """Keep an answer for as long as the stamp holds."""
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[request.method, request.path, request.query] = response, stamp

    async def handle(self, request: Request) -> Response | LiveResponse | Parked:
        """Let the group's process answer. As `Application.handle`; raises what receiving the
        request's body does, too."""
        return await self._exchange(request).handle()

    def resume(self, parked: Parked) -> Response | Parked | None:
        """As `Application.resume`."""
        return parked.resume()

    async def go_on(self, parked: Parked) -> Response | LiveResponse | Parked | None:
        """As `Application.go_on`."""
        return await parked.go_on()

    def _exchange(self, request: Request) -> Exchange:
        if find(request.path).resource.is_operation:
            self._count()  # It may ask for metrics.
        self._next_number += 1
        exchange = self._exchanges[self._next_number] = Exchange(self, self._next_number, request)
        return exchange

    def forget(self, number: int, *, gone: bool) -> None:
        """End an exchange; `gone` says that the group's process has not ended it."""
        if self._exchanges.pop(number, None) is not None and gone:
            self.link.send(Gone(number))

    def number_of(self, connection: ConnectionCount) -> int:
        """The number of a connection, by which the group's process knows it until it is closed."""
        number = self._connections.get(connection)
        if number is None:
            self._last_connection += 1
            number = self._connections[connection] = self._last_connection
            connection.on_close = self._closed
        return number

    def _closed(self, connection: ConnectionCount) -> None:
        self.link.send(Closed(self._connections.pop(connection)))

    def end_live_responses(self) -> None:
        """End all live responses at once: this worker stops, the group's process does not."""
        self.is_ending = True
        for exchange in self._exchanges.values():
            exchange.stop()

    def take(self, message: ToWorker) -> None:
        """Take a message of the group's process."""
        match message:
            case Outcomes() | Failures():
                self.proposer.take(message)
            case Piece():
                for number in message.numbers:
                    if (exchange := self._exchanges.get(number)) is not None:
                        exchange.deliver(message.data)
            case Answer() | Began() | Ended() | MoreBody():
                if (exchange := self._exchanges.get(message.number)) is not None:
                    exchange.take(message)
            case _:
                raise AssertionError(message)


def _may_be_live(request: Request) -> bool:
    """Whether a request may wait for long, so that the group's process must know when its client
    disconnects. True also for some that do not."""
    query = request.query
    return b"live" in query or (b"%" in query and b"live" in unquote_to_bytes(query))


def _judged(judge: Judge, request: Request, target: Target | None) -> Write | None:
    check_coding(request)
    return judge(request, target)


class Proposer:
    """Sends commands to the group, many in one message: each message makes the group's process
    write to its disk, which costs many times what a command does.

    Clients that got their answers in one turn ask again in the next few. So commands gather while
    each turn brings more of them.
    """

    def __init__(self, link: Link[ToWorker], group_id: int) -> None:
        self._link = link
        self._group_id = group_id
        self._commands: list[tuple[Command, int]] = []
        self._runs: dict[int, _Unsettled] = {}
        self._next_number = 0
        self._began = trio.lowlevel.ParkingLot()

    def submit(
        self, commands: Sequence[Command], size: int, tell: Callable[[Sequence[Settled]], None]
    ) -> None:
        """As `GroupWrites.submit`, which may still refuse: then `tell` gets the `Unavailable`."""
        if not self._commands:
            self._began.unpark()
        run = _Unsettled(self._next_number, len(commands), tell)
        for command in commands:
            self._commands.append((command, payload_bytes(command)))
            self._runs[self._next_number] = run
            self._next_number += 1

    async def run(self) -> None:
        """Send commands until cancelled."""
        while True:
            if not self._commands:
                await self._began.park()
            gathered = 0
            while gathered < len(self._commands) < MANY_COMMANDS:
                gathered = len(self._commands)
                await trio.lowlevel.checkpoint()
            self._send()

    def _send(self) -> None:
        commands, self._commands = self._commands, []
        with self._link:
            first = self._next_number - len(commands)
            self._link.send(Commands(self._group_id, first, commands))

    def take(self, message: Outcomes | Failures) -> None:
        """Tell what has become of commands."""
        if isinstance(message, Outcomes):
            for number, value in message.outcomes:
                self._runs.pop(number).settle(number, value)
            return
        for number, why, is_unknown in message.failures:
            error = OutcomeUnknown(why) if is_unknown else unavailable(why)
            self._runs.pop(number).settle(number, error)


class _Unsettled:
    """Commands, numbered from `first` on, until it is known what has become of each: that is for
    `tell`, all of it at once."""

    def __init__(self, first: int, count: int, tell: Callable[[Sequence[Settled]], None]) -> None:
        self._first = first
        self._settled: list[Settled] = [OutcomeUnknown()] * count
        self._left = count
        self._tell = tell

    def settle(self, number: int, value: Settled) -> None:
        """Note what has become of the command with that number."""
        self._settled[number - self._first] = value
        self._left -= 1
        if not self._left:
            self._tell(self._settled)


class Exchange:
    """A forwarded request and its response; a `Parked` while a live one waits for more."""

    def __init__(self, application: WorkerApplication, number: int, request: Request) -> None:
        self._application = application
        self._link = application.link
        self._number = number
        self._request = request
        self._later: Callable[[Make, None], None] | None = None
        self._answer: Answer | Began | None = None
        self._whole: bool | None = None  # Once it has ended.
        self._wanted = False  # The handler waits for a piece of the request's body.
        self._stopped = False
        self._pieces: deque[bytes] = deque()
        self._unreported = 0
        self._channel: Channel | None = None  # Of a body in pieces.
        self._wake: Callable[[Any], None] | None = None  # While it waits.

    # -- the request --------------------------------------------------------------------------

    def begin(self, place: int, later: Later) -> Parked | Begun:
        """Forward the request at that place; `later` gets the answer, unless this waits for it as a
        `Parked`: so its client's leaving is noticed."""
        self._forward()
        if _may_be_live(self._request):
            return self
        self._later = partial(later, (place,))
        return Begun.UNDER_WAY

    async def handle(self) -> Response | LiveResponse | Parked:
        """Forward the request, and wait for the answer, unless a `Parked` can."""
        self._forward()
        incoming = self._request.incoming
        if incoming is None and _may_be_live(self._request):
            return self
        answered = False
        try:
            while self._answer is None and self._whole is None:
                if self._wanted and incoming is not None:
                    self._wanted = False
                    self._link.send(BodyPiece(self._number, await incoming.receive()))
                else:
                    await self._wait()
            answered = True
        finally:
            if not answered:
                self._forget()
        return self._made()

    def _forward(self) -> None:
        request, incoming = self._request, self._request.incoming
        self._link.send(
            Forward(
                self._number,
                request.method,
                request.path,
                request.query,
                request.headers,
                request.body,
                request.scheme,
                request.client,
                incoming is not None,
                None if incoming is None else incoming.length,
                self._application.number_of(request.connection),
                request.connection.certificate,
            )
        )
        if self._application.is_ending:
            self.stop()

    def _made(self) -> Response | LiveResponse:
        """The answer that has come. Raises `ClientGone` if the request ended without."""
        answer = self._answer
        if isinstance(answer, Began):
            head, length = answer.head, answer.length
            return LiveResponse(answer.status, head, self._run, length, self._forget)
        self._forget()
        if answer is None:
            raise ClientGone
        response = Response(answer.status, answer.head, answer.body, answer.close, answer.audience)
        if answer.stamp is not None:
            self._application.keep(self._request, response, answer.stamp)
        return response

    # -- a response in pieces -----------------------------------------------------------------

    async def _run(self, channel: Channel) -> Parked | None:
        """Pass on the pieces of a body. Raises `ClientGone`, also if it breaks off."""
        self._channel = channel
        assert isinstance(self._answer, Began)
        is_parked = False
        try:
            while await self._pass_on(channel) is not None:
                if self._answer.length is None:
                    is_parked = True  # No task until a socket is full, or the end.
                    return self
                await self._wait()
            return None
        finally:
            if not is_parked:
                self._forget()

    async def go_on(self) -> Response | LiveResponse | Parked | None:
        if self._channel is not None:
            return await self._pass_on(self._channel)
        if self._answer is None and self._whole is None:
            return self
        return self._made()

    async def _pass_on(self, channel: Channel) -> Parked | None:
        """Send what has come. Returns None at the end."""
        goes_on = False
        try:
            await channel.flush()
            while self._pieces:
                piece = self._pieces.popleft()
                await channel.send(piece)
                self._report(len(piece))
            goes_on = self._whole is None and not self._stopped
            if self._whole is False:
                raise ClientGone
        finally:
            if not goes_on:
                self._forget()
        return self if goes_on else None

    @property
    def deadline(self) -> float:
        """The handler has the deadlines: this only may not be infinite."""
        return trio.current_time() + _LONG_S

    def park(self, wake: Callable[[Parked], None]) -> None:
        self._wake = wake
        is_answered = self._answer is not None and self._channel is None
        if is_answered or self._pieces or self._whole is not None or self._stopped:
            self._tell()

    def resume(self) -> Response | Parked | None:
        answer = self._made() if isinstance(self._answer, Answer) else None
        return answer if isinstance(answer, Response) else None

    def abandon(self) -> None:
        self._forget()

    def deliver(self, data: bytes) -> None:
        """Take a piece of the body. Write it at once if nothing else is to be written."""
        if self._wake is None or self._channel is None or self._pieces:
            self._pieces.append(data)
        else:
            self._report(len(data))
            if self._channel.try_send(data):
                return
        self._tell()

    def _report(self, size: int) -> None:
        self._unreported += size
        if self._unreported >= _REPORTED_BYTES:
            self._link.send(Sent(self._number, self._unreported))
            self._unreported = 0

    # -- news ---------------------------------------------------------------------------------

    def take(self, message: Answer | Began | Ended | MoreBody) -> None:
        """Take news of the handler."""
        match message:
            case Answer() | Began():
                self._answer = message
                if self._application.is_ending:
                    self.stop()
            case Ended():
                self._whole = message.whole
            case MoreBody():
                self._wanted = True
        if self._later is not None and not isinstance(message, MoreBody):
            later, self._later = self._later, None
            later(lambda _: (self._made(),), None)
        self._tell()

    def stop(self) -> None:
        """End a live response at the next event, and one that waits for news now."""
        if isinstance(self._answer, Began) and self._answer.length is None:
            self._stopped = True
            self._tell()
        elif self._answer is None:
            self._link.send(AnswerNow(self._number))

    async def _wait(self) -> None:
        """Wait for news in this task."""
        with trio.CancelScope() as scope:
            self._wake = lambda _: scope.cancel()
            await trio.sleep_forever()

    def _tell(self) -> None:
        if self._wake is not None:
            wake, self._wake = self._wake, None
            wake(self)

    def _forget(self) -> None:
        ended = self._whole is not None or isinstance(self._answer, Answer)
        self._application.forget(self._number, gone=not ended)
