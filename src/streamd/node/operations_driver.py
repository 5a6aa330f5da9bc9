"""Carries an operation out, step by step, for as long as this node leads.

An attempt at a step is recorded in the log before it is made. So the next leader knows what may
have been done, looks for its effect, and only then tries again. The driver keeps nothing that the
next leader would miss: what to do next follows from the record and the cluster (`steering`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol

import structlog
import trio

from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.streams.operations import changes
from streamd.streams.operations.model import ON_HOST, Operation, Step, in_words
from streamd.streams.operations.planning import View
from streamd.streams.operations.steering import (
    Attempt,
    Complete,
    Conclude,
    Revise,
    Wait,
    next_action,
    patience_ms,
)

log = structlog.get_logger("streamd.operations")

# How often the cluster is looked at while an effect is awaited.
_LOOK_S = 0.5
# An attempt recorded longer ago than this is not made: another leader may have made its own.
_PROMPT_S = 5.0
# How often the result of an attempt is recorded again because an operator changed the record.
_CHANGES_MEANWHILE = 10


class DeedFailed(Exception):
    """A step could not be carried out, or its end was not seen; the message says why."""


class Surroundings(Protocol):
    """The replicated records and the cluster, as the leader has them."""

    def current(self) -> Operation | None:
        """The operation that has not ended, as applied by this node."""

    def now_ms(self) -> int:
        """Log time, in ms since the epoch."""

    def view(self) -> Awaitable[View]:
        """What is known of the cluster now."""

    def record(self, operation: Operation) -> Awaitable[bool]:
        """Put the next version of a record into the log. False if it is no longer the next one.
        Raises `Unavailable`, `OutcomeUnknown`."""

    def carry_out(self, step: Step) -> Awaitable[str]:
        """Do what a step says. Returns what only the operator can do, if so. Raises
        `DeedFailed`."""


class OperationsDriver:
    """Makes rounds over the current operation, each of which records at most one change."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._wake = trio.Event()

    def look_now(self) -> None:
        """A record was made or changed: do not wait for the next round."""
        self._wake.set()

    async def run(self) -> NoReturn:
        """Make rounds until cancelled."""
        while True:
            self._wake = trio.Event()
            try:
                goes_on = await self.make_round()
            except (Unavailable, OutcomeUnknown) as error:
                log.info("a round of the operation did not complete", why=str(error))
                goes_on = False
            if self._around.current() is None:
                await self._wake.wait()
            elif not goes_on:
                with trio.move_on_after(_LOOK_S):
                    await self._wake.wait()

    async def make_round(self) -> bool:
        """Look at the operation once, and do what comes next. Returns whether something was done.
        Raises `Unavailable`, `OutcomeUnknown`."""
        if self._around.current() is None:
            return False
        view = await self._around.view()
        operation = self._around.current()
        if operation is None:
            return False
        action, now_ms = next_action(operation, view), view.now_ms
        match action:
            case Wait(reason=reason):
                if reason != operation.why:
                    await self._around.record(changes.waiting(operation, reason, now_ms))
                return False
            case Attempt(incarnation=incarnation):
                await self._attempt(changes.attempted(operation, incarnation, now_ms))
                return True
            case Complete(note=note):
                changed = changes.completed(operation, note, now_ms)
            case Revise(steps=steps):
                changed = changes.revised(operation, steps, now_ms)
            case Conclude(state=state, why=why):
                changed = changes.ended(operation, state, why, view)
        if await self._around.record(changed):
            _log_progress(operation, changed)
        return True

    async def _attempt(self, attempt: Operation) -> None:
        """Record an attempt, and make it."""
        record = attempt.step
        assert record is not None, "there is a step to attempt"
        step = record.step
        began = trio.current_time()
        if not await self._around.record(attempt) or trio.current_time() - began > _PROMPT_S:
            return
        log.info("a step of an operation begins", step=in_words(step), attempt=record.attempts)
        try:
            with trio.fail_after(patience_ms(step.deed) / 1000):
                asked = await self._around.carry_out(step)
        except (DeedFailed, trio.TooSlowError) as error:
            why = str(error) or "it took too long"
            log.warning("a step of an operation failed", step=in_words(step), why=why)
            await self._note(attempt, lambda op, ms: changes.attempt_failed(op, why, ms))
            return
        if asked:
            await self._note(attempt, lambda op, ms: changes.asks_operator(op, asked, ms))
        elif step.deed in ON_HOST:
            await self._note(attempt, changes.carried_out)

    async def _note(
        self, attempt: Operation, change: Callable[[Operation, int], Operation]
    ) -> None:
        """Record what came of an attempt, on top of what operators have changed meanwhile."""
        assert attempt.step is not None, "there was a step to attempt"
        for _ in range(_CHANGES_MEANWHILE):
            now = self._around.current()
            is_same = (
                now is not None
                and now.step is not None
                and (
                    (now.operation_id, now.current, now.step.attempts)
                    == (attempt.operation_id, attempt.current, attempt.step.attempts)
                )
            )
            if not is_same:
                return
            assert now is not None, "it is the operation of the attempt"
            if await self._around.record(change(now, self._around.now_ms())):
                return


def _log_progress(before: Operation, after: Operation) -> None:
    if after.has_ended:
        log.info(
            "an operation has ended",
            operation=after.operation_id,
            kind=after.kind,
            state=after.state,
            why=after.why,
        )
    elif after.current > before.current and before.step is not None:
        log.info("a step of an operation is done", step=in_words(before.step.step))
