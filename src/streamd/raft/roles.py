"""Which role the node plays, what changes it, and which part handles a message in each."""

from __future__ import annotations

from random import Random

from streamd.raft.elections import Candidacy, ElectionTimer, answer_pre_vote, answer_vote
from streamd.raft.following import follow_append, follow_commit_notice, follow_heartbeat
from streamd.raft.interface import NotLeader, RaftViolation, Role
from streamd.raft.leadership import Leadership
from streamd.raft.membership import Verdict
from streamd.raft.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    CommitNotice,
    HardState,
    Heartbeat,
    HeartbeatReply,
    Message,
    ReadReply,
    ReadRequest,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from streamd.raft.reads import ForwardedReads
from streamd.raft.state import State
from streamd.raft.writes import Writes


class Roles:
    """A follower, unless there is a candidacy or a leadership, never both.

    `role` names which of them there is. It is set beside them rather than worked out from them,
    because it is asked for many times in each append.
    """

    def __init__(self, state: State, writes: Writes, random: Random) -> None:
        self._state = state
        self._writes = writes
        self.timer = ElectionTimer(state.settings.election_timeout_ticks, random)
        self.forwarded_reads = ForwardedReads(state, random)
        self.role = Role.FOLLOWER
        self.candidacy: Candidacy | None = None
        self.leadership: Leadership | None = None
        if state.is_only_voter and state.vote_eligibility.may_vote:
            self._campaign()

    def leading(self) -> Leadership:
        """Raises `NotLeader`."""
        if self.leadership is None:
            raise NotLeader(self._state.leader_id)
        return self.leadership

    # -- time and disk --------------------------------------------------------------------

    def tick(self) -> None:
        self.timer.tick()
        if self.leadership is not None:
            self._lead_on(self.leadership)
        elif self.timer.has_run_out:
            self._stand_for_election()
        else:
            self.forwarded_reads.tick()

    def _lead_on(self, leadership: Leadership) -> None:
        """A leader that no majority hears, or that cannot write, steps down: otherwise its
        heartbeats would keep the others from electing a working one."""
        leadership.tick()
        if not leadership.is_heard_by_quorum():
            self._become_follower(self._state.term, 0)
        elif self._writes.have_stalled and self._state.other_voters():
            self._resign(leadership)

    def stored(self, hard_state: HardState, *, with_entries: bool) -> None:
        """A write that had this hard state is on the disk."""
        if with_entries and self.leadership is not None:
            self.leadership.stored()
            self._resign_if_removed(self.leadership)
        candidacy = self.candidacy
        vote_is_stored = hard_state is self._state.hard_state
        # A vote that a crash could take back must not count.
        if candidacy is not None and not candidacy.pre_vote and vote_is_stored:
            candidacy.record(self._state.node_id, True)
            self._conclude_campaign(candidacy)

    # -- messages -------------------------------------------------------------------------

    def step(self, message: Message) -> None:
        """Raises `RaftViolation` for a message that proves that a disk has lost something."""
        if self._has_no_say(message):
            self._state.refused_messages += 1
            return
        term = self._state.term
        if isinstance(message, VoteRequest | VoteReply) and message.pre_vote:
            self._step_pre_vote(message)
        elif message.term < term:
            self._step_outdated(message)
        elif message.term > term and self._ignores_campaign(message):
            return
        else:
            if message.term > term:
                self._become_follower(message.term, 0)
            self._step_in_term(message)

    def _has_no_say(self, message: Message) -> bool:
        """Whether to ignore a message because of its sender.

        A lagging node may not know a member that leads by now, so a stranger may rightly lead or
        campaign (thesis 4.1), but not while this node hears a leader, or leads itself. A node that
        does lag hears the stranger one election timeout later.
        """
        state, sender = self._state, message.sender
        configuration = state.configuration
        if not configuration.voters or configuration.has(sender) or sender == state.leader_id:
            return False
        if isinstance(message, VoteRequest) and message.pre_vote:
            return False  # The answer changes nothing, and tells a node that it was removed.
        if self.leadership is not None:
            # Removed nodes confirm their removal.
            return sender not in self.leadership.replication.progress
        may_lead = isinstance(message, AppendRequest | Heartbeat | CommitNotice | VoteRequest)
        return not may_lead or self._hears_leader()

    def _step_pre_vote(self, message: VoteRequest | VoteReply) -> None:
        term = self._state.term
        if isinstance(message, VoteRequest):
            answer_pre_vote(self._state, message, hears_leader=self._hears_leader())
        elif not message.granted and message.term > term:
            self._become_follower(message.term, 0)
        else:
            candidacy = self.candidacy
            expected = term + 1 if message.granted else term
            if candidacy is not None and candidacy.pre_vote and message.term == expected:
                candidacy.record(message.sender, message.granted)
                self._conclude_campaign(candidacy)

    def _step_outdated(self, message: Message) -> None:
        """Tell a leader or candidate of an earlier term that its time is over."""
        state = self._state
        if isinstance(message, VoteRequest):
            reply = VoteReply(state.node_id, message.sender, state.term, False)
            state.messages_after_store.append(reply)
        elif isinstance(message, AppendRequest | Heartbeat):
            state.messages.append(HeartbeatReply(state.node_id, message.sender, state.term))

    def _ignores_campaign(self, message: Message) -> bool:
        """A needless candidate does not depose a leader by its term, unless the leader itself asked
        it to campaign (thesis 4.2.3)."""
        return isinstance(message, VoteRequest) and not message.transfer and self._hears_leader()

    def _hears_leader(self) -> bool:
        if self.leadership is not None:
            return True
        return self._state.leader_id != 0 and self.timer.is_within_one_timeout

    def _step_in_term(self, message: Message) -> None:
        match message:
            case AppendRequest() | Heartbeat() | CommitNotice() | TimeoutNow() if self._cannot_lead(
                message
            ):
                self._state.refused_messages += 1
            case AppendRequest():
                self._follow(message.sender)
                follow_append(self._state, message)
            case Heartbeat():
                self._follow(message.sender)
                follow_heartbeat(self._state, message)
            case CommitNotice():
                self._follow(message.sender)
                follow_commit_notice(self._state, message)
            case TimeoutNow():
                self._follow(message.sender)
                if self._may_stand:
                    self._campaign(transfer=True)
            case VoteRequest():
                if answer_vote(self._state, message):
                    self.timer.heard()
            case VoteReply():
                candidacy = self.candidacy
                if candidacy is not None and not candidacy.pre_vote:
                    candidacy.record(message.sender, message.granted)
                    self._conclude_campaign(candidacy)
            case ReadReply():
                if message.sender == self._state.leader_id:
                    self.forwarded_reads.on_reply(message)
            case _ if self.leadership is not None:
                self._step_leading(self.leadership, message)

    def _step_leading(self, leadership: Leadership, message: Message) -> None:
        match message:
            case AppendAccepted():
                leadership.on_accepted(message)
                self._resign_if_removed(leadership)
            case AppendRejected():
                leadership.on_rejected(message)
            case HeartbeatReply():
                leadership.on_heartbeat_reply(message)
            case _:
                assert isinstance(message, ReadRequest), message
                leadership.on_read_request(message)

    def _cannot_lead(self, message: Message) -> bool:
        """Whether a message of the current term comes from a leader that the term cannot have.

        Another leader is known, and the sender never had a vote, or is only asking for an election.
        A voter that replicates in a term with another leader is a different case: it shows that a
        vote was lost.
        """
        state = self._state
        if state.leader_id in (0, message.sender):
            return False
        is_voter = state.configuration.is_voter(message.sender)
        return not is_voter or isinstance(message, TimeoutNow)

    def _follow(self, leader_id: int) -> None:
        """Hear from the leader of the current term."""
        known = self._state.leader_id
        if known not in (0, leader_id):
            raise RaftViolation(
                f"nodes {known} and {leader_id} both lead term {self._state.term}: a node id is"
                " used twice, or a disk was set back"
            )
        if self.candidacy is not None or known == 0:
            self._become_follower(self._state.term, leader_id)
        self.timer.heard()

    # -- changes of role ------------------------------------------------------------------

    @property
    def _may_stand(self) -> bool:
        """A node without a vote does not campaign, nor one that could not even store its own vote.

        A removed voter does, until its removal is known to be committed: it may be the only node
        that has the entry that removes it, and then no other can win (thesis 4.2.2).
        """
        state = self._state
        committed = state.configurations.at(state.log.commit_index)
        return (
            (state.configuration.is_voter(state.node_id) or committed.is_voter(state.node_id))
            and state.vote_eligibility.may_vote
            and state.restoring is None
            and not self._writes.have_stalled
        )

    def _become_follower(self, term: int, leader_id: int) -> None:
        if term > self._state.term:
            self._state.hard_state = HardState(term)
        self._leave_role(leader_id)

    def _stand_for_election(self) -> None:
        self._leave_role(0)
        if self._may_stand:
            self.role = Role.PRE_CANDIDATE
            self.candidacy = Candidacy(self._state, pre_vote=True)
            self._conclude_campaign(self.candidacy)

    def _campaign(self, *, transfer: bool = False) -> None:
        self._leave_role(0)
        self.role = Role.CANDIDATE
        self.candidacy = Candidacy(self._state, pre_vote=False, transfer=transfer)

    def _conclude_campaign(self, candidacy: Candidacy) -> None:
        match candidacy.verdict():
            case Verdict.WON if candidacy.pre_vote:
                self._campaign()
            case Verdict.WON:
                self._leave_role(self._state.node_id)
                self.role = Role.LEADER
                self.leadership = Leadership(self._state)
            case Verdict.LOST:
                self._become_follower(self._state.term, 0)

    def _resign_if_removed(self, leadership: Leadership) -> None:
        if leadership.is_removed:
            self._resign(leadership)

    def _resign(self, leadership: Leadership) -> None:
        leadership.hand_over()
        self._become_follower(self._state.term, 0)

    def _leave_role(self, leader_id: int) -> None:
        """Follow that leader, or none yet (0), without a candidacy."""
        self._state.leader_id = leader_id
        self._state.snapshots.clear()
        self.role = Role.FOLLOWER
        self.candidacy = None
        self.leadership = None
        self.forwarded_reads.drop()
        self.timer.restart()
