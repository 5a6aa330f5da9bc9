"""How a leader treats answers of non-members and of members that leave, and when it has caught
up."""

from __future__ import annotations

from random import Random

import pytest

from streamd.raft.core import Role, Settings
from streamd.raft.messages import (
    NO_LIFE,
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    Configuration,
    Heartbeat,
    HeartbeatReply,
    TimeoutNow,
    VoteReply,
)
from tests.raft.cluster import SimulatedNode, bootstrapped_disk, lone_leader, settle


def leader_of_three(**limits: int) -> SimulatedNode:
    """Node 1, elected by node 2, with its first entry at index 2 on its own disk alone."""
    node = SimulatedNode(1, bootstrapped_disk([1, 2, 3]), Settings(**limits), Random(1))
    core = node.core
    while core.role == Role.FOLLOWER:
        core.tick()
    core.step(VoteReply(2, 1, core.term + 1, True, pre_vote=True))
    settle(node)
    core.step(VoteReply(2, 1, core.term, True))
    settle(node)
    assert (core.role, core.last_index, core.commit_index) == (Role.LEADER, 2, 0)
    node.outbox.clear()
    return node


def test_a_leader_repeats_what_a_follower_calls_its_life() -> None:
    leader = leader_of_three()
    for life in (NO_LIFE, 77, 78):
        leader.core.step(HeartbeatReply(2, 1, leader.core.term, life=life))
        sent: list[Heartbeat] = []
        while not sent:
            leader.core.tick()
            settle(leader)
            sent = [each for each in leader.outbox if isinstance(each, Heartbeat)]
        assert {heartbeat.to: heartbeat.life for heartbeat in sent} == {2: life, 3: NO_LIFE}
        leader.outbox.clear()


@pytest.mark.parametrize("sender", [1, 9], ids=["the leader itself", "a stranger"])
def test_an_answer_of_a_node_that_does_not_follow_changes_nothing(sender: int) -> None:
    leader = leader_of_three()
    term = leader.core.term
    leader.core.step(AppendAccepted(sender, 1, term, 2))
    leader.core.step(AppendRejected(sender, 1, term, 1, 0, 0))
    leader.core.step(HeartbeatReply(sender, 1, term))
    settle(leader)
    assert leader.core.commit_index == 0
    assert leader.outbox == []


def test_heartbeats_leave_at_the_interval_not_at_every_tick() -> None:
    leader = leader_of_three(heartbeat_interval_ticks=3)
    heard = []
    for _ in range(6):
        leader.outbox.clear()
        leader.core.tick()
        settle(leader)
        heard.append(sum(isinstance(message, Heartbeat) for message in leader.outbox))
    assert heard == [0, 0, 2, 0, 0, 2]


@pytest.mark.parametrize(("leaves", "expected"), [(False, [[3]]), (True, [])])
def test_only_a_member_that_stays_gets_a_raft_snapshot(
    leaves: bool, expected: list[list[int]]
) -> None:
    leader = leader_of_three()
    core = leader.core
    core.step(AppendAccepted(2, 1, core.term, 2))
    settle(leader)
    if leaves:
        core.propose_configuration(Configuration((1, 2)))
        for _ in range(2):
            settle(leader)
            core.step(AppendAccepted(2, 1, core.term, core.last_index))
        settle(leader)
        assert core.configuration == Configuration((1, 2))
    leader.store_state()
    leader.disk.compact(core.last_index)
    core.step(AppendRejected(3, 1, core.term, prev_index=1, hint_index=0, hint_term=0))
    assert [ready.snapshots for ready in leader.take_readies()] == expected


def test_a_leader_has_caught_up_once_an_entry_of_its_own_is_committed() -> None:
    leader = leader_of_three()
    assert not leader.core.is_caught_up
    leader.core.step(AppendAccepted(2, 1, leader.core.term, 2))
    assert leader.core.is_caught_up


def test_a_follower_has_caught_up_once_it_applies_what_its_leader_has() -> None:
    node = SimulatedNode(1, bootstrapped_disk([1, 2]), Settings(), Random(1))
    assert not node.core.is_caught_up
    node.core.step(Heartbeat(2, 1, 1, 1, last_index=1))
    settle(node)
    node.core.tick()
    node.core.tick()
    assert node.core.is_caught_up
    assert lone_leader().core.is_caught_up


def appends_to(node_id: int, leader: SimulatedNode) -> list[AppendRequest]:
    sent = [message for message in leader.outbox if isinstance(message, AppendRequest)]
    return [message for message in sent if message.to == node_id]


def test_a_member_that_lost_confirmed_entries_gets_them_again() -> None:
    leader = leader_of_three()
    core = leader.core
    core.step(AppendAccepted(2, 1, core.term, 2))
    settle(leader)
    leader.outbox.clear()
    core.step(AppendRejected(2, 1, core.term, 2, 1, 1, lost_entries=True))
    settle(leader)
    assert core.peers()[2].match_index == 0
    assert [(sent.prev_index, len(sent.entries)) for sent in appends_to(2, leader)] == [(1, 1)]


def test_a_silent_member_whose_next_entries_are_compacted_gets_a_raft_snapshot() -> None:
    leader = leader_of_three(max_appends_in_flight=1)
    core = leader.core
    for member in (2, 3):
        core.step(AppendAccepted(member, 1, core.term, 2))
    for _ in range(2):
        core.propose([b"x"])
        settle(leader)
        core.step(AppendAccepted(2, 1, core.term, core.last_index))
    settle(leader)
    assert core.commit_index == 4, "node 3 answered only for its first entry"
    leader.store_state()
    leader.disk.compact(core.last_index)
    core.step(HeartbeatReply(3, 1, core.term))
    assert [ready.snapshots for ready in leader.take_readies()] == [[3]]


def test_a_node_that_may_not_vote_ignores_the_request_to_campaign() -> None:
    node = SimulatedNode(9, bootstrapped_disk([1, 2]), Settings(), Random(1))
    settle(node)
    node.core.step(TimeoutNow(1, 9, node.core.term))
    settle(node)
    assert (node.core.role, node.outbox) == (Role.FOLLOWER, [])


def test_a_commit_is_news_until_it_is_announced_to_the_followers() -> None:
    leader = leader_of_three()
    core = leader.core
    assert not core.has_news
    core.step(AppendAccepted(2, 1, core.term, 2))
    assert core.has_news
    assert core.ready(announce=False) is not None
    assert core.has_news
    core.ready()
    assert not core.has_news


def test_a_leader_without_followers_has_no_news_and_no_follower_has_any() -> None:
    alone = lone_leader()
    alone.core.propose([b"x"])
    settle(alone)
    assert alone.core.commit_index == alone.core.last_index
    assert not alone.core.has_news
    follower = SimulatedNode(1, bootstrapped_disk([1, 2, 3]), Settings(), Random(1))
    assert not follower.core.has_news
