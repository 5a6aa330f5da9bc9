"""Answers without waiting: to requests that are answered at once, and to writes once their outcome
is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVarTuple

import trio

from streamd.group.proposals import OutcomeUnknown, Settled
from streamd.http.access.rates import charge_answer
from streamd.http.protocol.application import Begun, Later
from streamd.http.protocol.messages import LateAnswer, LiveResponse, Parked, Request, Response
from streamd.http.protocol.refusals import REFUSALS, answer_to
from streamd.http.streams.writes import Write
from streamd.process.metrics import Metrics
from streamd.streams.commands import Command, Outcome

Args = TypeVarTuple("Args")
# As `GroupWrites.submit`.
Submit = Callable[[Command, int, Callable[[Settled], None]], object]

# The labels of the resources to which POST appends.
_APPENDS = frozenset(("stream", "batch"))


class Dispatcher:
    """Begins requests that need no waiting, and counts all answers in `metrics`. It proposes by
    `submit`, to the group or to the process that has it."""

    def __init__(
        self,
        metrics: Metrics,
        submit: Submit,
        answered: Callable[[Request, Response | LiveResponse], None] = lambda *_: None,
    ) -> None:
        """`answered` is called with each answer that is counted."""
        self._metrics = metrics
        self._submit = submit
        self._answered = answered

    def begin(
        self,
        request: Request,
        label: str,
        later: Later,
        prompt: Callable[[*Args], Response | Write | Parked | LateAnswer | None],
        *args: *Args,
    ) -> Response | Parked | Begun:
        """As `Application.begin`, by what `prompt` says for a resource with that label."""
        started = trio.current_time()
        try:
            begun = prompt(*args)
            if begun is None:
                return Begun.MUST_WAIT
            if isinstance(begun, Write):
                finish = partial(self._finish, begun.answer, request, label, started)
                self._submit(begun.command, begun.size, partial(later, finish))
                return Begun.UNDER_WAY
        except REFUSALS as error:
            begun = self.refusal(error)
        if isinstance(begun, (Response, LateAnswer)):
            self.count(request, label, begun, started)
        return begun

    def _finish(
        self,
        answer: Callable[[Outcome], Response],
        request: Request,
        label: str,
        started: float,
        settled: Settled,
    ) -> Response:
        """The answer to a write whose outcome is known, or can no longer be."""
        try:
            response = answer(settled.unwrap())
        except REFUSALS as error:
            response = self.refusal(error)
        self.count(request, label, response, started)
        return response

    def count(
        self,
        request: Request,
        label: str,
        response: Response | LiveResponse | LateAnswer,
        started: float,
    ) -> None:
        """Count the answer to a request that began at `started`, on Trio's clock, and charge it to
        its accounts."""
        metrics = self._metrics
        if isinstance(response, LateAnswer):
            response = response.answer
        elif request.accounts and request.method == "GET":
            charge_answer(request, response)
        if request.method == "POST" and label in _APPENDS and response.status < 300:
            metrics.append_latency.observe(trio.current_time() - started)
        metrics.request(label, request.method, response.status)
        self._answered(request, response)

    def refusal(self, error: Exception) -> Response:
        """The answer for one of `REFUSALS`."""
        if isinstance(error, OutcomeUnknown):
            self._metrics.outcomes_unknown += 1
        return answer_to(error)
