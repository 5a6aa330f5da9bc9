"""Raft snapshots in place of the log: the core's contract with its shell."""

from __future__ import annotations

from random import Random

import pytest

from streamd.raft.core import Core, PeerStatus, RaftViolation, Role, Settings
from streamd.raft.messages import (
    NO_LIFE,
    AppendAccepted,
    AppendRequest,
    CommitNotice,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatReply,
    VoteRequest,
)
from tests.raft.cluster import RaftSnapshot, SimulatedDisk, SimulatedNode, bootstrapped_disk, settle

SNAPSHOT = RaftSnapshot(9, 2, Configuration((1, 2, 4)), 77)


@pytest.fixture
def follower() -> SimulatedNode:
    """Node 1 of three, following node 2 in term 2."""
    node = SimulatedNode(1, bootstrapped_disk([1, 2, 3]), Settings(), Random(1))
    node.core.step(Heartbeat(2, 1, 2, 0))
    settle(node)
    node.outbox.clear()
    return node


def append(index: int, previous_term: int = 2) -> AppendRequest:
    entry = Entry(index, 2, EntryKind.COMMANDS, b"x")
    return AppendRequest(2, 1, 2, index - 1, previous_term, 0, [entry])


def test_after_an_installation_the_log_begins_after_the_raft_snapshot(
    follower: SimulatedNode,
) -> None:
    core = follower.core
    assert core.begin_restore(9, 2)
    follower.install(SNAPSHOT)
    assert (core.first_index, core.last_index, core.stable_index) == (10, 9, 9)
    assert (core.commit_index, core.applied_index, core.term_at(9)) == (9, 9, 2)
    assert core.configuration == core.committed_configuration == SNAPSHOT.configuration
    core.step(append(10))
    settle(follower)
    assert follower.outbox == [AppendAccepted(1, 2, 2, 10)]


def test_the_log_does_not_change_while_a_raft_snapshot_is_installed(
    follower: SimulatedNode,
) -> None:
    core = follower.core
    assert core.begin_restore(9, 2)
    core.step(append(2, 1))
    core.step(Heartbeat(2, 1, 2, 1))
    for _ in range(50):
        core.tick()
    settle(follower)
    assert (core.last_index, core.commit_index, core.role) == (1, 0, Role.FOLLOWER)
    assert follower.outbox == [HeartbeatReply(1, 2, 2)], "the leader hears that the node lives"


def test_votes_are_still_given_while_a_raft_snapshot_is_installed(follower: SimulatedNode) -> None:
    core = follower.core
    assert core.begin_restore(9, 2)
    for _ in range(50):
        core.tick()
    core.step(VoteRequest(3, 1, 5, 9, 2))
    settle(follower)
    follower.install(SNAPSHOT)
    assert core.hard_state == HardState(5, 3)
    assert core.last_index == 9


def test_a_raft_snapshot_of_committed_entries_is_refused(follower: SimulatedNode) -> None:
    follower.core.step(append(2, 1))
    follower.core.step(Heartbeat(2, 1, 2, 2))
    settle(follower)
    assert not follower.core.begin_restore(2, 2)
    assert not follower.core.restore(2, 2, Configuration((9,)))
    assert follower.core.last_index == 2
    assert follower.core.configuration == Configuration((1, 2, 3))


def test_a_raft_snapshot_of_an_unknown_term_waits_until_the_term_is_known(
    follower: SimulatedNode,
) -> None:
    assert not follower.core.begin_restore(9, 3)
    follower.core.step(Heartbeat(3, 1, 3, 0))
    assert follower.core.begin_restore(9, 3)


def test_only_the_accepted_raft_snapshot_is_installed(follower: SimulatedNode) -> None:
    with pytest.raises(AssertionError, match="begin_restore"):
        follower.core.restore(9, 2, SNAPSHOT.configuration)


def test_no_raft_snapshot_is_installed_while_entries_are_being_written(
    follower: SimulatedNode,
) -> None:
    follower.core.step(append(2, 1))
    follower.take_readies()
    assert follower.core.begin_restore(9, 2)
    with pytest.raises(AssertionError, match="on their way"):
        follower.core.restore(9, 2, SNAPSHOT.configuration)


def test_a_term_that_only_the_raft_snapshot_names_is_entered_at_the_start() -> None:
    disk = SimulatedDisk()
    disk.write(HardState(1), [])
    disk.reset(9, 4)
    node = SimulatedNode(
        1, disk, Settings(), Random(1), applied=9, configuration=Configuration((2,))
    )
    settle(node)
    assert node.disk.hard_state == HardState(4)


def test_a_state_that_its_log_does_not_reach_is_refused() -> None:
    with pytest.raises(RaftViolation, match="from 1 to 1"):
        Core(
            node_id=1,
            hard_state=HardState(1),
            log=bootstrapped_disk([1]),
            applied_index=3,
            random=Random(1),
        )


def test_the_leader_reports_the_progress_of_its_followers() -> None:
    node = SimulatedNode(1, bootstrapped_disk([1]), Settings(), Random(1))
    settle(node)
    node.core.propose_configuration(Configuration((1,), (), (2,)))
    settle(node)
    node.core.tick()
    assert node.core.peers() == {2: PeerStatus(0, 3, "probe", 1)}
    node.core.step(AppendAccepted(2, 1, 2, 3))
    assert node.core.peers() == {2: PeerStatus(3, 4, "replicate", 0)}


def test_a_node_withholds_its_vote_until_lost_entries_are_back() -> None:
    node = SimulatedNode(1, bootstrapped_disk([1, 2, 3]), Settings(), Random(1), lost_below=3)
    assert not node.core.may_vote
    node.core.step(append(2, 1))
    node.core.step(append(3))
    settle(node)
    node.core.step(Heartbeat(2, 1, 2, 2))
    assert not node.core.may_vote
    node.core.step(Heartbeat(2, 1, 2, 3))
    assert node.core.may_vote


def test_the_leaders_log_decides_when_a_node_may_vote_again() -> None:
    """Confirmed entry 4 is lost with the notes on it, and the leader counts that confirmation: a
    vote for someone without the entry would undo what is committed."""
    node = SimulatedNode(1, bootstrapped_disk([1, 2, 3]), Settings(), Random(1), lost_below=2)
    node.core.step(append(2, 1))
    settle(node)
    node.core.step(Heartbeat(2, 1, 2, 2, last_index=4))
    assert not node.core.may_vote, "it holds what it noted, but the leader's log goes on"
    node.core.step(append(3))
    node.core.step(append(4))
    settle(node)
    node.core.step(Heartbeat(2, 1, 2, 3, last_index=4))
    assert not node.core.may_vote, "entry 4 might not be committed by this leader"
    node.core.step(Heartbeat(2, 1, 2, 4, last_index=4))
    assert node.core.may_vote


def test_a_heartbeat_from_before_the_loss_does_not_say_how_long_the_leaders_log_is() -> None:
    node = SimulatedNode(1, bootstrapped_disk([1, 2, 3]), Settings(), Random(1), lost_below=2)
    node.core.step(append(2, 1))
    settle(node)
    for earlier in (NO_LIFE, 7):
        node.core.step(Heartbeat(2, 1, 2, 2, last_index=2, life=earlier))
        assert not node.core.may_vote
    settle(node)
    life = node.core._state.vote_eligibility.life
    assert [reply.life for reply in node.outbox if isinstance(reply, HeartbeatReply)] == [life] * 2
    node.core.step(Heartbeat(2, 1, 2, 2, last_index=2, life=life))
    assert node.core.may_vote


def test_a_commit_index_restores_the_vote_only_once_the_leaders_log_length_is_known() -> None:
    node = SimulatedNode(1, bootstrapped_disk([1, 2, 3]), Settings(), Random(1), lost_below=1)
    node.core.step(append(2, 1))
    settle(node)
    node.core.step(CommitNotice(2, 1, 2, 2))
    assert not node.core.may_vote


def test_a_later_leaders_shorter_log_replaces_the_required_length() -> None:
    node = SimulatedNode(1, bootstrapped_disk([1, 2, 3]), Settings(), Random(1), lost_below=1)
    node.core.step(Heartbeat(2, 1, 2, 0, last_index=90))
    node.core.step(AppendRequest(3, 1, 3, 1, 1, 1, [Entry(2, 3, EntryKind.COMMANDS, b"")]))
    settle(node)
    node.core.step(Heartbeat(3, 1, 3, 2, last_index=2))
    assert node.core.may_vote
