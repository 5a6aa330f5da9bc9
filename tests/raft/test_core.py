"""The core's contract with its shell, beyond what the scripts show."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from streamd.raft.core import Core, NotLeader, Overloaded, Role, Settings
from streamd.raft.membership import BOOTSTRAP_HARD_STATE, encode_configuration
from streamd.raft.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    CommitNotice,
    Configuration,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    Message,
    ReadReply,
    ReadRequest,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from tests.raft.cluster import SimulatedDisk, SimulatedNode, bootstrapped_disk, lone_leader, settle


class SlowToRead(SimulatedDisk):
    """Notices when the core reads entries back."""

    forbidden = False

    def entries(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        assert not self.forbidden, "an entry was read back"
        return super().entries(lo, hi, max_bytes)


def write_all(node: SimulatedNode) -> None:
    while node.writes:
        node.write_one()
        node.complete_one()


def test_a_batch_takes_three_calls_and_never_touches_the_disk_again() -> None:
    node = lone_leader()
    disk = SlowToRead()
    disk.__dict__.update(node.disk.__dict__)
    core = Core(
        node_id=1,
        hard_state=disk.hard_state,
        log=disk,
        applied_index=2,
        random=Random(1),
        configuration=Configuration((1,)),
    )
    node.core, node.disk = core, disk
    settle(node)
    disk.forbidden = True
    payload = b"x" * 1000
    [index] = core.propose([payload])
    ready = core.ready()
    assert ready is not None
    assert ready.entries[0].payload is payload, "payloads are never copied"
    disk.write(ready.hard_state, ready.entries)
    core.stored(*ready.completion)
    ready = core.ready()
    assert ready is not None
    assert [entry.payload for entry in ready.committed] == [payload]
    assert ready.committed[0].payload is payload
    assert not ready.must_store
    core.applied(index)
    assert core.ready() is None


def test_nothing_grows_with_the_number_of_batches() -> None:
    node = lone_leader()
    for _ in range(200):
        node.core.propose([b"payload"])
        settle(node)
    core = node.core
    assert core.applied_index == core.last_index == 202
    assert core._log._recent == []
    assert not core._writes
    assert core._roles.leadership is not None
    assert core._roles.leadership._uncommitted_bytes == 0
    assert len(core._state.configurations._indexes) == 1


def test_writes_end_in_the_order_in_which_they_began() -> None:
    node = lone_leader()
    node.core.propose([b"a"])
    node.take_readies()
    node.core.propose([b"b"])
    node.take_readies()
    with pytest.raises(ValueError, match=r"expected \(2, 3\)"):
        node.core.stored(2, 4)
    node.core.stored(2, 3)
    node.core.stored(2, 4)
    with pytest.raises(ValueError, match="expected None"):
        node.core.stored(2, 4)


def test_several_payloads_are_several_entries_of_one_term() -> None:
    node = lone_leader()
    assert node.core.propose([b"a", b"b"]) == range(3, 5)
    assert node.core.propose([]) == range(5, 5)
    assert [node.core.entry_at(index).payload for index in (3, 4)] == [b"a", b"b"]


def test_a_refused_proposal_leaves_no_trace() -> None:
    node = lone_leader(max_uncommitted_bytes=4)
    node.core.propose([b"1234"])
    with pytest.raises(Overloaded) as refusal:
        node.core.propose([b"5"])
    assert refusal.value.uncommitted_bytes == 4
    assert refusal.value.max_uncommitted_bytes == 4
    assert node.core.last_index == 3


def test_a_proposal_to_a_follower_learns_who_leads() -> None:
    node = SimulatedNode(1, bootstrapped_disk([1, 2, 3]), Settings(), Random(1))
    for ask in (lambda: node.core.propose([b"x"]), lambda: node.core.read(1)):
        with pytest.raises(NotLeader, match="no leader is known"):
            ask()
    node.core.step(Heartbeat(2, 1, 5, 0))
    refused: list[Callable[[], object]] = [
        lambda: node.core.propose([b"x"]),
        lambda: node.core.propose_configuration(Configuration((1,))),
        lambda: node.core.transfer(1),
    ]
    for propose in refused:
        with pytest.raises(NotLeader, match="node 2 is") as refusal:
            propose()
        assert refusal.value.leader_id == 2
    assert node.core.local_read_index() is None
    assert node.core.peers() == {}


def test_a_lone_voter_that_learns_of_a_higher_term_leads_again_in_a_higher_one() -> None:
    node = lone_leader()
    node.core.propose_configuration(Configuration((1,), learners=(9,)))
    settle(node)
    node.core.step(Heartbeat(9, 1, 50, 0))
    settle(node)
    assert node.core.leader_id == 9
    for _ in range(20):
        node.core.tick()
    settle(node)
    assert node.core.role == Role.LEADER
    assert node.core.term == 51


STRANGERS = [
    TimeoutNow(9, 1, 2),
    TimeoutNow(9, 1, 50),
    AppendRequest(9, 1, 2, 1, 1, 1, []),
    AppendRequest(9, 1, 50, 0, 0, 0, [Entry(1, 50, 0, b"")]),
    Heartbeat(9, 1, 2, 1),
    Heartbeat(9, 1, 50, 40, 0, 50),
    CommitNotice(9, 1, 50, 40),
    VoteRequest(9, 1, 50, 99, 49),
    VoteRequest(9, 1, 50, 99, 49, transfer=True),
    VoteReply(9, 1, 50, granted=False),
    AppendAccepted(9, 1, 2, 99),
    AppendRejected(9, 1, 50, 1, 1, 1),
    HeartbeatReply(9, 1, 50),
    ReadRequest(9, 1, 50, 1, 1),
    ReadReply(9, 1, 50, 1, 1, 1),
]


@pytest.mark.parametrize("message", STRANGERS, ids=lambda m: f"{type(m).__name__}-{m.term}")
@pytest.mark.parametrize("leads", [True, False])
def test_a_non_members_messages_are_ignored_while_there_is_a_leader(
    message: Message, leads: bool
) -> None:
    if leads:
        node = lone_leader()
    else:
        node = SimulatedNode(1, bootstrapped_disk([1, 2, 3]), Settings(), Random(1))
        node.core.step(Heartbeat(2, 1, 2, 0))
    settle(node)
    before = node.core.term, node.core.role, node.core.leader_id, node.core.last_index
    node.core.step(message)
    settle(node)
    assert (node.core.term, node.core.role, node.core.leader_id, node.core.last_index) == before
    assert node.core.refused_messages == 1


def test_a_non_member_may_lead_a_node_that_hears_no_leader() -> None:
    """The node's log may lack the entry that made it a member (thesis 4.1)."""
    node = SimulatedNode(1, bootstrapped_disk([1, 2, 3]), Settings(), Random(1))
    node.core.step(AppendRequest(9, 1, 7, 1, 1, 1, [Entry(2, 7, 0, b"")]))
    settle(node)
    assert (node.core.leader_id, node.core.last_index) == (9, 2)
    node.core.step(Heartbeat(9, 1, 7, 2))
    assert node.core.refused_messages == 0


@pytest.mark.parametrize(
    "message",
    [
        TimeoutNow(3, 1, 2),
        AppendAccepted(3, 1, 2, 99),
        HeartbeatReply(3, 1, 2, 99),
        AppendRequest(4, 1, 2, 1, 1, 1, []),
    ],
    ids=["campaign", "confirmation", "read", "learner"],
)
def test_an_unproven_higher_term_does_not_depose_a_leader(message: Message) -> None:
    disk = SimulatedDisk()
    payload = encode_configuration(Configuration((1, 2, 3), learners=(4,)))
    disk.write(BOOTSTRAP_HARD_STATE, [Entry(1, 1, EntryKind.CONFIGURATION, payload)])
    node = SimulatedNode(1, disk, Settings(), Random(1))
    while node.core.role != Role.PRE_CANDIDATE:
        node.core.tick()
    node.core.step(VoteReply(2, 1, 2, granted=True, pre_vote=True))
    settle(node)
    node.core.step(VoteReply(2, 1, 2, granted=True))
    settle(node)
    assert node.core.role == Role.LEADER
    node.core.step(message)
    settle(node)
    assert (node.core.role, node.core.term) == (Role.LEADER, 2)
    assert node.core.refused_messages == 1


def test_a_single_voter_stays_leader_without_peers() -> None:
    node = lone_leader()
    for _ in range(100):
        node.core.tick()
    assert node.core.role == Role.LEADER
    assert node.core.ready() is None


def test_a_late_append_does_not_cut_off_what_a_later_one_brought() -> None:
    node = SimulatedNode(1, bootstrapped_disk([1, 2, 3]), Settings(), Random(1))
    first, second = (Entry(i, 2, EntryKind.COMMANDS, b"%d" % i) for i in (2, 3))
    node.core.step(AppendRequest(2, 1, 2, 1, 1, 0, [first, second]))
    node.core.step(AppendRequest(2, 1, 2, 1, 1, 0, [first]))
    node.core.step(AppendRequest(2, 1, 2, 1, 1, 0, []))
    assert node.core.last_index == 3


def test_a_configuration_beyond_the_applied_index_is_found_in_the_log() -> None:
    disk = bootstrapped_disk([1, 2, 3])
    disk.write(None, [Entry(i, 1, EntryKind.COMMANDS, b"x") for i in range(2, 5)])
    node = SimulatedNode(1, disk, Settings(), Random(1))
    assert node.core.configuration == Configuration((1, 2, 3))
    later = SimulatedNode(
        1, disk, Settings(), Random(1), applied=4, configuration=Configuration((1, 4, 5))
    )
    assert later.core.configuration == Configuration((1, 4, 5))


def test_election_timeouts_are_spread_between_one_and_two_by_the_given_randomness() -> None:
    timeouts = set()
    for seed in range(100):
        node = SimulatedNode(1, bootstrapped_disk([1, 2, 3]), Settings(), Random(seed))
        ticks = 0
        while node.core.role == Role.FOLLOWER:
            node.core.tick()
            ticks += 1
        timeouts.add(ticks)
    assert timeouts == set(range(10, 20))
