"""The changes of an operation's record: each makes the next version of it.

The log takes a version only if it follows the one that the state has. So of two changes that were
made from the same record, one is without effect, and is made again from what the other left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from msgspec.structs import replace

from streamd.streams.operations.model import (
    MAX_TEXT_BYTES,
    Arguments,
    Kind,
    Operation,
    Step,
    StepRecord,
)
from streamd.streams.operations.planning import Refused, View


def begin(
    operation_id: int,
    kind: Kind,
    arguments: Arguments,
    steps: Iterable[Step],
    *,
    by: str,
    now_ms: int,
) -> Operation:
    """The first record of an operation."""
    return Operation(
        operation_id,
        1,
        kind,
        arguments,
        clipped(by),
        now_ms,
        tuple(StepRecord(step) for step in steps),
        changed_at_ms=now_ms,
    )


# -- by the driver ---------------------------------------------------------------------------------


def attempted(operation: Operation, incarnation: int, now_ms: int) -> Operation:
    """Record that an attempt at the current step is about to be made."""
    record = _current(operation)
    record = replace(
        record,
        attempts=record.attempts + 1,
        begun_at_ms=record.begun_at_ms or now_ms,
        attempted_at_ms=now_ms,
        incarnation=incarnation,
        confirmed=False,
        note="",
        asks=False,
    )
    return _with_step(operation, record, now_ms, state="running", why="")


def carried_out(operation: Operation, now_ms: int) -> Operation:
    """Record that the host did what it was asked; the effect may take a while to show."""
    return _with_step(operation, replace(_current(operation), confirmed=True), now_ms)


def attempt_failed(operation: Operation, note: str, now_ms: int) -> Operation:
    """Record that the attempt ended with an error. It may have taken effect all the same."""
    return _with_step(operation, replace(_current(operation), note=clipped(note)), now_ms)


def asks_operator(operation: Operation, what: str, now_ms: int) -> Operation:
    """Record that the operator must do the step, and `what` that is."""
    record = replace(_current(operation), note=clipped(what), asks=True)
    asked = _with_step(operation, record, now_ms)
    return asked if operation.state == "paused" else _waiting_for_operator(asked)


def _waiting_for_operator(operation: Operation) -> Operation:
    return replace(operation, state="waiting_for_operator", why=_current(operation).note)


def completed(operation: Operation, note: str, now_ms: int) -> Operation:
    """Record that the current step is done."""
    record = _current(operation)
    record = replace(
        record,
        begun_at_ms=record.begun_at_ms or now_ms,
        ended_at_ms=now_ms,
        note=clipped(note) or ("" if record.asks else record.note),
        asks=False,
    )
    done = _with_step(operation, record, now_ms)
    if operation.state != "paused":
        done = replace(done, state="running", why="")
    return replace(done, current=operation.current + 1)


def revised(operation: Operation, steps: Iterable[Step], now_ms: int) -> Operation:
    """Replace the steps from the current one on."""
    done = operation.steps[: operation.current]
    return _next(operation, now_ms, steps=(*done, *(StepRecord(step) for step in steps)))


def waiting(operation: Operation, reason: str, now_ms: int) -> Operation:
    """Record for what the operation waits now."""
    return _next(operation, now_ms, why=clipped(reason))


def ended(
    operation: Operation,
    state: Literal["done", "failed", "cancelled"],
    why: str,
    view: View,
) -> Operation:
    """End the operation, and record the members that the cluster has then."""
    return _next(
        operation,
        view.now_ms,
        state=state,
        why=clipped(why),
        ended_at_ms=view.now_ms,
        voters=tuple(sorted(view.voters)),
        learners=tuple(sorted(view.learners)),
    )


# -- by the operator -------------------------------------------------------------------------------


def paused(operation: Operation, by: str, now_ms: int) -> Operation:
    """Begin no further attempt until `resumed`. Raises `Refused`."""
    _must_go_on(operation)
    if operation.state == "paused":
        raise Refused(f"operation {operation.operation_id} is paused already")
    return _next(operation, now_ms, state="paused", why=clipped(f"paused by {by or 'an operator'}"))


def resumed(operation: Operation, now_ms: int) -> Operation:
    """Go on after a pause. Raises `Refused`."""
    _must_go_on(operation)
    if operation.state != "paused":
        raise Refused(f"operation {operation.operation_id} is not paused")
    resumed = _next(operation, now_ms, state="running", why="")
    record = operation.step
    return _waiting_for_operator(resumed) if record is not None and record.asks else resumed


def cancelled(operation: Operation, by: str, now_ms: int) -> Operation:
    """End it once the attempt in progress has ended. Raises `Refused`."""
    _must_go_on(operation)
    why = clipped(f"cancelled by {by or 'an operator'}")
    return _next(operation, now_ms, cancel_asked=True, why=why)


def confirmed(operation: Operation, now_ms: int) -> Operation:
    """Record that the operator has done what it waits for. Raises `Refused`."""
    _must_go_on(operation)
    if operation.state != "waiting_for_operator":
        raise Refused(f"operation {operation.operation_id} waits for nothing from the operator")
    record = _current(operation)
    record = replace(record, confirmed=True, attempted_at_ms=now_ms, note="", asks=False)
    return _with_step(operation, record, now_ms, state="running", why="")


def _must_go_on(operation: Operation) -> None:
    if operation.has_ended:
        raise Refused(f"operation {operation.operation_id} has ended: {operation.state}")


def _current(operation: Operation) -> StepRecord:
    record = operation.step
    assert record is not None, "there is a step to do"
    return record


def _with_step(operation: Operation, record: StepRecord, now_ms: int, **more: Any) -> Operation:
    steps = list(operation.steps)
    steps[operation.current] = record
    return _next(operation, now_ms, steps=tuple(steps), **more)


def _next(operation: Operation, now_ms: int, **more: Any) -> Operation:
    return replace(operation, version=operation.version + 1, changed_at_ms=now_ms, **more)


def clipped(text: str) -> str:
    """A text cut to what a record may hold."""
    return text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")
