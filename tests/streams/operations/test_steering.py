"""What to do next: from the record and a view, step by step."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from streamd.streams.operations import changes
from streamd.streams.operations.model import Arguments, Operation, Step, in_words
from streamd.streams.operations.planning import Newcomer, View
from streamd.streams.operations.steering import (
    MAX_ATTEMPTS,
    Action,
    Attempt,
    Complete,
    Conclude,
    Revise,
    Wait,
    next_action,
)
from tests.streams.operations.clusters import begun, cluster, with_member

VIEW = cluster(1, 2, 3)


def later(view: View, ms: int) -> View:
    return replace(view, now_ms=view.now_ms + ms)


def act(operation: Operation, view: View) -> tuple[Operation, Action]:
    """Record the next action as the driver does."""
    action = next_action(operation, view)
    match action:
        case Attempt(incarnation=incarnation):
            operation = changes.attempted(operation, incarnation, view.now_ms)
        case Complete(note=note):
            operation = changes.completed(operation, note, view.now_ms)
        case Revise(steps=steps):
            operation = changes.revised(operation, steps, view.now_ms)
        case Wait(reason=reason) if reason != operation.why:
            operation = changes.waiting(operation, reason, view.now_ms)
        case Conclude(state=state, why=why):
            operation = changes.ended(operation, state, why, view)
    return operation, action


def restarting() -> Operation:
    """A rolling restart whose first step is in progress."""
    operation, action = act(begun("rolling-restart", VIEW), VIEW)
    assert action == Attempt(102)
    return operation


def of_steps(*steps: Step, window_ms: int = 0) -> Operation:
    asked = Arguments(window_ms=window_ms)
    return changes.begin(1, "drain", asked, steps, by="", now_ms=VIEW.now_ms)


def reason(action: Action) -> str:
    assert isinstance(action, Wait)
    return action.reason


def test_a_restarted_node_shows_itself_by_another_process() -> None:
    operation = restarting()
    assert reason(next_action(operation, VIEW)).startswith("a new process of node 2")
    for not_yet in (
        with_member(VIEW, 2, answers=False),
        with_member(VIEW, 2, incarnation=0),
        with_member(VIEW, 2, incarnation=9, answers=False),
        with_member(VIEW, 2, incarnation=9, lag_entries=5000),
    ):
        assert isinstance(next_action(operation, not_yet), Wait)
    operation, action = act(operation, with_member(VIEW, 2, incarnation=9))
    assert action == Complete()
    assert operation.current == 1


def test_a_release_that_was_installed_must_run() -> None:
    operation = of_steps(Step("restart", 2, release="2.0"))
    operation, _ = act(operation, VIEW)
    assert isinstance(next_action(operation, with_member(VIEW, 2, incarnation=9)), Wait)
    new = with_member(VIEW, 2, incarnation=9, release="2.0")
    assert next_action(operation, new) == Complete()


def test_between_steps_the_cluster_must_be_well_for_the_window() -> None:
    view = with_member(VIEW, 2, incarnation=9)
    operation, _ = act(restarting(), view)
    operation, action = act(operation, view)
    assert "must be well for 10 s before: restart node 3" in reason(action)
    assert isinstance(next_action(operation, later(view, 9_999)), Wait)
    assert next_action(operation, later(view, 10_000)) == Attempt(103)


def test_the_window_begins_again_after_something_was_wrong() -> None:
    view = with_member(VIEW, 2, incarnation=9)
    operation, _ = act(restarting(), view)
    operation, _ = act(operation, view)
    ill = later(with_member(view, 2, answers=False), 5_000)
    operation, action = act(operation, ill)
    assert reason(action) == "to restart node 3 would leave 1 of 3 voters; 2 are needed"
    operation, _ = act(operation, later(view, 11_000))
    assert isinstance(next_action(operation, later(view, 20_999)), Wait)
    assert next_action(operation, later(view, 21_000)) == Attempt(103)


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (replace(VIEW, is_settled=False), "not settled"),
        (with_member(VIEW, 3, answers=False), "would leave 1 of 3 voters"),
        (with_member(VIEW, 3, lag_entries=1001), "would leave 1 of 3 voters"),
        (with_member(VIEW, 3, disk_is_low=True), "disk of node 3 is nearly full"),
        (replace(VIEW, archive_age_ms=61_000, archive_limit_ms=60_000), "last 61 s"),
        (with_member(VIEW, 2, incarnation=0), "has not introduced itself"),
    ],
)
def test_a_step_is_not_begun_while(view: View, why: str) -> None:
    assert why in reason(next_action(begun("rolling-restart", VIEW), view))


def test_the_node_itself_may_have_a_full_disk() -> None:
    assert next_action(
        begun("rolling-restart", VIEW), with_member(VIEW, 2, disk_is_low=True)
    ) == Attempt(102)


def test_leadership_goes_to_a_voter_that_is_well() -> None:
    operation = of_steps(Step("transfer-leadership", 1))
    view = with_member(cluster(1, 2), 2, answers=False)
    assert reason(next_action(operation, view)) == "no other voter is well"
    operation, action = act(operation, VIEW)
    assert action == Attempt(101)
    assert isinstance(next_action(operation, replace(VIEW, leader_id=0)), Wait)
    assert next_action(operation, replace(VIEW, leader_id=3)) == Complete()


def test_an_attempt_without_effect_is_made_again_and_not_for_ever() -> None:
    operation, view = restarting(), VIEW
    for _ in range(MAX_ATTEMPTS - 1):
        assert isinstance(next_action(operation, later(view, 119_999)), Wait)
        view = later(view, 120_000)
        operation, action = act(operation, view)
        assert action == Attempt(102)
    assert operation.steps[0].attempts == MAX_ATTEMPTS
    plain, action = act(operation, later(view, 120_000))
    assert action == Conclude("failed", "restart node 2: 5 attempts had no effect")
    noted = changes.attempt_failed(operation, "ssh: no route", view.now_ms)
    assert next_action(noted, later(view, 120_000)) == Conclude(
        "failed", "restart node 2: 5 attempts had no effect: ssh: no route"
    )
    assert (plain.state, plain.voters, plain.learners) == ("failed", (1, 2, 3), ())


def test_a_node_out_of_reach_keeps_the_number_of_its_process() -> None:
    view = later(with_member(VIEW, 2, answers=False, incarnation=0), 120_000)
    assert next_action(restarting(), view) == Attempt(102)


def test_an_attempt_is_not_made_again_without_a_quorum() -> None:
    view = later(with_member(VIEW, 3, answers=False), 120_000)
    assert "1 of 3" in reason(next_action(restarting(), view))


def test_a_node_that_left_is_not_restarted() -> None:
    gone = cluster(1, 3)
    ended = Conclude("failed", "cannot restart node 2: it is no longer a member")
    assert next_action(begun("rolling-restart", VIEW), gone) == ended
    assert next_action(restarting(), later(gone, 120_000)) == ended
    unsettled = replace(gone, is_settled=False)
    assert isinstance(next_action(begun("rolling-restart", VIEW), unsettled), Wait)


# -- the leader last -------------------------------------------------------------------------------


def revised(operation: Operation, view: View) -> list[str]:
    action = next_action(operation, view)
    assert isinstance(action, Revise)
    return [in_words(step) for step in action.steps]


def test_a_node_that_leads_meanwhile_is_restarted_last() -> None:
    two = replace(VIEW, leader_id=2)
    assert revised(begun("rolling-restart", VIEW), two) == [
        "restart node 3",
        "transfer leadership away from node 1",
        "restart node 1",
        "transfer leadership away from node 2",
        "restart node 2",
    ]
    # Also where the leader that began it lost its office.
    assert revised(restarting(), later(two, 120_000))[-1] == "restart node 2"


def test_features_are_raised_after_the_last_restart() -> None:
    operation = of_steps(Step("restart", 2), Step("restart", 3), Step("raise-features"))
    assert revised(operation, replace(VIEW, leader_id=2)) == [
        "restart node 3",
        "transfer leadership away from node 2",
        "restart node 2",
        "raise the feature level",
    ]


@pytest.mark.parametrize(
    "step", [Step("restart", 2), Step("stop", 2), Step("remove", 2), Step("promote", 3, "", 2)]
)
def test_a_leader_hands_over_before_it_goes(step: Step) -> None:
    view = with_member(replace(VIEW, leader_id=2), 3, is_voter=False)
    assert revised(of_steps(step), view) == [
        "transfer leadership away from node 2",
        in_words(step),
    ]


def test_leadership_that_always_comes_back_fails_the_operation() -> None:
    steps = [Step("transfer-leadership", 2)] * 63
    operation = of_steps(*steps, Step("restart", 2))
    operation = replace(operation, current=63)
    failed = Conclude("failed", "leadership changed too often between the steps")
    assert next_action(operation, replace(VIEW, leader_id=2)) == failed


# -- members ---------------------------------------------------------------------------------------


def test_a_node_is_added_and_promoted() -> None:
    view = replace(VIEW, newcomers=(Newcomer("d:1", 4, 6),))
    operation = begun("replace-node", view, node_id=3, addresses=("d:1",), window_ms=0)
    operation, action = act(operation, view)
    assert action == Attempt()
    both = cluster(1, 2, 3, 4)
    learner = with_member(both, 4, is_voter=False, lag_entries=10**6)
    assert isinstance(next_action(operation, replace(learner, is_settled=False)), Wait)
    operation, action = act(operation, learner)
    assert action == Complete()
    operation, action = act(operation, learner)
    assert reason(action) == "node 4 answers and lags by few entries"
    caught_up = with_member(learner, 4, lag_entries=3)
    operation, action = act(operation, caught_up)
    assert action == Complete("node 4 has caught up")
    operation, action = act(operation, caught_up)
    assert action == Attempt(104)
    assert isinstance(next_action(operation, both), Wait), "node 3 still votes"
    after = cluster(1, 2, 4, connected=frozenset({1, 2, 3, 4}))
    operation, action = act(operation, after)
    assert action == Complete()
    operation, action = act(operation, after)
    assert action == Attempt(), "the node is no longer a member"
    operation = changes.carried_out(operation, after.now_ms)
    assert isinstance(next_action(operation, after), Wait), "it is still connected"
    operation, action = act(operation, cluster(1, 2, 4))
    assert action == Complete()
    operation, action = act(operation, cluster(1, 2, 4))
    assert action == Conclude("done")
    assert (operation.state, operation.voters) == ("done", (1, 2, 4))
    assert all(record.ended_at_ms for record in operation.steps)


def test_a_step_whose_effect_is_there_already_needs_nothing() -> None:
    for step, note in (
        (Step("add", 2, "b:1"), "node 2 is a member"),
        (Step("promote", 2), "node 2 votes"),
        (Step("remove", 9), "node 9 is not a member"),
        (Step("raise-features"), "the feature level is 6"),
        (Step("transfer-leadership", 2), "node 1 leads"),
    ):
        assert next_action(of_steps(step), VIEW) == Complete(note)


def test_features_are_raised_when_all_run_one_release_and_were_met() -> None:
    operation = of_steps(Step("raise-features"))
    old = replace(VIEW, level=0)
    mixed = with_member(old, 2, release="")
    assert "different releases: 1.0, unknown" in reason(next_action(operation, mixed))
    assert next_action(operation, old) == Attempt()
    unmet = with_member(VIEW, 2, log_format=0)
    assert next_action(operation, unmet) == Attempt()


def test_an_installation_is_done_when_its_end_is_recorded() -> None:
    operation, action = act(of_steps(Step("install", 2, release="2.0")), VIEW)
    assert action == Attempt(102)
    assert isinstance(next_action(operation, later(VIEW, 599_999)), Wait)
    operation = changes.carried_out(operation, VIEW.now_ms)
    assert next_action(operation, VIEW) == Complete()


# -- the operator ----------------------------------------------------------------------------------


def test_a_paused_operation_begins_nothing_but_sees_what_took_effect() -> None:
    operation = changes.paused(restarting(), "eve", VIEW.now_ms)
    assert reason(next_action(operation, later(VIEW, 10**6))) == "paused by eve"
    operation, action = act(operation, with_member(VIEW, 2, incarnation=9))
    assert action == Complete()
    assert (operation.state, operation.why, operation.current) == ("paused", "paused by eve", 1)
    assert isinstance(next_action(operation, later(VIEW, 10**6)), Wait)
    operation, action = act(changes.resumed(operation, VIEW.now_ms), VIEW)
    assert operation.state == "running"


def test_the_operator_is_asked_and_may_answer_or_just_do_it() -> None:
    asked = changes.asks_operator(restarting(), "restart node 2 by hand", VIEW.now_ms)
    assert asked.state == "waiting_for_operator"
    assert reason(next_action(asked, later(VIEW, 10**9))) == "restart node 2 by hand"
    operation, action = act(asked, with_member(VIEW, 2, incarnation=9))
    assert action == Complete()
    assert operation.state == "running"
    said = changes.confirmed(asked, VIEW.now_ms)
    assert said.state == "running"
    assert isinstance(next_action(said, VIEW), Wait), "it must be seen"


def test_a_cancelled_operation_ends_at_once_or_after_the_attempt() -> None:
    operation = changes.cancelled(begun("rolling-restart", VIEW), "eve", VIEW.now_ms)
    assert next_action(operation, VIEW) == Conclude("cancelled", "cancelled before: restart node 2")

    operation = changes.cancelled(restarting(), "eve", VIEW.now_ms)
    assert "step in progress must end" in reason(next_action(operation, VIEW))
    during = Conclude("cancelled", "cancelled during: restart node 2")
    assert next_action(operation, later(VIEW, 120_000)) == during
    asked = changes.asks_operator(operation, "do it", VIEW.now_ms)
    assert next_action(asked, VIEW) == during

    all_done = replace(operation, current=len(operation.steps))
    assert next_action(all_done, VIEW) == Conclude("cancelled", "cancelled after the last step")


def test_a_change_of_the_members_is_settled_before_an_operation_is_cancelled() -> None:
    operation, _ = act(of_steps(Step("add", 4, "d:1")), VIEW)
    operation = changes.cancelled(operation, "", VIEW.now_ms)
    late = later(replace(VIEW, is_settled=False), 10**6)
    assert reason(next_action(operation, late)) == "a change of the members is not settled"
    assert isinstance(next_action(operation, later(VIEW, 15_000)), Conclude)
