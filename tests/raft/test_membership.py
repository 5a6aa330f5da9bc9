"""Quorums, joint ones too, and which configuration is in force."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.raft.membership import (
    BOOTSTRAP_HARD_STATE,
    ConfigurationHistory,
    Verdict,
    bootstrap_entry,
    decode_configuration,
    departed,
    encode_configuration,
    quorum_value,
    verdict,
)
from streamd.raft.messages import Configuration, Entry, EntryKind

node_sets = st.sets(st.integers(1, 7), min_size=1, max_size=5).map(lambda s: tuple(sorted(s)))
configurations = st.builds(Configuration, node_sets, st.just(()) | node_sets)


def is_quorum(configuration: Configuration, nodes: set[int]) -> bool:
    halves = [configuration.voters, configuration.voters_outgoing or configuration.voters]
    return all(2 * len(nodes & set(half)) > len(half) for half in halves)


def entry_with(index: int, *voters: int) -> Entry:
    payload = encode_configuration(Configuration(voters))
    return Entry(index, 1, EntryKind.CONFIGURATION, payload)


@given(configurations, st.fixed_dictionaries({n: st.integers(0, 5) for n in range(1, 8)}))
def test_the_quorum_value_is_the_highest_that_a_quorum_has_reached(
    configuration: Configuration, values: dict[int, int]
) -> None:
    reached = [
        value
        for value in range(6)
        if is_quorum(configuration, {node for node in values if values[node] >= value})
    ]
    assert quorum_value(configuration, values.__getitem__) == max(reached)


@given(configurations, st.dictionaries(st.integers(1, 7), st.booleans()))
def test_an_election_is_won_with_a_quorum_and_lost_when_none_is_possible(
    configuration: Configuration, votes: dict[int, bool]
) -> None:
    granted = {node for node, vote in votes.items() if vote}
    possible = set(range(1, 8)) - {node for node, vote in votes.items() if not vote}
    if is_quorum(configuration, granted):
        expected = Verdict.WON
    elif is_quorum(configuration, possible):
        expected = Verdict.PENDING
    else:
        expected = Verdict.LOST
    assert verdict(configuration, votes) == expected


@given(configurations)
def test_two_quorums_always_share_a_node(configuration: Configuration) -> None:
    members = sorted(configuration.members())
    quorums = [
        set(nodes)
        for size in range(1, len(members) + 1)
        for nodes in combinations(members, size)
        if verdict(configuration, dict.fromkeys(nodes, True)) == Verdict.WON
    ]
    assert all(a & b for a in quorums for b in quorums)


def test_without_voters_nothing_commits_and_nobody_wins() -> None:
    assert quorum_value(Configuration(), lambda _: 9) == 0
    assert verdict(Configuration(), {1: True}) == Verdict.LOST


def test_learners_are_members_without_a_vote() -> None:
    configuration = Configuration(voters=(1,), learners=(2,))
    assert configuration.members() == {1, 2}
    assert not configuration.is_voter(2)
    assert quorum_value(configuration, {1: 5, 2: 0}.__getitem__) == 5


def test_a_new_group_begins_with_its_voters_at_index_1_of_term_1() -> None:
    entry = bootstrap_entry([3, 1, 2])
    assert (entry.index, entry.term, entry.kind) == (1, 1, EntryKind.CONFIGURATION)
    assert entry.term == BOOTSTRAP_HARD_STATE.term
    assert decode_configuration(entry.payload) == Configuration(voters=(1, 2, 3))


@pytest.fixture
def history() -> ConfigurationHistory:
    history = ConfigurationHistory(4, Configuration((1,)))
    history.append(entry_with(6, 1, 2))
    history.append(entry_with(9, 1, 2, 3))
    return history


def test_the_last_configuration_appended_is_in_force(history: ConfigurationHistory) -> None:
    assert history.latest.voters == (1, 2, 3)


@pytest.mark.parametrize(
    ("from_index", "voters"), [(10, (1, 2, 3)), (9, (1, 2)), (7, (1, 2)), (6, (1,)), (5, (1,))]
)
def test_truncation_brings_the_earlier_configuration_back(
    history: ConfigurationHistory, from_index: int, voters: tuple[int, ...]
) -> None:
    history.truncate(from_index)
    assert history.latest.voters == voters


def test_the_configuration_at_an_index_is_looked_up(history: ConfigurationHistory) -> None:
    voters = [history.at(index).voters for index in (4, 5, 6, 8, 9, 99)]
    assert voters == [(1,), (1,), (1, 2), (1, 2), (1, 2, 3), (1, 2, 3)]
    assert history.latest_index == 9


def test_configurations_before_the_applied_one_are_forgotten(history: ConfigurationHistory) -> None:
    history.forget_before(8)
    history.truncate(9)
    assert history.latest.voters == (1, 2)
    assert len(history._indexes) == 1


def test_departed_nodes_are_members_that_the_later_configuration_lacks() -> None:
    before = encode_configuration(Configuration((1, 2), learners=(3,)))
    after = encode_configuration(Configuration((1, 4)))
    assert departed(before, after) == {2, 3}
    assert departed(b"", after) == set()
