"""What must hold at every moment, as checks that any simulation can run after each event.

After each event the checker is told what the node is and what its disk holds. It remembers enough
of all nodes' past to notice a broken promise (thesis, figure 3.2, and the durability that the
figure takes for granted).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from streamd.raft.core import Core, Role
from streamd.raft.membership import quorum_value
from streamd.raft.messages import AppendAccepted, Configuration, HardState, Message, VoteReply


class InvariantBroken(AssertionError):
    """The core broke a promise."""


class Disk(Protocol):
    """What one node would find if it lost power now."""

    @property
    def hard_state(self) -> HardState: ...

    def holds(self, index: int, term: int) -> bool:
        """Whether the entry at `index` is of `term`, or its effects are in a stored snapshot."""

    @property
    def last_index(self) -> int: ...


class _Identity(NamedTuple):
    """By induction, two entries that agree in this follow equal logs."""

    previous_term: int
    payload: bytes


class Checker:
    """Observes a group of nodes from outside. `disks` holds every member's disk by node id."""

    def __init__(self, disks: Mapping[int, Disk]) -> None:
        self._disks = disks
        self._leaders: dict[int, int] = {}
        self._leaders_checked: set[int] = set()
        self._entries: dict[tuple[int, int], _Identity] = {}
        # By index: the term of the entry, and the term of the leader that committed it.
        self._committed: list[tuple[int, int]] = [(0, 0)]
        self._commit_index: dict[int, int] = {}
        # The end of each node's log at its last comparison: an equal end is an equal log.
        self._checked: dict[int, tuple[int, int]] = {}
        self._stored: dict[int, HardState] = {}
        self._votes: dict[tuple[int, int], int] = {}
        self._states: dict[int, int] = {}
        # The configuration by which a leading node counts until the next event.
        self._configurations: dict[int, Configuration] = {}

    @property
    def committed_index(self) -> int:
        """How far the group as a whole has committed."""
        return len(self._committed) - 1

    # -- what is checked ------------------------------------------------------------------

    def after_event(self, core: Core) -> None:
        """Check a node after something happened to it."""
        self._role_is_played(core)
        self._one_leader_per_term(core)
        self._leader_belongs_to_group(core)
        self._committed_entries_stay(core)
        self._log_matching(core)
        self._leader_has_all_committed(core)
        self._configurations[core.node_id] = core.configuration

    def after_apply(self, node_id: int, index: int, digest: int) -> None:
        """Check that the state after applying `index` is the same on every node."""
        known = self._states.setdefault(index, digest)
        self._require(known == digest, f"node {node_id} has another state at index {index}")

    def after_restart(self, core: Core, applied_index: int) -> None:
        """A restarted node knows as committed what its state machine has applied."""
        self._require(
            core.commit_index == applied_index, f"node {core.node_id} lost track of its commits"
        )
        self._commit_index[core.node_id] = applied_index
        self._checked.pop(core.node_id, None)

    def after_store(self, node_id: int) -> None:
        """A disk's term never goes back, and its vote does not change within a term."""
        now = self._disks[node_id].hard_state
        before = self._stored.get(node_id, HardState())
        self._require(now.term >= before.term, f"node {node_id} went back to term {now.term}")
        if now.term == before.term and before.vote:
            self._require(now.vote == before.vote, f"node {node_id} voted twice: {before}, {now}")
        self._stored[node_id] = now

    def before_send(self, message: Message) -> None:
        """Check a message on its way out against the sender's disk: promises are durable."""
        disk = self._disks[message.sender]
        if isinstance(message, VoteReply) and message.granted and not message.pre_vote:
            vote = self._votes.setdefault((message.sender, message.term), message.to)
            self._require(vote == message.to, f"two votes of one node in one term: {message}")
            stored = disk.hard_state
            kept = stored.term > message.term or stored == HardState(message.term, message.to)
            self._require(kept, f"a vote left before it was stored: {message}, stored {stored}")
        if isinstance(message, AppendAccepted) and disk.hard_state.term <= message.term:
            match = message.match_index
            self._require(
                disk.hard_state.term == message.term and match <= disk.last_index,
                f"an acknowledgement left before the entries were stored: {message}",
            )

    def _role_is_played(self, core: Core) -> None:
        """The role's name and what plays it are set apart from each other."""
        roles = core._roles
        played = Role.FOLLOWER
        if roles.leadership is not None:
            played = Role.LEADER
        elif roles.candidacy is not None:
            played = Role.PRE_CANDIDATE if roles.candidacy.pre_vote else Role.CANDIDATE
        self._require(
            core.role is played, f"node {core.node_id} is {core.role!r}, but plays {played!r}"
        )

    def _one_leader_per_term(self, core: Core) -> None:
        if core.role == Role.LEADER:
            leader = self._leaders.setdefault(core.term, core.node_id)
            self._require(
                leader == core.node_id, f"{leader} and {core.node_id} both lead term {core.term}"
            )

    def _leader_belongs_to_group(self, core: Core) -> None:
        """A node that the committed configuration has removed does not lead beyond that."""
        removed = core.committed_configuration == core.configuration and core.role == Role.LEADER
        if removed and not core.configuration.is_voter(core.node_id):
            # Elected before an entry of its own term shows that the removal is committed.
            began = core.term_at(core.commit_index) < core.term
            self._require(began, f"node {core.node_id} still leads, though it was removed")

    def _committed_entries_stay(self, core: Core) -> None:
        before = self._commit_index.get(core.node_id, 0)
        self._require(
            before <= core.commit_index,
            f"node {core.node_id} committed {before}, now {core.commit_index}",
        )
        self._require(
            core.first_index - 1 <= core.commit_index,
            f"node {core.node_id} has removed entries that are not committed",
        )
        self._commit_index[core.node_id] = core.commit_index
        for index in range(before + 1, core.commit_index + 1):
            if index < core.first_index:
                continue  # part of an installed snapshot, whose end is checked below
            term = core.term_at(index)
            if index > self.committed_index:
                self._is_durable(self._configurations[core.node_id], index, term)
                self._committed.append((term, core.term))
            known, _ = self._committed[index]
            self._require(known == term, f"index {index} is committed of terms {known}, {term}")

        if before < core.first_index - 1 == core.commit_index:
            term, _ = self._committed[core.commit_index]
            self._require(
                term == core.term_at(core.commit_index),
                f"node {core.node_id} took a snapshot for committed that ends at"
                f" {core.commit_index} with another term than {term}",
            )

    def _is_durable(self, configuration: Configuration, index: int, term: int) -> None:
        """A newly committed entry is on the disks of a majority, of both sets if joint."""
        held = quorum_value(configuration, lambda node: self._disks[node].holds(index, term))
        self._require(
            bool(held), f"({index}, term {term}) is committed, but not on a majority's disks"
        )

    def _log_matching(self, core: Core) -> None:
        end = (core.last_index, core.term_at(core.last_index))
        if self._checked.get(core.node_id) == end:
            return
        self._checked[core.node_id] = end
        previous_term = core.term_at(core.commit_index)
        for index in range(core.commit_index + 1, core.last_index + 1):
            entry = core.entry_at(index)
            if entry.index != index or not previous_term <= entry.term <= core.term:
                raise InvariantBroken(
                    f"node {core.node_id} in term {core.term} has {entry} at index {index},"
                    f" after an entry of term {previous_term}"
                )
            identity = _Identity(previous_term, entry.payload)
            if self._entries.setdefault((index, entry.term), identity) != identity:
                raise InvariantBroken(f"logs differ at index {index}, term {entry.term}")
            previous_term = entry.term

    def _leader_has_all_committed(self, core: Core) -> None:
        """A leader has everything that was committed in earlier terms."""
        if core.role != Role.LEADER or core.term in self._leaders_checked:
            return
        self._leaders_checked.add(core.term)
        for index in range(core.commit_index + 1, self.committed_index + 1):
            term, committed_in = self._committed[index]
            holds = index <= core.last_index and core.term_at(index) == term
            self._require(
                holds or committed_in >= core.term,
                f"node {core.node_id} leads term {core.term} without committed index {index}",
            )

    @staticmethod
    def _require(holds: bool, otherwise: str) -> None:
        if not holds:
            raise InvariantBroken(otherwise)
