"""The Raft core: what one node does, as a function of what happens to it.

No clock, no I/O, no randomness of its own. The shell calls an input method (`step`, `propose`,
`read`, `tick`, `stored`, `applied`) and then takes `ready()` until it returns None.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from random import Random
from typing import Any

from streamd.raft.interface import (
    ChangeInProgress,
    CoreRefused,
    InvalidConfiguration,
    InvalidTransfer,
    LogReader,
    NotLeader,
    Overloaded,
    PeerStatus,
    RaftViolation,
    ReadState,
    Ready,
    Role,
    Settings,
    SoftState,
    TransferInProgress,
)
from streamd.raft.log import Log
from streamd.raft.membership import ConfigurationHistory
from streamd.raft.messages import Configuration, Entry, EntryKind, HardState, Message
from streamd.raft.roles import Roles
from streamd.raft.state import State
from streamd.raft.vote_eligibility import VoteEligibility
from streamd.raft.writes import Writes

__all__ = [
    "ChangeInProgress",
    "Core",
    "CoreRefused",
    "InvalidConfiguration",
    "InvalidTransfer",
    "NotLeader",
    "Overloaded",
    "PeerStatus",
    "RaftViolation",
    "ReadState",
    "Ready",
    "Role",
    "Settings",
    "SoftState",
    "TransferInProgress",
]

NO_CONFIGURATION = Configuration()
# How much of the log is read at once to find its configurations.
_SCAN_BYTES = 1024 * 1024


def _of(path: str) -> Any:
    """A value of a part of the core. It is looked up without a call of a Python function: the
    group asks for some of these many times in each append."""
    return property(attrgetter(path))


class Core:
    """One node of one Raft group.

    `hard_state` and `log` are what the node has stored. Its state machine has applied everything up
    to `applied_index`: the core takes that as committed and hands out what follows.
    `configuration` is the one in force at `applied_index`; later ones are found in the log.
    `random` spreads election timeouts.

    A node whose log is known to have lost entries passes `may_vote=False`, and the log's former end
    as `trusted_from_index`: it follows, but neither votes nor campaigns until a leader has
    committed up to there and this node holds those entries.

    A node that is the only voter needs no other vote and campaigns at once.
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
        may_vote: bool = True,
        trusted_from_index: int = 0,
    ) -> None:
        """Raises `RaftViolation` when the stored values cannot belong to one node's state."""
        self._settings = settings or Settings()
        self._log = Log(log, applied_index)
        self._state = State(
            node_id,
            self._settings,
            stored_hard_state(hard_state, self._log, applied_index),
            self._log,
            stored_configurations(log, applied_index, configuration),
            VoteEligibility(may_vote, trusted_from_index, random),
        )
        self._applied_index = applied_index
        self._handed_hard_state = hard_state
        self._handed_soft_state = SoftState(Role.FOLLOWER, 0, hard_state.term)
        self._writes = Writes(self._settings.election_timeout_ticks)
        self._roles = Roles(self._state, self._writes, random)

    # -- what the node is -----------------------------------------------------------------

    node_id: int = _of("_state.node_id")
    role: Role = _of("_roles.role")
    # The current hard state, which may not be stored yet.
    hard_state: HardState = _of("_state.hard_state")
    term: int = _of("_state.hard_state.term")
    # The leader of this term, 0 while none is known.
    leader_id: int = _of("_state.leader_id")
    # The configuration in force: the last one appended, committed or not.
    configuration: Configuration = _of("_state.configurations.latest")
    commit_index: int = _of("_log.commit_index")
    # The oldest entry kept.
    first_index: int = _of("_log.first_index")
    last_index: int = _of("_log.last_index")
    # How far the log is known to be on this node's disk.
    stable_index: int = _of("_log.stable_index")
    applied_index: int = _of("_applied_index")

    @property
    def committed_configuration(self) -> Configuration:
        """The last configuration known to be committed."""
        return self._state.configurations.at(self._log.commit_index)

    @property
    def may_vote(self) -> bool:
        """False while the log lacks entries that this node confirmed before a restart."""
        return self._state.vote_eligibility.may_vote

    @property
    def is_caught_up(self) -> bool:
        """Whether the state is about as new as the group's: on a leader once an entry of its own
        term is committed, on a follower while it applies the leader's entries in time."""
        if self._roles.leadership is not None:
            return self._roles.leadership.has_committed_in_term
        return bool(self._state.leader_id) and self._state.lag.value

    @property
    def transferring(self) -> int:
        """The node to which leadership is being transferred, or 0."""
        leadership = self._roles.leadership
        return 0 if leadership is None else leadership.transferring

    @property
    def refused_messages(self) -> int:
        """How many messages were ignored because their senders had no right to send them."""
        return self._state.refused_messages

    def peers(self) -> dict[int, PeerStatus]:
        """What the leader knows about the other members; empty on any other node."""
        leadership = self._roles.leadership
        return {} if leadership is None else leadership.replication.peers()

    def term_at(self, index: int) -> int:
        """The term of the entry at `index`, from `first_index - 1` to `last_index`."""
        return self._log.term(index)

    def entry_at(self, index: int) -> Entry:
        """The entry at `index`, from `first_index` to `last_index`."""
        return self._log.entries(index, index + 1, 0)[0]

    def local_read_index(self) -> int | None:
        """The index to apply before a linearizable read, if no peer has to be asked.

        That is so while this node leads, has committed an entry of its own term and is the only
        voter (thesis 6.4). Otherwise it is None, and `read` finds the index.
        """
        leadership = self._roles.leadership
        if leadership is None or not leadership.has_committed_in_term:
            return None
        return self._log.commit_index if self._state.is_only_voter else None

    # -- inputs ---------------------------------------------------------------------------

    def propose(self, payloads: Sequence[bytes]) -> range:
        """Append one entry for each payload, in the current term; returns their indexes.

        An index alone says nothing: the payload took effect once an entry with that index *and*
        this term is handed out as committed, and never will once another term's entry is.
        Raises `NotLeader`, `TransferInProgress`, or `Overloaded` while too much is uncommitted;
        nothing is appended then.
        """
        return self._roles.leading().propose(payloads)

    def propose_configuration(self, target: Configuration) -> int:
        """Change the members (thesis 4.3); `target.voters_outgoing` is ignored.

        If the voters change, this appends a joint configuration, and the target itself once that is
        committed; otherwise it appends the target at once. Returns the index of the entry appended.
        Raises `NotLeader`, `TransferInProgress`, `ChangeInProgress` or `InvalidConfiguration`;
        nothing is appended then.
        """
        return self._roles.leading().propose_configuration(target)

    def transfer(self, to: int) -> None:
        """Transfer leadership to a voter (thesis 3.10); naming this node cancels a transfer.

        Proposals are refused until the term or the attempt ends, at most one election timeout.
        Raises `NotLeader` or `InvalidTransfer`.
        """
        self._roles.leading().transfer(to)

    def read(self, context: int) -> None:
        """Ask for an index to read at; the answer comes in `Ready.reads` with this context.

        A follower asks the leader. The answer never comes if the leader changes first, which
        `Ready.soft_state` tells. Raises `NotLeader` when no leader is known.
        """
        if self._roles.leadership is not None:
            self._roles.leadership.read(context)
        elif self._state.leader_id:
            self._roles.forwarded_reads.add(context)
        else:
            raise NotLeader(0)

    def tick(self) -> None:
        """Let one tick of time pass."""
        self._writes.tick()
        self._roles.tick()
        self._state.lag.tick(self._applied_index)

    def step(self, message: Message) -> None:
        """Take a message from a peer, member of the group or not; ignore one that its sender has no
        right to send.

        Raises `RaftViolation` for a message that proves that a disk has lost confirmed data.
        """
        self._roles.step(message)

    def stored(self, term: int, index: int) -> None:
        """The oldest Ready under way is on disk; the arguments are its `completion`.

        Writes end in the order in which they were handed out. A write that ends after another
        leader replaced its entries still confirms its hard state and the entries that remain.
        Raises `ValueError` for anything but the oldest Ready's completion.
        """
        write = self._writes.end((term, index))
        self._state.messages += write.held
        if write.with_entries:
            self._log.end_store()
        self._roles.stored(write.hard_state, with_entries=write.with_entries)

    def applied(self, index: int) -> None:
        """The state machine has applied everything up to `index`; all of it was handed out
        before."""
        assert self._applied_index <= index <= self._log.handed_index
        self._applied_index = index
        self._state.configurations.forget_before(index)

    # -- snapshots ------------------------------------------------------------------------

    def snapshot_sent(self, peer: int, index: int) -> None:
        """A follower has installed a snapshot that ends at `index`."""
        if self._roles.leadership is not None:
            self._roles.leadership.replication.snapshot_sent(peer, index)

    def snapshot_failed(self, peer: int) -> None:
        """A follower did not get its snapshot. The request is repeated once it shows life."""
        if self._roles.leadership is not None:
            self._roles.leadership.replication.snapshot_failed(peer)

    def begin_restore(self, index: int, term: int) -> bool:
        """Whether a snapshot that ends at (`index`, `term`) is worth installing.

        If so, the log does not change until `restore`: entries that arrived meanwhile would be
        confirmed and then discarded with the log. The shell first finishes the writes under way,
        then installs. If not, this node has all of it, and the leader may be notified that the
        snapshot has arrived.

        A log that holds the snapshot's last entry holds all of it, and maybe later entries that
        this node confirmed and a majority relies on; it must not be replaced.
        """
        log = self._log
        useful = index > log.commit_index and not log.has(index, term)
        if self.role == Role.FOLLOWER and term <= self.term and useful:
            self._state.restoring = index, term
        return self._state.restoring == (index, term)

    def restore(self, index: int, term: int, configuration: Configuration) -> bool:
        """A snapshot that ends at (`index`, `term`) has durably replaced state and log.

        `configuration` is the one in force at `index`. `begin_restore` must have agreed, and no
        entries may be on their way to the disk. Returns False, and changes nothing, if this node
        has already committed that far.
        """
        state = self._state
        if index <= self._log.commit_index:
            return False
        assert state.restoring == (index, term), "begin_restore says whether to install"
        assert not self._writes.include_entries, "entries are on their way to the replaced log"
        state.restoring = None
        self._log.reset(index, term)
        self._applied_index = index
        state.configurations = ConfigurationHistory(index, configuration)
        # They confirm entries that were removed with the log.
        state.messages_after_store.clear()
        return True

    # -- output ---------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether this node leads and would announce a commit to the others."""
        leadership = self._roles.leadership
        return leadership is not None and leadership.commit_is_news

    def ready(self, *, announce: bool = True) -> Ready | None:
        """What is to be done now, or None.

        Without `announce`, no message is sent only to notify the other members of commits: entries
        and heartbeats do that, too.
        """
        state, log = self._state, self._log
        committed: list[Entry] = []
        # Most of the calls find nothing to do: each part is looked at before it is called.
        if log.handed_index < log.commit_index:
            committed = log.take_committed(self._settings.max_committed_bytes)
        leadership = self._roles.leadership
        if leadership is not None:
            if committed:
                leadership.handed_out(committed)
            if announce and leadership.commit_is_news:
                leadership.announce()
            if leadership.reads.has_gathered:
                leadership.begin_reads()
        else:
            self._roles.forwarded_reads.send()
        entries = log.begin_store() if log.to_store <= log.last_index else []
        changed = state.hard_state is not self._handed_hard_state
        if changed:
            _assert_follows(state.hard_state, self._handed_hard_state)
            self._handed_hard_state = state.hard_state
        elif state.messages_after_store and not entries:
            self._hold_back_messages()
        soft_state = None
        handed = self._handed_soft_state
        if (
            handed.role is not self._roles.role
            or handed.leader_id != state.leader_id
            or handed.term != state.hard_state.term
        ):
            soft_state = SoftState(self._roles.role, state.leader_id, state.hard_state.term)
            self._handed_soft_state = soft_state
        if not (
            changed
            or entries
            or committed
            or state.messages
            or state.reads
            or state.snapshots
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
            state.snapshots,
        )
        state.messages, state.messages_after_store = [], []
        state.reads, state.snapshots = [], []
        if changed or entries:
            self._writes.begin(ready, state.hard_state)
        return ready

    def _hold_back_messages(self) -> None:
        """Hold messages until the last write under way ends, if there is nothing to store."""
        state = self._state
        if not self._writes.hold(state.messages_after_store):
            state.messages += state.messages_after_store
        state.messages_after_store = []


def _assert_follows(new: HardState, old: HardState) -> None:
    """A term never goes back, and a vote is cast once in a term (thesis 3.4): voting twice in one
    term, before and after a restart, elects two leaders in it."""
    same_vote = new.term == old.term and old.vote in (0, new.vote)
    assert new.term > old.term or same_vote, (new, old)


def stored_hard_state(hard_state: HardState, log: Log, applied_index: int) -> HardState:
    """The hard state to start with. Raises `RaftViolation` when it does not belong to the log, or
    the log does not belong to the applied state.

    A snapshot can be installed in a term that the node had no time to store. The node cannot have
    voted in that term either, because a vote leaves only after it was stored.
    """
    if not log.first_index - 1 <= applied_index <= log.last_index:
        raise RaftViolation(
            f"the state has applied index {applied_index}, but the log goes from"
            f" {log.first_index} to {log.last_index}"
        )
    if hard_state.term >= log.last_term:
        return hard_state
    if log.first_index > log.last_index:
        return HardState(log.last_term)
    raise RaftViolation(
        f"the log holds an entry of term {log.last_term}, but the stored term is"
        f" {hard_state.term}: the log and the hard state do not belong together"
    )


def stored_configurations(
    log: LogReader, applied_index: int, configuration: Configuration
) -> ConfigurationHistory:
    """The configurations in the log after the applied index; reads that part of the log once."""
    history = ConfigurationHistory(applied_index, configuration)
    index = applied_index + 1
    while index <= log.last_index:
        entries = log.entries(index, log.last_index + 1, _SCAN_BYTES)
        for entry in entries:
            if entry.kind == EntryKind.CONFIGURATION:
                history.append(entry)
        index = entries[-1].index + 1
    return history
