"""Deliberate mistakes in how operations are carried out, each of which a schedule has to find."""

# mypy: disable-error-code="attr-defined,assignment"
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from streamd.node.operations_driver import OperationsDriver
from streamd.streams.commands import Outcome, RecordOperation, Result
from streamd.streams.operations import planning, steering
from streamd.streams.operations import records as operation_records
from streamd.streams.operations.model import Operation, Step, StepRecord
from streamd.streams.operations.planning import View
from tests.sim.operation_faults import Mix

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Planted:
    """A mistake, and the faults that reveal it."""

    plant: Plant
    mix: Mix


PLANTED: list[Planted] = []


def bug(mix: Mix) -> Callable[[Plant], Plant]:
    def planted(plant: Plant) -> Plant:
        PLANTED.append(Planted(plant, mix))
        return plant

    return planted


@bug(Mix())
def deed_comes_before_its_record(patch: pytest.MonkeyPatch) -> None:
    async def attempt(self: OperationsDriver, attempt: Operation) -> None:
        assert attempt.step is not None
        await self._around.carry_out(attempt.step.step)
        await self._around.record(attempt)

    patch.setattr(OperationsDriver, "_attempt", attempt)


@bug(Mix(pauses_s=0.5))
def record_is_replaced_by_any_version(patch: pytest.MonkeyPatch) -> None:
    def record(operations: operation_records.OperationRecords, command: RecordOperation) -> Outcome:
        operations.put(command.operation)
        return Outcome(Result.DONE)

    patch.setattr(operation_records, "record", record)


@bug(Mix(leaders=0.0, kills_s=3.0, down_s=(20.0,)))
def quorum_is_not_checked_before_a_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steering, "quorum_lost", lambda *_: "")


@bug(Mix(kills_s=1000.0))
def leader_is_restarted_in_its_turn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planning, "_handover", lambda *_: iter(()))
    patch.setattr(steering, "_revision", lambda *_: None)


@bug(Mix(leaders=1.0, kills_s=3.0, down_s=(2.0,)))
def next_leader_repeats_what_took_effect(patch: pytest.MonkeyPatch) -> None:
    """It does not compare the process with the one before the attempt."""
    real = steering.took_effect

    def took_effect(record: StepRecord, view: View) -> bool:
        seen = real(record, view)
        return seen and (record.step.deed != "restart" or record.confirmed)

    patch.setattr(steering, "took_effect", took_effect)


@bug(Mix())
def window_between_steps_is_skipped(patch: pytest.MonkeyPatch) -> None:
    real = steering._begin

    def begin(operation: Operation, step: Step, view: View) -> steering.Action:
        arguments = replace(operation.arguments, window_ms=0)
        return real(replace(operation, arguments=arguments), step, view)

    patch.setattr(steering, "_begin", begin)
