"""The Raft core: what one node does, as a function of what happens to it.

No clock, no I/O, no randomness of its own. The shell calls an input method (`step`, `propose`,
`read`, `tick`, `stored`, `applied`) and then takes `ready()` until there is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

from streamd.raft.elections import Candidacy, answer_pre_vote, answer_vote
from streamd.raft.following import follow_append, follow_heartbeat
from streamd.raft.interface import (
    LogReader,
    NotLeader,
    Overloaded,
    RaftViolation,
    ReadState,
    Ready,
    Role,
    Settings,
    SoftState,
)
from streamd.raft.leadership import Leadership
from streamd.raft.log import Log
from streamd.raft.membership import ConfigurationHistory, Verdict
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
from streamd.raft.state import State

__all__ = [
    "Core",
    "NotLeader",
    "Overloaded",
    "RaftViolation",
    "ReadState",
    "Ready",
    "Role",
    "Settings",
    "SoftState",
]

SCAN_BYTES = 1024 * 1024
NO_CONFIGURATION = Configuration()


class _Write:
    """A Ready that is being stored, and messages made since that must not overtake it."""

    __slots__ = ("completion", "hard_state", "held", "with_entries")

    def __init__(self, ready: Ready, hard_state: HardState) -> None:
        self.completion = ready.completion
        self.hard_state = hard_state
        self.with_entries = bool(ready.entries)
        self.held: list[Message] = []


class Core:
    """One node of one Raft group.

    `hard_state` and `log` are what the node has stored. `applied_index` is how far its state
    machine has: the core takes everything up to there as committed and hands out what follows.
    `configuration` is the one in force at `applied_index`; later ones are found in the log.
    `random` spreads election timeouts.

    A node that is the only voter needs nobody's consent and stands for election at once.
    """

    def __init__(
        self,
        *,
        node_id: int,
        hard_state: HardState,
        log: LogReader,
        applied_index: int,
        random: Random,
        configuration: Configuration = NO_CONFIGURATION,
        settings: Settings | None = None,
    ) -> None:
        """Raises `RaftViolation` when what was stored cannot be one node's state."""
        settings = settings or Settings()
        self._log = Log(log, applied_index)
        _check_stored(hard_state, self._log, applied_index)
        history = _find_configurations(log, applied_index, configuration)
        self._state = State(node_id, settings, hard_state, self._log, history)
        self._settings = settings
        self._random = random
        self._applied_index = applied_index
        self._candidacy: Candidacy | None = None
        self._leadership: Leadership | None = None
        self._handed_hard_state = hard_state
        self._handed_soft_state = SoftState(Role.FOLLOWER, 0, hard_state.term)
        self._writes: deque[_Write] = deque()
        self._heartbeat_elapsed = 0
        self._election_elapsed = 0
        self._election_timeout = self._random_timeout()
        if self._state.is_only_voter:
            self._campaign()

    # -- what the node is -----------------------------------------------------------------

    @property
    def node_id(self) -> int:
        return self._state.node_id

    @property
    def role(self) -> Role:
        if self._leadership is not None:
            return Role.LEADER
        if self._candidacy is None:
            return Role.FOLLOWER
        return Role.PRE_CANDIDATE if self._candidacy.pre_vote else Role.CANDIDATE

    @property
    def hard_state(self) -> HardState:
        """As of now; not necessarily stored yet."""
        return self._state.hard_state

    @property
    def term(self) -> int:
        return self._state.hard_state.term

    @property
    def leader_id(self) -> int:
        """The leader of this term, 0 while none is known."""
        return self._state.leader_id

    @property
    def configuration(self) -> Configuration:
        """The configuration in force: the last one appended, committed or not."""
        return self._state.configuration

    @property
    def commit_index(self) -> int:
        return self._log.commit_index

    @property
    def last_index(self) -> int:
        return self._log.last_index

    @property
    def stable_index(self) -> int:
        """How far the log is known to be on this node's disk."""
        return self._log.stable_index

    @property
    def applied_index(self) -> int:
        return self._applied_index

    def term_at(self, index: int) -> int:
        """The term of the entry at `index`, from `first_index - 1` to `last_index`."""
        return self._log.term(index)

    def entry_at(self, index: int) -> Entry:
        """The entry at `index`, from `first_index` to `last_index`."""
        return self._log.entries(index, index + 1, 0)[0]

    def local_read_index(self) -> int | None:
        """The index to have applied before a linearizable read, if no peer need be asked.

        That is so while this node leads, has committed an entry of its own term and is the only
        voter (thesis 6.4); otherwise None, and `read` finds the index.
        """
        leadership = self._leadership
        if leadership is None or not leadership.has_committed_in_term:
            return None
        return self._log.commit_index if self._state.is_only_voter else None

    # -- inputs ---------------------------------------------------------------------------

    def propose(self, payloads: Sequence[bytes]) -> range:
        """Append one entry for each payload, in the present term; returns their indexes.

        An index says nothing yet: the payload took effect once an entry with that index *and*
        this term is handed out as committed, and never will once another term's is.
        Raises `NotLeader`, or `Overloaded` while too much is uncommitted; nothing is appended
        then.
        """
        if self._leadership is None:
            raise NotLeader(self._state.leader_id)
        return self._leadership.propose(payloads)

    def read(self, context: int) -> None:
        """Ask for an index to read at; the answer comes in `Ready.reads` with this context.

        It never comes if leadership ends first; `Ready.soft_state` tells. Raises `NotLeader`.
        """
        if self._leadership is None:
            raise NotLeader(self._state.leader_id)
        self._leadership.read(context)

    def tick(self) -> None:
        """Let one tick of time pass."""
        self._election_elapsed += 1
        leadership = self._leadership
        if leadership is None:
            if self._election_elapsed >= self._election_timeout:
                self._stand_for_election()
            return
        if self._election_elapsed >= self._settings.election_timeout_ticks:
            self._election_elapsed = 0
            if not leadership.is_heard_by_quorum():
                self._become_follower(self.term, 0)
                return
        self._heartbeat_elapsed += 1
        if self._heartbeat_elapsed >= self._settings.heartbeat_interval_ticks:
            self._heartbeat_elapsed = 0
            leadership.heartbeat()

    def step(self, message: Message) -> None:
        """Take a message from a peer.

        Raises `RaftViolation` for one that no correct peer can have sent to this node.
        """
        if isinstance(message, VoteRequest | VoteReply) and message.pre_vote:
            self._step_pre_vote(message)
        elif message.term < self.term:
            self._step_outdated(message)
        elif message.term > self.term and self._ignores_campaign(message):
            return
        else:
            if message.term > self.term:
                self._become_follower(message.term, 0)
            self._step_in_term(message)

    def stored(self, term: int, index: int) -> None:
        """The oldest Ready under way is on disk; the arguments are its `completion`.

        Writes end in the order in which they were handed out. One that ends after its entries
        were replaced by another leader's still vouches for its hard state and for what remains.
        Raises `ValueError` for anything but the oldest Ready's completion.
        """
        expected = self._writes[0].completion if self._writes else None
        if expected != (term, index):
            raise ValueError(f"expected {expected} to be stored, not {(term, index)}")
        write = self._writes.popleft()
        self._state.messages += write.held
        if write.with_entries:
            self._log.end_store()
            if self._leadership is not None:
                self._leadership.stored()
        candidacy = self._candidacy
        vote_is_stored = write.hard_state is self._state.hard_state
        # A vote that a crash could take back is not one to count.
        if candidacy is not None and not candidacy.pre_vote and vote_is_stored:
            candidacy.record(self.node_id, True)
            self._conclude_campaign(candidacy)

    def applied(self, index: int) -> None:
        """The state machine has applied everything up to `index`, all of it handed out before."""
        assert self._applied_index <= index <= self._log.handed_index
        self._applied_index = index
        self._state.configurations.forget_before(index)

    # -- output ---------------------------------------------------------------------------

    def ready(self) -> Ready | None:
        """What is to be done now, or None."""
        state = self._state
        leadership = self._leadership
        committed = self._log.take_committed(self._settings.max_committed_bytes)
        if leadership is not None:
            if committed:
                leadership.handed_out(committed)
            leadership.begin_reads()
        entries = self._log.begin_store()
        changed = state.hard_state is not self._handed_hard_state
        if changed or entries:
            self._handed_hard_state = state.hard_state
        else:
            self._hold_back_messages()
        soft_state = self._changed_soft_state()
        if not (
            changed
            or entries
            or committed
            or state.messages
            or state.reads
            or soft_state is not None
        ):
            return None
        ready = Ready(
            state.hard_state if changed else None,
            entries,
            state.messages,
            state.messages_after_store,
            committed,
            state.reads,
            soft_state,
        )
        state.messages, state.messages_after_store, state.reads = [], [], []
        if ready.must_store:
            self._writes.append(_Write(ready, state.hard_state))
        return ready

    def _hold_back_messages(self) -> None:
        """With nothing to store, messages wait for the last write under way, or for none."""
        state = self._state
        if state.messages_after_store:
            waiting = self._writes[-1].held if self._writes else state.messages
            waiting += state.messages_after_store
            state.messages_after_store = []

    def _changed_soft_state(self) -> SoftState | None:
        role = self.role
        leader_id = self._state.leader_id
        handed = self._handed_soft_state
        if handed.role == role and handed.leader_id == leader_id and handed.term == self.term:
            return None
        self._handed_soft_state = SoftState(role, leader_id, self.term)
        return self._handed_soft_state

    # -- messages -------------------------------------------------------------------------

    def _step_pre_vote(self, message: VoteRequest | VoteReply) -> None:
        if isinstance(message, VoteRequest):
            answer_pre_vote(self._state, message, hears_leader=self._hears_leader())
        elif not message.granted and message.term > self.term:
            self._become_follower(message.term, 0)
        else:
            candidacy = self._candidacy
            expected = self.term + 1 if message.granted else self.term
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
        """A candidate that nobody needs does not depose a leader by its term (thesis 4.2.3)."""
        return isinstance(message, VoteRequest) and self._hears_leader()

    def _hears_leader(self) -> bool:
        return (
            self._state.leader_id != 0
            and self._election_elapsed < self._settings.election_timeout_ticks
        )

    def _step_in_term(self, message: Message) -> None:
        match message:
            case AppendRequest():
                self._follow(message.sender)
                follow_append(self._state, message)
            case Heartbeat():
                self._follow(message.sender)
                follow_heartbeat(self._state, message)
            case VoteRequest():
                if answer_vote(self._state, message):
                    self._election_elapsed = 0
            case VoteReply():
                candidacy = self._candidacy
                if candidacy is not None and not candidacy.pre_vote:
                    candidacy.record(message.sender, message.granted)
                    self._conclude_campaign(candidacy)
            case _ if self._leadership is None:
                return
            case AppendAccepted():
                self._leadership.on_accepted(message)
            case AppendRejected():
                self._leadership.on_rejected(message)
            case HeartbeatReply():
                self._leadership.on_heartbeat_reply(message)

    def _follow(self, leader_id: int) -> None:
        """Hear from the leader of the present term."""
        known = self._state.leader_id
        if known not in (0, leader_id):
            raise RaftViolation(
                f"nodes {known} and {leader_id} both lead term {self.term}: a node id is used"
                " twice, or a disk was set back"
            )
        if self._candidacy is not None or known == 0:
            self._become_follower(self.term, leader_id)
        self._election_elapsed = 0

    # -- changes of role ------------------------------------------------------------------

    def _become_follower(self, term: int, leader_id: int) -> None:
        if term > self.term:
            self._state.hard_state = HardState(term)
        self._state.leader_id = leader_id
        self._candidacy = None
        self._leadership = None
        self._restart_timer()

    def _stand_for_election(self) -> None:
        if not self._state.configuration.is_voter(self.node_id):
            return
        self._state.leader_id = 0
        self._restart_timer()
        self._candidacy = Candidacy(self._state, pre_vote=True)
        self._conclude_campaign(self._candidacy)

    def _campaign(self) -> None:
        self._state.leader_id = 0
        self._restart_timer()
        self._candidacy = Candidacy(self._state, pre_vote=False)

    def _conclude_campaign(self, candidacy: Candidacy) -> None:
        match candidacy.verdict():
            case Verdict.WON if candidacy.pre_vote:
                self._campaign()
            case Verdict.WON:
                self._lead()
            case Verdict.LOST:
                self._become_follower(self.term, 0)
            case Verdict.PENDING:
                return

    def _lead(self) -> None:
        self._candidacy = None
        self._state.leader_id = self.node_id
        self._restart_timer()
        self._heartbeat_elapsed = 0
        self._leadership = Leadership(self._state)

    def _restart_timer(self) -> None:
        self._election_elapsed = 0
        self._election_timeout = self._random_timeout()

    def _random_timeout(self) -> int:
        """Between one and two election timeouts, so that candidates rarely collide."""
        base = self._settings.election_timeout_ticks
        return base + self._random.randrange(base)


def _check_stored(hard_state: HardState, log: Log, applied_index: int) -> None:
    if hard_state.term < log.last_term:
        raise RaftViolation(
            f"the log holds an entry of term {log.last_term}, but the stored term is"
            f" {hard_state.term}: the log and the hard state do not belong together"
        )
    if not log.first_index - 1 <= applied_index <= log.last_index:
        raise RaftViolation(
            f"the state has applied index {applied_index}, but the log goes from"
            f" {log.first_index} to {log.last_index}"
        )


def _find_configurations(
    log: LogReader, applied_index: int, configuration: Configuration
) -> ConfigurationHistory:
    """The configurations in the log beyond what is applied; reads that part of it once."""
    history = ConfigurationHistory(applied_index, configuration)
    index = applied_index + 1
    while index <= log.last_index:
        entries = log.entries(index, log.last_index + 1, SCAN_BYTES)
        for entry in entries:
            if entry.kind == EntryKind.CONFIGURATION:
                history.append(entry)
        index = entries[-1].index + 1
    return history
