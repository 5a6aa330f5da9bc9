"""Cores joined in memory: a network, and simulated disks that lose what was not stored."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from random import Random
from typing import NamedTuple
from zlib import crc32

from streamd.raft.core import Core, ReadState, Ready, Role, Settings
from streamd.raft.membership import BOOTSTRAP_HARD_STATE, bootstrap_entry, decode_configuration
from streamd.raft.messages import Configuration, Entry, EntryKind, HardState, Message
from tests.raft.invariants import Checker

NO_CONFIGURATION = Configuration()


class SimulatedDisk:
    """A log and hard state; every write is atomic, and durable when `write` returns."""

    def __init__(self) -> None:
        self.hard_state = HardState()
        self._removed = [(0, 0)]  # (index, term) of the entries compaction removed, last first
        self._entries: list[Entry] = []
        self._lost: list[Entry] = []

    @property
    def first_index(self) -> int:
        return self._removed[0][0] + 1

    @property
    def last_index(self) -> int:
        return self._removed[0][0] + len(self._entries)

    def term(self, index: int) -> int:
        removed_index, removed_term = self._removed[0]
        if index == removed_index:
            return removed_term
        assert index > removed_index, f"index {index} was removed, up to {removed_index}"
        return self._entries[index - self.first_index].term

    def holds(self, index: int, term: int) -> bool:
        """Or has held: a node that lost the entry knows, and keeps the promises that go with it."""
        if index < self.first_index:
            return True
        if index <= self.last_index:
            return self.term(index) == term
        return any((entry.index, entry.term) == (index, term) for entry in self._lost)

    def entries(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        assert self.first_index <= lo < hi <= self.last_index + 1
        found = self._entries[lo - self.first_index : hi - self.first_index]
        size = len(found[0].payload)
        for count, entry in enumerate(found[1:], 1):
            size += len(entry.payload)
            if size > max_bytes:
                return found[:count]
        return found

    def write(self, hard_state: HardState | None, entries: list[Entry]) -> None:
        if hard_state is not None:
            self.hard_state = hard_state
        if entries:
            first = entries[0].index
            assert self.first_index <= first <= self.last_index + 1
            self._entries[first - self.first_index :] = entries

    def reset(self, index: int, term: int) -> None:
        self._removed, self._entries = [(index, term)], []

    def lose_from(self, index: int) -> None:
        self._lost = self._entries[index - self.first_index :]
        del self._entries[index - self.first_index :]

    def compact(self, through_index: int) -> None:
        removed = (through_index, self.term(through_index))
        del self._entries[: through_index + 1 - self.first_index]
        self._removed = [removed]


class RaftSnapshot(NamedTuple):
    """A stored state: the applied index, the members, and the digest of the commands."""

    index: int  # type: ignore[assignment]  # of NamedTuple
    term: int
    configuration: Configuration
    digest: int


class SimulatedNode:
    """Plays the shell: takes Readies, writes them in order, applies, keeps its state."""

    def __init__(
        self,
        node_id: int,
        disk: SimulatedDisk,
        settings: Settings,
        random: Random,
        checker: Checker | None = None,
        *,
        applied: int = 0,
        configuration: Configuration = NO_CONFIGURATION,
        lost_below: int = 0,
    ) -> None:
        self.node_id = node_id
        self.disk = disk
        self.settings = settings
        self.random = random
        self.checker = checker
        self.lost_below = lost_below
        # What the state machine has stored.
        term = disk.term(applied) if applied <= disk.last_index else 0
        self.stored = RaftSnapshot(applied, term, configuration, 0)
        self.start()

    def lose_entries(self, after: int, noted: int) -> None:
        """The disk forgets the log's end; a separate note says how far the log went at least."""
        self.lost_below = max(self.lost_below, noted)
        self.disk.lose_from(after + 1)

    def start(self) -> None:
        """Begin with what is on disk and nothing else."""
        self.writes: deque[Ready] = deque()
        self.written = 0  # how many of them are on disk before the core knows
        self.outbox: list[Message] = []
        self.reads: list[ReadState] = []
        self._state_as_stored()
        self.core = Core(
            node_id=self.node_id,
            hard_state=self.disk.hard_state,
            log=self.disk,
            applied_index=self.stored.index,
            configuration=self.stored.configuration,
            settings=self.settings,
            random=self.random,
            may_vote=not self.lost_below,
            trusted_from_index=self.lost_below,
        )
        if self.checker is not None:
            self.checker.after_restart(self.core, self.stored.index)

    def _state_as_stored(self) -> None:
        """Make the state on disk that of the state machine."""
        self.applied, _, self.configuration, self.digest = self.stored

    def take_readies(self) -> list[Ready]:
        """Take every Ready and act on it, except for the writes, which wait for `write_one`."""
        if self.core.may_vote:
            self.lost_below = 0
        taken = []
        while (ready := self.core.ready()) is not None:
            taken.append(ready)
            self._send(ready.messages)
            if ready.must_store:
                self.writes.append(ready)
            else:
                assert not ready.messages_after_store
            self.reads += ready.reads
            for entry in ready.committed:
                self._apply(entry)
        return taken

    def write_one(self) -> Ready:
        """Put the next waiting Ready on the disk; the core does not know yet."""
        ready = self.writes[self.written]
        self.written += 1
        self.disk.write(ready.hard_state, ready.entries)
        if self.checker is not None:
            self.checker.after_store(self.node_id)
        return ready

    def complete_one(self) -> Ready:
        """Tell the core that the oldest Ready under way is on the disk."""
        assert self.written, "only what is on disk is complete"
        self.written -= 1
        ready = self.writes.popleft()
        self._send(ready.messages_after_store)
        self.core.stored(*ready.completion)
        return ready

    def store_state(self) -> None:
        """Make durable what the state machine has applied."""
        term = self.core.term_at(self.applied)
        self.stored = RaftSnapshot(self.applied, term, self.configuration, self.digest)

    def take_snapshot(self) -> RaftSnapshot:
        """The stored state; a compacted log can be followed only from there."""
        return self.stored

    def install(self, snapshot: RaftSnapshot) -> None:
        """Replace state and log by a Raft snapshot that the core has accepted."""
        self.stored = snapshot
        self._state_as_stored()
        self.disk.reset(snapshot.index, snapshot.term)
        assert self.core.restore(snapshot.index, snapshot.term, snapshot.configuration)

    def _apply(self, entry: Entry) -> None:
        assert entry.index == self.applied + 1, "entries are applied in order, each once"
        assert self.disk.holds(entry.index, entry.term), "applied before it was on the own disk"
        self.applied = entry.index
        if entry.kind == EntryKind.CONFIGURATION:
            self.configuration = decode_configuration(entry.payload)
        self.digest = crc32(b"%d %d " % (entry.index, entry.term) + entry.payload, self.digest)
        if self.checker is not None:
            self.checker.after_apply(self.node_id, entry.index, self.digest)
        self.core.applied(entry.index)

    def _send(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if self.checker is not None:
                self.checker.before_send(message)
            self.outbox.append(message)


def bootstrapped_disk(voters: Iterable[int]) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.write(BOOTSTRAP_HARD_STATE, [bootstrap_entry(voters)])
    return disk


def settle(node: SimulatedNode) -> None:
    """Let a node do everything it can without its peers, writes included."""
    while node.take_readies() or node.writes:
        while node.writes:
            node.write_one()
            node.complete_one()


def lone_leader(**settings: int) -> SimulatedNode:
    """A single voter that has elected itself and committed its first entry."""
    node = SimulatedNode(1, bootstrapped_disk([1]), Settings(**settings), Random(1))
    settle(node)
    assert node.core.role == Role.LEADER
    return node
