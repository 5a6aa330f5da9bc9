"""Rules of order, each tested by itself.

The simulations break these rules only when several things go wrong together; here the one step that
would break each of them is taken by hand.
"""

from __future__ import annotations

from random import Random

import pytest

from streamd.raft.chain import chain
from streamd.raft.core import Role, Settings
from streamd.raft.messages import (
    AppendAccepted,
    AppendRequest,
    CommitNotice,
    Configuration,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    TimeoutNow,
    VoteReply,
)
from tests.raft.cluster import RaftSnapshot, SimulatedNode, bootstrapped_disk, settle

ENTRY = Entry(7, 3, EntryKind.COMMANDS, b"payload")


def one_of_three(*, lost_below: int = 0) -> SimulatedNode:
    return SimulatedNode(
        1, bootstrapped_disk([1, 2, 3]), Settings(), Random(1), lost_below=lost_below
    )


def append(index: int, previous_term: int = 2) -> AppendRequest:
    entry = Entry(index, 2, EntryKind.COMMANDS, b"x")
    return AppendRequest(2, 1, 2, index - 1, previous_term, 0, [entry])


def elected_leader_of_three() -> SimulatedNode:
    """Node 1, in term 2, with an entry of its own committed by node 2's confirmation."""
    node = one_of_three()
    while node.core.role == Role.FOLLOWER:
        node.core.tick()
    node.core.step(VoteReply(2, 1, 2, True, pre_vote=True))
    settle(node)
    node.core.step(VoteReply(2, 1, 2, True))
    settle(node)
    node.core.step(AppendAccepted(2, 1, 2, node.core.last_index))
    settle(node)
    assert node.core.role == Role.LEADER
    node.outbox.clear()
    return node


# --- vote eligibility


def test_a_node_votes_again_only_once_its_lost_entries_are_on_its_disk() -> None:
    node = one_of_three(lost_below=2)
    node.core.step(append(2, 1))
    node.core.step(Heartbeat(2, 1, 2, 2, last_index=2))
    assert not node.core.may_vote, "a crash now would take the entry away again, and the note too"
    settle(node)
    node.core.step(Heartbeat(2, 1, 2, 2, last_index=2))
    assert node.core.may_vote


def test_a_commit_index_beyond_lost_entries_neither_commits_them_nor_stops_the_node() -> None:
    node = one_of_three(lost_below=3)
    node.core.step(append(2, 1))
    settle(node)
    node.core.step(CommitNotice(2, 1, 2, 3))
    assert node.core.commit_index == 0
    assert not node.core.may_vote


# --- votes


def test_a_candidate_counts_its_own_vote_once_that_is_stored() -> None:
    node = SimulatedNode(1, bootstrapped_disk([1]), Settings(), Random(1))
    node.take_readies()
    assert node.core.role == Role.CANDIDATE, "its vote could still be given to someone else"
    node.write_one()
    node.complete_one()
    assert node.core.role == Role.LEADER


def test_a_candidate_of_two_is_not_elected_by_the_others_vote_before_its_own_is_stored() -> None:
    node = SimulatedNode(1, bootstrapped_disk([1, 2]), Settings(), Random(1))
    while node.core.role == Role.FOLLOWER:
        node.core.tick()
    node.core.step(VoteReply(2, 1, 2, True, pre_vote=True))
    node.take_readies()
    node.core.step(VoteReply(2, 1, 2, True))
    assert node.core.role == Role.CANDIDATE
    node.write_one()
    node.complete_one()
    assert node.core.role == Role.LEADER


def test_a_write_that_began_before_the_campaign_does_not_confirm_the_vote() -> None:
    node = SimulatedNode(1, bootstrapped_disk([1, 2]), Settings(), Random(1))
    node.core.step(append(2, 1))
    node.take_readies()
    node.core.step(TimeoutNow(2, 1, 2))
    node.take_readies()
    node.core.step(VoteReply(2, 1, 3, True))
    node.write_one()
    node.complete_one()
    assert node.core.role == Role.CANDIDATE, "only the entry is on the disk"
    node.write_one()
    node.complete_one()
    assert node.core.role == Role.LEADER


# --- Raft snapshots


def test_an_installation_withholds_answers_that_would_confirm_replaced_entries() -> None:
    node = one_of_three()
    node.core.step(Heartbeat(2, 1, 2, 0))
    settle(node)
    node.outbox.clear()
    node.core.step(append(2, 1))
    assert node.core.begin_restore(9, 2)
    node.install(RaftSnapshot(9, 2, Configuration((1, 2, 3)), 0))
    settle(node)
    assert [message for message in node.outbox if isinstance(message, AppendAccepted)] == []


def test_a_leader_installs_no_raft_snapshot_because_others_may_rely_on_its_log() -> None:
    node = elected_leader_of_three()
    assert not node.core.begin_restore(9, node.core.term)
    node.core.propose([b"x"])
    assert node.core.last_index == 3, "and its log goes on"


def test_a_candidate_installs_no_raft_snapshot() -> None:
    node = one_of_three()
    while node.core.role == Role.FOLLOWER:
        node.core.tick()
    assert node.core.role == Role.PRE_CANDIDATE
    assert not node.core.begin_restore(9, node.core.term)


# --- reads


def test_reads_that_arrive_during_a_transfer_begin_when_it_has_failed() -> None:
    node = elected_leader_of_three()
    node.core.transfer(3)
    settle(node)
    node.outbox.clear()
    node.core.read(5)
    settle(node)
    assert [message for message in node.outbox if isinstance(message, Heartbeat)] == []
    node.core.transfer(1)
    settle(node)
    asked = [message for message in node.outbox if isinstance(message, Heartbeat)]
    assert {message.to for message in asked} == {2, 3}
    node.core.step(HeartbeatReply(2, 1, 2, asked[0].round))
    settle(node)
    assert [(read.context, read.index) for read in node.reads] == [(5, 2)]


# --- the chain


@pytest.mark.parametrize(
    "other",
    [
        Entry(8, 3, EntryKind.COMMANDS, b"payload"),
        Entry(7, 4, EntryKind.COMMANDS, b"payload"),
        Entry(7, 3, EntryKind.NOOP, b"payload"),
        Entry(7, 3, EntryKind.COMMANDS, b"payloae"),
    ],
    ids=["index", "term", "kind", "payload"],
)
def test_every_field_of_an_entry_is_in_its_checksum(other: Entry) -> None:
    assert chain(1, 0, other) != chain(1, 0, ENTRY)


def test_the_preceding_checksum_and_the_group_are_in_it_too() -> None:
    assert len({chain(1, 0, ENTRY), chain(2, 0, ENTRY), chain(1, 1, ENTRY)}) == 3


def test_the_chain_is_computed_as_in_logs_on_disk() -> None:
    """Each log written so far is checked against it: it never changes."""
    assert chain(0, 0, Entry(1, 1, EntryKind.NOOP, b"")) == 0xC5455C52
    assert chain(0xC5455C52, 0, Entry(2, 1, EntryKind.COMMANDS, b"x")) == 0xCAB4F3A2
