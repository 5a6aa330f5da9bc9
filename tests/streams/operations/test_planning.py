"""The steps of each kind of operation, and what is refused before anything is begun."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from streamd.streams.operations.model import Arguments, Kind, in_words, planned, waits_for
from streamd.streams.operations.planning import Newcomer, Refused, View, plan
from tests.streams.operations.clusters import cluster, with_member

FOUR = Newcomer("d:1", 4, 6)


def words(kind: Kind, view: View, **arguments: object) -> list[str]:
    asked = Arguments(**arguments)  # type: ignore[arg-type]
    return [in_words(step) for step in plan(kind, asked, view)]


def test_a_rolling_restart_comes_to_the_leader_last_and_to_learners_first() -> None:
    view = with_member(cluster(1, 2, 3, 4, leader=2), 4, is_voter=False)
    assert words("rolling-restart", view) == [
        "restart node 4",
        "restart node 1",
        "restart node 3",
        "transfer leadership away from node 2",
        "restart node 2",
    ]


def test_an_upgrade_leaves_alone_who_runs_the_release_and_raises_features_last() -> None:
    view = with_member(cluster(1, 2, 3), 2, release="2.0")
    assert words("upgrade", view, release="2.0") == [
        "install 2.0 on node 3",
        "restart node 3",
        "install 2.0 on node 1",
        "transfer leadership away from node 1",
        "restart node 1",
        "raise the feature level",
    ]


def test_a_node_is_replaced_in_one_change_of_the_voters() -> None:
    view = cluster(1, 2, 3, newcomers=(FOUR,))
    assert words("replace-node", view, node_id=1, addresses=("d:1",)) == [
        "add node 4 at d:1 as a learner",
        "wait until node 4 has caught up",
        "transfer leadership away from node 1",
        "promote node 4 replacing node 1",
        "stop node 1",
    ]


def test_nodes_are_added_one_after_another() -> None:
    view = cluster(1, newcomers=(FOUR, Newcomer("e:1", 5, 6)))
    assert words("bootstrap", view, addresses=("e:1", "d:1")) == [
        "add node 5 at e:1 as a learner",
        "wait until node 5 has caught up",
        "promote node 5",
        "add node 4 at d:1 as a learner",
        "wait until node 4 has caught up",
        "promote node 4",
    ]
    assert len(words("scale-up", view, addresses=("d:1",))) == 3


def test_a_node_is_removed_before_it_is_stopped() -> None:
    assert words("scale-down", cluster(1, 2), node_id=2) == ["remove node 2", "stop node 2"]
    assert words("scale-down", cluster(1, 2, 3), node_id=1)[0].startswith("transfer leadership")


def test_a_node_is_taken_out_of_service_and_back() -> None:
    assert words("drain", cluster(1, 2, 3), node_id=3) == ["stop node 3"]
    assert words("drain", cluster(1, 2, 3), node_id=1)[0].startswith("transfer leadership")
    assert words("restart-recovery", cluster(1, 2, 3), node_id=3) == ["restart node 3"]


@pytest.mark.parametrize(
    ("kind", "arguments", "reason"),
    [
        ("rolling-restart", {"node_id": 2}, "takes no node"),
        ("drain", {}, "takes node_id"),
        ("drain", {"node_id": 9}, "not a member"),
        ("scale-down", {"node_id": 9}, "not a member"),
        ("scale-up", {"addresses": ("d:1", "e:1")}, "one address"),
        ("bootstrap", {"addresses": ("d:1", "d:1")}, "twice"),
        ("upgrade", {"release": "2.0; reboot"}, "names no release"),
        ("upgrade", {"release": "--help"}, "names no release"),
        ("scale-up", {"addresses": ("x:1",)}, "no node of this cluster answers at x:1"),
        ("scale-up", {"addresses": ("e:1",)}, "log format 5"),
        ("scale-up", {"addresses": ("b:1",)}, "a member already"),
        ("replace-node", {"node_id": 4, "addresses": ("d:1",)}, "not a member"),
    ],
)
def test_what_cannot_be_done_is_refused(
    kind: Kind, arguments: dict[str, object], reason: str
) -> None:
    newcomers = (FOUR, Newcomer("e:1", 5, 5), Newcomer("b:1", 2, 6))
    with pytest.raises(Refused, match=reason):
        words(kind, cluster(1, 2, 3, newcomers=newcomers), **arguments)


def test_a_learner_is_not_replaced() -> None:
    view = with_member(cluster(1, 2, 3, newcomers=(FOUR,)), 3, is_voter=False)
    with pytest.raises(Refused, match="is a learner"):
        words("replace-node", view, node_id=3, addresses=("d:1",))


def test_what_would_leave_less_than_a_quorum_is_refused() -> None:
    with pytest.raises(Refused, match="restart node 2 would leave 1 of 2 voters; 2 are needed"):
        words("rolling-restart", cluster(1, 2))
    with pytest.raises(Refused, match="0 of 1"):
        words("drain", cluster(1), node_id=1)
    with pytest.raises(Refused, match="last voter"):
        words("scale-down", with_member(cluster(1, 2), 2, is_voter=False), node_id=1)


def test_a_plan_of_too_many_steps_is_refused() -> None:
    with pytest.raises(Refused, match="too many"):
        words("rolling-restart", cluster(*range(1, 70)))


def test_every_step_says_what_it_waits_for() -> None:
    view = cluster(1, 2, 3, newcomers=(FOUR,))
    steps = [
        *plan("upgrade", Arguments(release="2.0"), view),
        *plan("replace-node", Arguments(node_id=1, addresses=("d:1",)), view),
        *plan("scale-down", Arguments(node_id=3), view),
    ]
    said = {step.deed: waits_for(step) for step in steps}
    assert len(set(said.values())) == 9
    assert said["restart"] == "a new process of node 1 answers with 2.0 and has caught up"
    assert planned(replace(steps[1], release=""))["waits_for"] == (
        "a new process of node 2 answers and has caught up"
    )
