"""Operations in words, from the reports that nodes give of real records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamd.commands.operation_lines import headline, lines, news, plan_lines, reason
from streamd.streams.operations import changes
from streamd.streams.operations.model import Arguments, Operation, Step, planned, report
from streamd.streams.operations.planning import Member, View

NOW_MS = 1_700_000_000_000
STEPS = (Step("restart", 2), Step("transfer-leadership", 1), Step("restart", 1))
VIEW = View(NOW_MS + 90_000, 2, tuple(Member(number) for number in (1, 2, 3)))


def begun() -> Operation:
    return changes.begin(7, "rolling-restart", Arguments(), STEPS, by="ops", now_ms=NOW_MS)


def after(*change: Callable[[Operation], Operation]) -> dict[str, Any]:
    """The report of an operation to which this happened, one thing after another."""
    operation = begun()
    for one in change:
        operation = one(operation)
    return report(operation)


def attempt(operation: Operation) -> Operation:
    return changes.attempted(operation, 5, NOW_MS + 1_000)


def complete(operation: Operation) -> Operation:
    return changes.completed(operation, "", NOW_MS + 3_500)


def test_a_plan_has_what_each_step_waits_for() -> None:
    assert list(plan_lines([planned(step) for step in STEPS[:2]])) == [
        "2 steps:",
        "  1. restart node 2",
        "     until a new process of node 2 answers and has caught up",
        "  2. transfer leadership away from node 1",
        "     until another node leads, or node 1 did not lead",
    ]


def test_the_headline_has_the_kind_the_state_and_how_many_steps_are_done() -> None:
    assert headline(after()) == ("operation 7: rolling-restart, running, 0 of 3 steps done, by ops")
    nobody = {**after(attempt, complete), "requested_by": ""}
    assert headline(nobody) == "operation 7: rolling-restart, running, 1 of 3 steps done"


def test_an_operator_reads_what_to_do() -> None:
    def ask(operation: Operation) -> Operation:
        return changes.asks_operator(operation, "restart node 2 (10.0.0.2:4438)", NOW_MS)

    assert reason(after(attempt, ask)) == (
        "do this: restart node 2 (10.0.0.2:4438); then: streamd operations done 7"
    )
    paused = after(lambda operation: changes.paused(operation, "ops", NOW_MS))
    assert reason(paused) == "paused by ops; streamd operations resume 7 carries on"
    ending = after(attempt, lambda operation: changes.cancelled(operation, "ops", NOW_MS))
    assert reason(ending) == "cancelled by ops; it ends with the step in progress"


def test_all_of_an_operation_is_shown_with_times_attempts_and_the_members_at_its_end() -> None:
    failed = after(
        attempt,
        complete,
        attempt,
        lambda operation: changes.attempt_failed(operation, "no answer", NOW_MS + 4_000),
        attempt,
        lambda operation: changes.ended(operation, "failed", "node 1 stays the leader", VIEW),
    )
    assert list(lines(failed)) == [
        "operation 7: rolling-restart, failed, 1 of 3 steps done, by ops",
        "begun 2023-11-14 22:13:20Z, ended 2023-11-14 22:14:50Z",
        "node 1 stays the leader",
        "  1. done  restart node 2 (2.5 s)",
        "  2. begun transfer leadership away from node 1 (2 attempts)",
        "  3.       restart node 1",
        "afterwards: voters 1 2 3, learners none",
    ]


def test_news_are_what_changed() -> None:
    first, second, third = after(), after(attempt), after(attempt, complete, attempt)
    assert list(news(None, first)) == [headline(first)]
    assert list(news(first, first)) == []
    assert list(news(first, second)) == ["1 of 3: restart node 2: begun"]
    assert list(news(second, third)) == [
        "1 of 3: restart node 2: done (2.5 s)",
        "2 of 3: transfer leadership away from node 1: begun",
    ]
    waiting = after(
        attempt, lambda operation: changes.waiting(operation, "node 3 does not answer", NOW_MS)
    )
    assert list(news(second, waiting)) == ["node 3 does not answer"]
    until = "a new process of node 2 answers and has caught up"
    begun = after(attempt, lambda operation: changes.waiting(operation, until, NOW_MS))
    assert list(news(second, begun)) == [f"waits until {until}"]
    end = after(lambda operation: changes.ended(operation, "failed", "node 3 is away", VIEW))
    assert list(news(first, end)) == [f"{headline(end)}: node 3 is away"]


def test_news_of_an_operation_whose_steps_were_planned_again() -> None:
    first = after()
    second = after(lambda one: changes.revised(one, STEPS[:1], NOW_MS), attempt)
    assert list(news(first, second)) == ["1 of 1: restart node 2: begun"]
    longer = after(lambda one: changes.revised(one, (*STEPS, Step("restart", 4)), NOW_MS))
    assert list(news(first, longer)) == []
