"""Figure 2 of the Raft paper, and the rules of its sections 5 to 8, one test for each sentence.

The docstrings give the rule in our words. Where streamd deliberately does more (it asks before it
campaigns, and probes before it streams), the test shows the rule within that.
"""

from __future__ import annotations

from random import Random

import pytest

from streamd.raft.core import Core, NotLeader, RaftViolation, Role, Settings
from streamd.raft.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatReply,
    Message,
    VoteReply,
    VoteRequest,
)
from tests.raft.cluster import SimulatedDisk, SimulatedNode, settle

VOTERS = Configuration((1, 2, 3))


def entry(index: int, term: int) -> Entry:
    return Entry(index, term, EntryKind.COMMANDS, b"%d/%d" % (index, term))


def node_with(*terms: int, term: int = 0, vote: int = 0) -> SimulatedNode:
    """Node 1 of three, with a log of entries of these terms, none known to be committed."""
    disk = SimulatedDisk()
    log = [entry(index, t) for index, t in enumerate(terms, 1)]
    disk.write(HardState(term or max(terms, default=0), vote), log)
    return SimulatedNode(1, disk, Settings(), Random(1), configuration=VOTERS)


def told(node: SimulatedNode, message: Message) -> list[Message]:
    """The node's messages once it has handled that one."""
    node.core.step(message)
    return said(node)


def said(node: SimulatedNode) -> list[Message]:
    settle(node)
    messages, node.outbox = node.outbox, []
    return messages


def timed_out(node: SimulatedNode) -> list[Message]:
    for _ in range(2 * Settings().election_timeout_ticks):
        node.core.tick()
        if node.core._roles.timer.elapsed == 0:
            break
    return said(node)


def candidate(*terms: int) -> SimulatedNode:
    node = node_with(*terms)
    timed_out(node)
    told(node, VoteReply(2, 1, node.core.term + 1, True, pre_vote=True))
    assert node.core.role == Role.CANDIDATE
    return node


def leader(*terms: int) -> SimulatedNode:
    """Node 1, just elected; nobody has answered its requests."""
    node = candidate(*terms)
    node.core.step(VoteReply(2, 1, node.core.term, True))
    assert node.core.role == Role.LEADER
    return node


def appends(messages: list[Message], to: int) -> list[AppendRequest]:
    return [m for m in messages if isinstance(m, AppendRequest) and m.to == to]


# -- state ------------------------------------------------------------------------------------


def test_persistent_state_is_on_disk_before_an_answer_leaves() -> None:
    """Term, vote and log are stored before a request is answered."""
    node = node_with(1)
    node.core.step(VoteRequest(2, 1, 5, 9, 4))
    node.core.step(AppendRequest(2, 1, 5, 1, 1, 0, [entry(2, 5)]))
    node.take_readies()
    assert not [m for m in node.outbox if isinstance(m, VoteReply | AppendAccepted)]
    settle(node)
    assert {type(m) for m in node.outbox} == {VoteReply, AppendAccepted}
    assert node.disk.hard_state == HardState(5, 2)
    assert node.disk.last_index == 2


def test_the_term_begins_at_zero() -> None:
    """A node that starts for the first time is in term 0 and has voted for nobody."""
    assert node_with().core.hard_state == HardState(0, 0)


def test_the_term_only_grows() -> None:
    """The latest term a node has seen never goes back."""
    node = node_with(1, term=7)
    told(node, Heartbeat(2, 1, 5, 0))
    assert node.core.term == 7
    told(node, Heartbeat(2, 1, 8, 0))
    assert node.core.term == 8


def test_a_new_term_begins_without_a_vote() -> None:
    """The vote is for one term only."""
    node = node_with(1, term=4, vote=3)
    told(node, Heartbeat(2, 1, 5, 0))
    assert node.disk.hard_state == HardState(5, 0)


def test_entries_hold_a_command_and_a_term_from_index_one_on() -> None:
    """Each entry has the command and the term in which its leader received it."""
    node = node_with()
    told(node, AppendRequest(2, 1, 3, 0, 0, 0, [entry(1, 3)]))
    assert node.core.entry_at(1) == entry(1, 3)


def test_the_commit_index_begins_at_zero_and_only_grows() -> None:
    """What is known to be committed is not stored, and never shrinks."""
    node = node_with(1, 1, 1)
    assert node.core.commit_index == 0
    told(node, Heartbeat(2, 1, 1, 2))
    told(node, Heartbeat(2, 1, 1, 1))
    assert node.core.commit_index == 2


def test_the_applied_index_begins_at_zero_and_only_grows() -> None:
    """What is applied follows what is committed."""
    node = node_with(1, 1, 1)
    assert node.core.applied_index == 0
    told(node, Heartbeat(2, 1, 1, 2))
    assert node.core.applied_index == 2
    with pytest.raises(AssertionError):
        node.core.applied(1)


def test_a_new_leader_assumes_that_followers_have_its_log() -> None:
    """The next index of a follower begins after the leader's last entry before its election."""
    peers = leader(1, 1).core.peers()
    assert {peer.next_index for peer in peers.values()} == {3}


def test_a_new_leader_knows_of_no_match_and_matches_only_grow() -> None:
    """The match index begins at zero and an old answer does not lower it."""
    node = leader(1, 1)
    assert {peer.match_index for peer in node.core.peers().values()} == {0}
    told(node, AppendAccepted(2, 1, 2, 3))
    told(node, AppendAccepted(2, 1, 2, 2))
    assert node.core.peers()[2].match_index == 3


# -- AppendEntries ----------------------------------------------------------------------------


def test_a_request_names_the_leader_to_follow() -> None:
    """The leader's id lets a follower send clients there."""
    node = node_with(1)
    told(node, AppendRequest(2, 1, 1, 1, 1, 0, []))
    with pytest.raises(NotLeader) as refusal:
        node.core.propose([b"x"])
    assert refusal.value.leader_id == 2


def test_append_1_an_outdated_leader_is_refused() -> None:
    """An append of an earlier term changes nothing; the answer has the present term."""
    node = node_with(1, term=5)
    assert told(node, AppendRequest(2, 1, 4, 1, 1, 1, [entry(2, 4)])) == [HeartbeatReply(1, 2, 5)]
    assert node.core.last_index == 1


@pytest.mark.parametrize("previous", [(3, 1), (2, 2)], ids=["missing", "of another term"])
def test_append_2_without_the_previous_entry_it_is_refused(previous: tuple[int, int]) -> None:
    """The entry before the new ones must be there, with the right term."""
    node = node_with(1, 1)
    [reply] = told(node, AppendRequest(2, 1, 2, *previous, 0, [entry(previous[0] + 1, 2)]))
    assert isinstance(reply, AppendRejected)
    assert node.core.last_index == 2


def test_append_3_a_conflicting_entry_and_all_that_follow_are_removed() -> None:
    """Same index, other term: that entry and everything after it is removed."""
    node = node_with(1, 1, 1, 1)
    told(node, AppendRequest(2, 1, 2, 1, 1, 0, [entry(2, 2)]))
    assert [node.core.term_at(i) for i in (1, 2)] == [1, 2]
    assert node.core.last_index == 2


def test_append_4_only_what_is_new_is_appended() -> None:
    """Entries that are there already are neither written again nor cut off."""
    node = node_with(1, 1, 1)
    node.core.step(AppendRequest(2, 1, 1, 0, 0, 0, [entry(i, 1) for i in (1, 2, 3, 4)]))
    ready = node.core.ready()
    assert ready is not None
    assert [e.index for e in ready.entries] == [4]


def test_append_5_the_commit_index_follows_as_far_as_the_new_entries_reach() -> None:
    """It becomes the lower one of the leader's and the last new entry's."""
    node = node_with(1, 1, 1)
    told(node, AppendRequest(2, 1, 2, 1, 1, 9, [entry(2, 1)]))
    assert node.core.commit_index == 2
    told(node, AppendRequest(2, 1, 2, 2, 1, 2, [entry(3, 1)]))
    assert node.core.commit_index == 2


# -- RequestVote ------------------------------------------------------------------------------


def test_vote_1_an_outdated_candidate_is_refused() -> None:
    """A candidate of an earlier term gets no vote."""
    node = node_with(1, term=5)
    assert told(node, VoteRequest(2, 1, 4, 9, 9)) == [VoteReply(1, 2, 5, False)]


def test_vote_2_one_vote_in_a_term_and_the_same_one_again() -> None:
    """A node that has voted repeats that vote, and gives no other."""
    node = node_with(1)
    assert told(node, VoteRequest(2, 1, 4, 1, 1)) == [VoteReply(1, 2, 4, True)]
    assert told(node, VoteRequest(3, 1, 4, 1, 1)) == [VoteReply(1, 3, 4, False)]
    assert told(node, VoteRequest(2, 1, 4, 1, 1)) == [VoteReply(1, 2, 4, True)]


def test_vote_2_holds_after_a_restart() -> None:
    """A vote survives a crash."""
    node = node_with(1)
    told(node, VoteRequest(2, 1, 4, 1, 1))
    node.start()
    assert told(node, VoteRequest(3, 1, 4, 9, 3)) == [VoteReply(1, 3, 4, False)]


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"),
    [(2, 2, True), (3, 2, True), (1, 3, True), (1, 2, False), (9, 1, False)],
)
def test_vote_2_only_for_a_log_at_least_as_complete(
    last_index: int, last_term: int, granted: bool
) -> None:
    """The later last term is more complete; with equal terms, the longer log (section 5.4.1)."""
    node = node_with(1, 2)
    assert told(node, VoteRequest(2, 1, 4, last_index, last_term)) == [VoteReply(1, 2, 4, granted)]


# -- all servers ------------------------------------------------------------------------------


def test_all_1_what_is_committed_is_applied_in_order() -> None:
    """While more is committed than applied, the next entry is applied."""
    node = node_with(1, 1, 1)
    node.core.step(Heartbeat(2, 1, 1, 3))
    ready = node.core.ready()
    assert ready is not None
    assert [e.index for e in ready.committed] == [1, 2, 3]


@pytest.mark.parametrize("make", [candidate, leader])
@pytest.mark.parametrize(
    "message",
    [Heartbeat(2, 1, 9, 0), VoteReply(2, 1, 9, False), HeartbeatReply(2, 1, 9)],
    ids=["request", "refusal", "reply"],
)
def test_all_2_a_higher_term_makes_anyone_a_follower(make: object, message: Message) -> None:
    """A node that sees a later term enters it and follows."""
    assert callable(make)
    node = make(1)
    told(node, message)
    assert (node.core.role, node.core.term) == (Role.FOLLOWER, 9)


# -- followers --------------------------------------------------------------------------------


def test_follower_1_candidates_and_leaders_get_answers() -> None:
    """A follower sends nothing unasked and answers every request."""
    node = node_with(1)
    assert said(node) == []
    for request in (
        VoteRequest(2, 1, 2, 1, 1),
        AppendRequest(2, 1, 2, 1, 1, 0, []),
        Heartbeat(2, 1, 2, 0),
    ):
        assert len(told(node, request)) == 1


def test_follower_2_without_a_leader_it_campaigns() -> None:
    """An election timeout without an append or a vote given makes it a candidate."""
    node = node_with(1)
    requests = timed_out(node)
    assert {m.to for m in requests if isinstance(m, VoteRequest)} == {2, 3}


@pytest.mark.parametrize(
    "message", [Heartbeat(2, 1, 1, 0), VoteRequest(2, 1, 1, 1, 1)], ids=["leader", "vote given"]
)
def test_follower_2_a_leader_or_a_vote_given_restarts_the_timeout(message: Message) -> None:
    """It waits as long again after hearing from the leader, or helping a candidate."""
    node = node_with(1)
    for _ in range(3 * Settings().election_timeout_ticks):
        node.core.tick()
        told(node, message)
    assert node.core.role == Role.FOLLOWER


# -- candidates -------------------------------------------------------------------------------


def test_candidate_1_a_campaign_begins_with_a_term_a_vote_and_requests() -> None:
    """The term grows by one, the own vote is cast, the timer restarts, everybody is asked."""
    node = node_with(1)
    timed_out(node)
    requests = told(node, VoteReply(2, 1, 2, True, pre_vote=True))
    assert node.disk.hard_state == HardState(2, 1)
    assert node.core._roles.timer.elapsed == 0
    assert requests == [VoteRequest(1, 2, 2, 1, 1), VoteRequest(1, 3, 2, 1, 1)]


def test_candidate_2_a_majority_of_votes_makes_a_leader() -> None:
    """Its own and one more of three; a refusal does not count."""
    node = candidate(1)
    node.core.step(VoteReply(3, 1, 2, False))
    assert node.core.role == Role.CANDIDATE
    node.core.step(VoteReply(2, 1, 2, True))
    assert node.core.role == Role.LEADER


def test_candidate_3_a_new_leader_makes_it_a_follower() -> None:
    """An append of its own term comes from the candidate that won."""
    node = candidate(1)
    told(node, AppendRequest(3, 1, 2, 1, 1, 0, []))
    assert (node.core.role, node.core.leader_id) == (Role.FOLLOWER, 3)


def test_candidate_4_a_campaign_without_a_result_is_followed_by_another() -> None:
    """When the timeout passes it campaigns again."""
    node = candidate(1)
    requests = timed_out(node)
    assert {m.term for m in requests if isinstance(m, VoteRequest)} == {3}


# -- leaders ----------------------------------------------------------------------------------


def test_leader_1_it_sends_heartbeats_at_once_and_while_idle() -> None:
    """Heartbeats announce the new leader and show that it is alive."""
    node = leader(1)
    assert {m.to for m in said(node) if isinstance(m, AppendRequest)} == {2, 3}
    node.core.tick()
    assert {m.to for m in said(node) if isinstance(m, Heartbeat)} == {2, 3}


def test_leader_2_a_command_is_appended_and_applied_once_committed() -> None:
    """The client's answer waits until the entry is applied."""
    node = leader(1)
    [index] = node.core.propose([b"x"])
    said(node)
    assert (node.core.last_index, node.core.applied_index) == (index, 0)
    told(node, AppendAccepted(2, 1, 2, index))
    assert node.core.applied_index == index


def test_leader_3_a_follower_that_lacks_entries_gets_them_from_its_next_index() -> None:
    """Entries beyond the follower's next index are sent."""
    node = leader(1)
    said(node)
    told(node, AppendAccepted(2, 1, 2, 2))
    node.core.propose([b"x"])
    [request] = appends(said(node), 2)
    assert (request.prev_index, [e.index for e in request.entries]) == (2, [3])


def test_leader_3_success_moves_next_and_match_index() -> None:
    """What the follower confirmed is known to be equal, and sending goes on after it."""
    node = leader(1)
    said(node)
    told(node, AppendAccepted(2, 1, 2, 2))
    status = node.core.peers()[2]
    assert (status.match_index, status.next_index) == (2, 3)


def test_leader_3_after_an_inconsistency_it_retries_further_back() -> None:
    """After a refusal the next request begins earlier."""
    node = leader(1, 1, 1)
    [first] = appends(said(node), 2)
    [second] = appends(told(node, AppendRejected(2, 1, 2, first.prev_index, 1, 1)), 2)
    assert second.prev_index == 1
    assert second.entries[0].index == 2


def test_leader_4_an_entry_of_its_own_term_on_a_majority_is_committed() -> None:
    """An index that a majority matches, and whose entry is of the present term."""
    node = leader(1)
    said(node)
    told(node, AppendAccepted(2, 1, 2, 1))
    assert node.core.commit_index == 0, "of an earlier term, though a majority has it"
    told(node, AppendAccepted(2, 1, 2, 2))
    assert node.core.commit_index == 2


# -- sections 5 to 8 --------------------------------------------------------------------------


def test_a_leader_never_changes_its_own_log() -> None:
    """A leader only appends (section 5.3): two leaders in one term cannot be."""
    node = leader(1)
    said(node)
    with pytest.raises(RaftViolation, match="both lead term 2"):
        node.core.step(AppendRequest(3, 1, 2, 0, 0, 0, [entry(1, 2)]))
    assert node.core.term_at(1) == 1


def test_a_follower_never_removes_what_is_committed() -> None:
    """Leaders have all committed entries (section 5.4); one that lacks some cannot lead."""
    node = node_with(1, 1)
    told(node, Heartbeat(2, 1, 1, 2))
    with pytest.raises(RaftViolation, match="committed"):
        node.core._log.truncate(2)


def test_requests_may_come_twice() -> None:
    """The same append again leaves the log as it is and gets the same answer (section 5.5)."""
    node = node_with(1)
    request = AppendRequest(2, 1, 2, 1, 1, 0, [entry(2, 2)])
    assert told(node, request) == told(node, request) == [AppendAccepted(1, 2, 2, 2)]
    assert node.core.last_index == 2


def test_a_voter_that_hears_a_leader_ignores_campaigns() -> None:
    """Within an election timeout of hearing a leader, a vote request changes nothing (6)."""
    node = node_with(1)
    told(node, Heartbeat(2, 1, 1, 0))
    assert told(node, VoteRequest(3, 1, 9, 9, 9)) == []
    assert node.core.term == 1


def test_a_raft_snapshot_stands_for_the_entries_it_replaces() -> None:
    """The term of the last entry that a Raft snapshot covers is kept for the check of appends
    (7)."""
    disk = SimulatedDisk()
    disk.write(HardState(3), [entry(1, 1), entry(2, 3)])
    disk.compact(2)
    core = Core(
        node_id=1,
        hard_state=disk.hard_state,
        log=disk,
        applied_index=2,
        random=Random(1),
        configuration=VOTERS,
    )
    core.step(AppendRequest(2, 1, 3, 2, 3, 2, [entry(3, 3)]))
    assert core.last_index == 3


def test_a_new_leader_commits_an_empty_entry_first() -> None:
    """Its first entry shows what is committed (8)."""
    node = leader(1)
    assert node.core.entry_at(2).kind == EntryKind.NOOP


def test_a_read_is_answered_after_a_majority_has_confirmed_the_leader() -> None:
    """Neither before the own entry is committed, nor before a round of heartbeats (8)."""
    node = leader(1)
    node.core.read(7)
    assert not [m for m in said(node) if isinstance(m, Heartbeat)]
    round_of_reads = [m for m in told(node, AppendAccepted(2, 1, 2, 2)) if isinstance(m, Heartbeat)]
    assert {m.round for m in round_of_reads} == {1}
    assert node.reads == []
    told(node, HeartbeatReply(2, 1, 2, 1))
    assert [(read.context, read.index) for read in node.reads] == [(7, 2)]
