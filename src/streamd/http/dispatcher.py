"""Answers without waiting: to requests that are answered at once, and to writes once their outcome
is known.

Requests that came together are begun together. Their writes are proposed in runs: one proposal for
those of one kind that follow each other, and one pass that makes their answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVarTuple

import trio

from streamd.group.proposals import OutcomeUnknown, Settled
from streamd.http.access.rates import charge_answer
from streamd.http.protocol.application import Begun, Fate, Later
from streamd.http.protocol.messages import LateAnswer, LiveResponse, Parked, Request, Response
from streamd.http.protocol.refusals import REFUSALS, answer_to
from streamd.http.streams.writes import Again, Write
from streamd.process.metrics import Metrics
from streamd.streams.commands import Command, Outcome

Args = TypeVarTuple("Args")
# As `GroupWrites.submit`.
Submit = Callable[[Sequence[Command], int, Callable[[Sequence[Settled]], None]], object]

# The labels of the resources to which POST appends.
_APPENDS = frozenset(("stream", "batch"))
# A run ends with this many bytes: a log entry holds a few of them.
_MOST_BYTES = 256 * 1024


class Dispatcher:
    """Begins requests that need no waiting, and counts all answers in `metrics`. It proposes by
    `submit`, to the group or to the process that has it."""

    def __init__(
        self,
        metrics: Metrics,
        submit: Submit,
        answered: Callable[[Request, Response | LiveResponse], None] = lambda *_: None,
    ) -> None:
        """`answered` is called with each error that is counted."""
        self.submit = submit
        self._metrics = metrics
        self._answered = answered

    def begin(
        self,
        requests: Sequence[Request],
        later: Later,
        begin_one: Callable[[Request, Beginning], Fate],
        *,
        may_repeat: bool,
    ) -> Sequence[Fate]:
        """As `Application.begin`; `begin_one` finds out what a request asks for, and begins that.

        With `may_repeat` requests with one head are judged alike but for their bodies, so that the
        first one is judged for all.
        """
        beginning = Beginning(self, later, may_repeat=may_repeat)
        begun = beginning.begun
        for request in requests:
            if not beginning.repeats(request):
                try:
                    found = begin_one(request, beginning)
                except Exception as bug:
                    found = bug
                begun.append(found)
        beginning.propose()
        return begun

    def count(
        self,
        request: Request,
        label: str,
        response: Response | LiveResponse | LateAnswer,
        started: float,
    ) -> None:
        """Count the answer to a request that began at `started`, on Trio's clock, and charge it to
        its accounts."""
        if isinstance(response, LateAnswer):
            response = response.answer
        elif request.accounts and request.method == "GET":
            charge_answer(request, response)
        self.count_alike(label, request.method, {response.status: 1}, started)
        self.note(request, response)

    def note(self, request: Request, response: Response | LiveResponse) -> None:
        """Tell of an answer that is an error."""
        if response.status >= 400:
            self._answered(request, response)

    def count_alike(
        self, label: str, method: str, statuses: dict[int, int], started: float
    ) -> None:
        """Count answers to requests with one method for resources with one label, which began at
        `started`, by their status."""
        metrics = self._metrics
        for status, count in statuses.items():
            if method == "POST" and status < 300 and label in _APPENDS:
                metrics.append_latency.observe(trio.current_time() - started, count)
            metrics.request(label, method, status, count)

    def refusal(self, error: Exception) -> Response:
        """The answer for one of `REFUSALS`."""
        if isinstance(error, OutcomeUnknown):
            self._metrics.outcomes_unknown += 1
        return answer_to(error)


class Beginning:
    """Requests that are begun together, in their order. `begun` is what has become of each."""

    def __init__(self, dispatcher: Dispatcher, later: Later, *, may_repeat: bool) -> None:
        self.begun: list[Fate] = []
        self._dispatcher = dispatcher
        self._later = later
        self._may_repeat = may_repeat
        self._started = trio.current_time()
        self._run: _Run | None = None
        # The last request, if it was a write, and what makes the command of one with its head.
        self._last: Request | None = None
        self._again: Again | None = None

    def begin(
        self,
        request: Request,
        label: str,
        prompt: Callable[[*Args], Response | Write | Parked | LateAnswer | None],
        *args: *Args,
    ) -> Fate:
        """Begin the next request by what `prompt` says, for a resource with that label."""
        try:
            found = prompt(*args)
        except REFUSALS as error:
            found = self._dispatcher.refusal(error)
        if isinstance(found, Write):
            run = self._run
            if run is None or not run.takes(request, label, found.size):
                self.propose()
                run = self._run = _Run(self._dispatcher, request, label, found, self._started)
            run.add(len(self.begun), request, found.command, found.size, found.answer)
            if self._may_repeat:
                self._last, self._again = request, found.again
            return Begun.UNDER_WAY
        if found is None:
            return Begun.MUST_WAIT
        if isinstance(found, (Response, LateAnswer)):
            self._dispatcher.count(request, label, found, self._started)
        return found

    def repeats(self, request: Request) -> bool:
        """Begin the next request as the last one, if it differs in nothing but its body."""
        last, run = self._last, self._run
        if last is None or run is None or self._again is None:
            return False
        # The values of one head that was parsed once.
        if request.headers is not last.headers or request.path is not last.path:
            return False
        if request.query is not last.query or request.method is not last.method:
            return False
        if bool(request.body) != bool(last.body) or run.size > _MOST_BYTES:
            return False
        command = self._again(request.body)
        if command is None:
            return False
        request.identity = last.identity
        run.add(len(self.begun), request, command, len(command.data), run.answers[-1])
        self.begun.append(Begun.UNDER_WAY)
        return True

    def propose(self) -> None:
        """Propose the run."""
        run, self._run = self._run, None
        self._last = None
        if run is None:
            return
        try:
            tell = partial(self._later, run.places, run.finish)
            self._dispatcher.submit(run.commands, run.size, tell)
        except REFUSALS as error:
            for place, answer in zip(run.places, run.refused(error), strict=True):
                self.begun[place] = answer
        except Exception as bug:
            for place in run.places:
                self.begun[place] = bug


class _Run:
    """Writes that are proposed together: of one method, for resources with one label, and all with
    bytes or all without."""

    def __init__(
        self, dispatcher: Dispatcher, first: Request, label: str, write: Write, started: float
    ) -> None:
        self.places: list[int] = []
        self.commands: list[Command] = []
        self.answers: list[Callable[[Any, Outcome], Response]] = []
        self.size = 0
        self._requests: list[Request] = []
        self._dispatcher = dispatcher
        self._method = first.method
        self._label = label
        self._brings_bytes = write.size > 0
        self._started = started

    def takes(self, request: Request, label: str, size: int) -> bool:
        """Whether a write of so many bytes may be in it."""
        is_alike = request.method == self._method and label == self._label
        return is_alike and (size > 0) is self._brings_bytes and self.size <= _MOST_BYTES

    def add(
        self,
        place: int,
        request: Request,
        command: Command,
        size: int,
        answer: Callable[[Any, Outcome], Response],
    ) -> None:
        """Add the write of the request at a place."""
        self.places.append(place)
        self._requests.append(request)
        self.commands.append(command)
        self.answers.append(answer)
        self.size += size

    def finish(self, settled: Sequence[Settled]) -> Sequence[Response | Exception]:
        """The answers to writes whose outcomes are known, or can no longer be."""
        dispatcher = self._dispatcher
        found: list[Response | Exception] = []
        statuses: dict[int, int] = {}
        for request, command, answer, one in zip(
            self._requests, self.commands, self.answers, settled, strict=True
        ):
            try:
                if isinstance(one, Outcome):
                    response = answer(command, one)
                else:
                    response = dispatcher.refusal(one)
            except REFUSALS as error:
                response = dispatcher.refusal(error)
            except Exception as bug:
                found.append(bug)
                continue
            found.append(response)
            statuses[response.status] = statuses.get(response.status, 0) + 1
            if response.status >= 400:
                dispatcher.note(request, response)
        dispatcher.count_alike(self._label, self._method, statuses, self._started)
        return found

    def refused(self, error: Exception) -> Sequence[Response | Exception]:
        """The answers to writes that were not proposed, for one of `REFUSALS`."""
        dispatcher = self._dispatcher
        answers = []
        for request in self._requests:
            answers.append(dispatcher.refusal(error))
            dispatcher.count(request, self._label, answers[-1], self._started)
        return answers
