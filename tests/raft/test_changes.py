"""The steps from one configuration to the next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.raft.interface import InvalidConfiguration
from streamd.raft.membership import Verdict, checked, first_step, last_step, verdict
from streamd.raft.messages import Configuration


def at(*node_ids: int) -> tuple[tuple[int, str, str], ...]:
    return tuple((node_id, f"peer{node_id}:1", f"client{node_id}:2") for node_id in node_ids)


def test_a_change_of_voters_goes_through_a_joint_configuration() -> None:
    old, new = Configuration((1, 2, 3)), Configuration((1, 4), (), (3,))
    joint = first_step(old, new)
    assert joint == Configuration((1, 4), (1, 2, 3), (3,))
    assert last_step(joint) == new


def test_learners_and_addresses_alone_change_in_one_step() -> None:
    new = Configuration((1,), (), (2,), at(1, 2))
    assert first_step(Configuration((1,)), new) == new


def test_a_departing_node_can_be_reached_until_it_has_left() -> None:
    joint = first_step(
        Configuration((1, 2), addresses=at(1, 2)), Configuration((1, 3), addresses=at(1, 3))
    )
    assert joint.addresses == at(1, 2, 3)
    assert last_step(joint).addresses == at(1, 3)


def test_a_target_is_put_in_order_and_is_never_joint() -> None:
    target = Configuration((3, 1), (9,), (2,), at(3, 1))
    assert checked(target) == Configuration((1, 3), (), (2,), at(1, 3))


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (Configuration(), "at least one voter"),
        (Configuration((), (), (1,)), "at least one voter"),
        (Configuration((1, 1)), "voters name a node twice"),
        (Configuration((1,), (), (2, 2)), "learners name a node twice"),
        (Configuration((1, 2), (), (2,)), r"\[2\] would be voters and learners"),
        (Configuration((0, 1)), "node ids begin at 1"),
        (Configuration((1,), addresses=at(2)), r"addresses for \[2\]"),
        (Configuration((1,), addresses=(*at(1), *at(1))), "addresses name a node twice"),
    ],
)
def test_an_invalid_configuration_is_refused(target: Configuration, reason: str) -> None:
    with pytest.raises(InvalidConfiguration, match=reason):
        checked(target)


voters = st.sets(st.integers(1, 7), min_size=1, max_size=5).map(lambda s: tuple(sorted(s)))


@given(voters, voters, st.sets(st.integers(1, 7)), st.sets(st.integers(1, 7)))
def test_each_step_shares_a_node_with_the_one_before(
    old: tuple[int, ...], new: tuple[int, ...], before: set[int], after: set[int]
) -> None:
    def wins(configuration: Configuration, nodes: set[int]) -> bool:
        return verdict(configuration, dict.fromkeys(nodes, True)) == Verdict.WON

    start, target = Configuration(old), Configuration(new)
    joint = first_step(start, target)
    for one, other in ((start, joint), (joint, target)):
        if wins(one, before) and wins(other, after):
            assert before & after
