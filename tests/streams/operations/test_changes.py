"""Each change of a record is the next version of it, and fits into the log."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from streamd.streams.operations import changes
from streamd.streams.operations.model import (
    MAX_STEPS,
    MAX_TEXT_BYTES,
    Operation,
    StepRecord,
    report,
)
from streamd.streams.operations.planning import Refused
from tests.streams.operations.clusters import NOW_MS, begun, cluster

OPERATION = begun("rolling-restart", cluster(1, 2, 3))


def test_every_change_is_the_next_version() -> None:
    tried = changes.attempted(OPERATION, 102, NOW_MS + 1)
    for changed in (
        tried,
        changes.carried_out(tried, NOW_MS),
        changes.attempt_failed(tried, "no", NOW_MS),
        changes.completed(tried, "", NOW_MS),
        changes.revised(tried, [], NOW_MS),
        changes.waiting(tried, "for rain", NOW_MS),
        changes.asks_operator(tried, "do it", NOW_MS),
        changes.paused(tried, "", NOW_MS),
        changes.cancelled(tried, "", NOW_MS),
        changes.ended(tried, "failed", "why", cluster(1, 2)),
    ):
        before = 1 if changed is tried else 2
        assert changed.version == before + 1
    assert OPERATION.version == 1


def test_a_paused_operation_stays_paused_when_the_operator_must_act() -> None:
    paused = changes.paused(changes.attempted(OPERATION, 1, NOW_MS), "", NOW_MS)
    asked = changes.asks_operator(paused, "do it", NOW_MS)
    assert asked.state == "paused"
    resumed = changes.resumed(asked, NOW_MS)
    assert (resumed.state, resumed.why) == ("waiting_for_operator", "do it")
    again = changes.resumed(changes.paused(resumed, "", NOW_MS), NOW_MS)
    assert (again.state, again.why) == ("waiting_for_operator", "do it")
    assert changes.confirmed(again, NOW_MS).state == "running"
    assert changes.completed(again, "", NOW_MS).steps[0].note == "", "it asks no longer"


def test_what_does_not_fit_the_state_is_refused() -> None:
    ended = changes.ended(OPERATION, "done", "", cluster(1, 2, 3))
    paused = changes.paused(OPERATION, "", NOW_MS)
    refused: list[Callable[[], Operation]] = [
        lambda: changes.paused(paused, "", NOW_MS),
        lambda: changes.resumed(OPERATION, NOW_MS),
        lambda: changes.confirmed(OPERATION, NOW_MS),
        lambda: changes.paused(ended, "", NOW_MS),
        lambda: changes.resumed(ended, NOW_MS),
        lambda: changes.confirmed(ended, NOW_MS),
        lambda: changes.cancelled(ended, "", NOW_MS),
    ]
    for change in refused:
        with pytest.raises(Refused):
            change()


def test_texts_are_cut_to_what_a_record_may_hold() -> None:
    long = "ü" * MAX_TEXT_BYTES
    waiting = changes.waiting(OPERATION, long, NOW_MS)
    assert len(waiting.why.encode()) == MAX_TEXT_BYTES
    assert waiting.fits
    assert waiting.weight == OPERATION.weight + MAX_TEXT_BYTES


@pytest.mark.parametrize(
    "unfit",
    [
        replace(OPERATION, operation_id=0),
        replace(OPERATION, version=0),
        replace(OPERATION, steps=()),
        replace(OPERATION, steps=OPERATION.steps * MAX_STEPS),
        replace(OPERATION, current=-1),
        replace(OPERATION, current=len(OPERATION.steps) + 1),
        replace(OPERATION, why="x" * (MAX_TEXT_BYTES + 1)),
        replace(OPERATION, arguments=replace(OPERATION.arguments, addresses=("a",) * 17)),
        replace(OPERATION, arguments=replace(OPERATION.arguments, window_ms=600_001)),
        replace(
            OPERATION,
            steps=(replace(OPERATION.steps[0], note="x" * (MAX_TEXT_BYTES + 1)),),
        ),
    ],
)
def test_what_is_too_large_or_contradicts_itself_does_not_fit(unfit: Operation) -> None:
    assert OPERATION.fits
    assert not unfit.fits


def test_a_record_is_read_as_it_was_written() -> None:
    done = changes.completed(changes.attempted(OPERATION, 102, NOW_MS), "", NOW_MS + 5)
    raw = msgspec.msgpack.encode(done)
    assert msgspec.msgpack.decode(raw, type=Operation) == done


def test_a_report_has_each_step_in_words() -> None:
    done = changes.completed(changes.attempted(OPERATION, 102, NOW_MS), "", NOW_MS + 5)
    found = report(changes.attempted(done, 103, NOW_MS + 9))
    assert [step["state"] for step in found["steps"]] == ["done", "begun", "waiting", "waiting"]
    assert found["steps"][0] == {
        "deed": "restart",
        "node_id": 2,
        "text": "restart node 2",
        "waits_for": "a new process of node 2 answers and has caught up",
        "state": "done",
        "attempts": 1,
        "begun_at_ms": NOW_MS,
        "ended_at_ms": NOW_MS + 5,
        "note": "",
    }
    assert found["arguments"] == {"window_ms": 10_000}
    assert StepRecord(done.steps[0].step).is_begun is False
