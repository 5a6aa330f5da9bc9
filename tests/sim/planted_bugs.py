"""Deliberate mistakes around the core, each a small change to one of the node's own parts.

Mistakes in the core itself are planted in `tests/raft/planted_bugs.py`.
"""

# mypy: disable-error-code="attr-defined,assignment"
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from streamd.group import stores
from streamd.group.drafts import Draft, PendingEntry
from streamd.group.group import Group
from streamd.group.packages import OwnPackage, OwnPackages
from streamd.group.proposals import OutcomeUnknown, Unavailable, fail_all
from streamd.group.reads import GroupReads
from streamd.group.state_flusher import StateFlusher
from streamd.group.writer import Writer
from streamd.raft.chain import ChainPosition
from streamd.raft.core import Ready, Role
from streamd.raft.messages import Entry, HardState
from streamd.storage import files, install, journal, leveldb, leveldb_format, torn_writes
from streamd.storage.journal import Journal, Mark, Record
from streamd.storage.log_evidence import LogEvidence
from streamd.storage.log_store import LogStore
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.commands import Command, Outcome
from streamd.streams.machine import Machine
from streamd.streams.sessions import PackageStamp
from streamd.streams.state import State
from tests.sim.faults import Faults
from tests.sim.focus import Focus

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Planted:
    """A mistake, and the faults that reveal it."""

    plant: Plant
    focus: Focus


PLANTED: list[Planted] = []


def bug(focus: Focus) -> Callable[[Plant], Plant]:
    def planted(plant: Plant) -> Plant:
        PLANTED.append(Planted(plant, focus))
        return plant

    return planted


class _Unsynced:
    """A database that never waits for the disk."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def write_batch(self, *, sync: bool = False) -> Any:
        return self._db.write_batch(sync=False)


# -- the order of writes ----------------------------------------------------------------------


@bug(Focus({Faults.lose_power: 1}))
def writes_are_acknowledged_before_the_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal, "sync_data", lambda _descriptor: None)


@bug(
    Focus(
        {Faults.crash: 1},
        limits={
            "storage.journal.MAX_BYTES": 1 << 14,
            "group.state_flusher.CHECKPOINT_BYTES": 1 << 25,
        },
    )
)
def the_journal_is_overwritten_before_leveldb_has_what_it_held(patch: pytest.MonkeyPatch) -> None:
    never = property(lambda self: self.head.offset, lambda *_: None)
    patch.setattr(Journal, "_tail", never, raising=False)


@bug(Focus({Faults.crash: 1}))
def acknowledgements_leave_before_the_write(patch: pytest.MonkeyPatch) -> None:
    real = Writer._begin_store

    def begin_store(self: Writer, ready: Ready) -> None:
        self._peers.send(ready.messages_after_store)
        ready.messages_after_store = []
        real(self, ready)

    patch.setattr(Writer, "_begin_store", begin_store)


@bug(Focus({Faults.crash: 1}))
def votes_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    real = LogStore.append

    def append(self: LogStore, entries: Sequence[Entry], hard_state: HardState | None) -> None:
        real(self, entries, None)
        if hard_state is not None:
            self.hard_state = hard_state

    patch.setattr(LogStore, "append", append)


@bug(Focus({Faults.fail_writes: 1}))
def errors_of_the_disk_are_ignored(patch: pytest.MonkeyPatch) -> None:
    def sync_data(descriptor: int) -> None:
        with suppress(OSError):
            files.sync_data(descriptor)

    patch.setattr(journal, "sync_data", sync_data)


@bug(Focus({Faults.crash_at_a_flush: 1}))
def applied_index_is_not_in_the_batch(patch: pytest.MonkeyPatch) -> None:
    real = StateStore.write

    def write(self: StateStore, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        rows = list(items)
        header = [row for row in rows if row[0] == keys.HEADER]
        if header:
            real(self, header)
        real(self, [row for row in rows if row[0] != keys.HEADER])

    patch.setattr(StateStore, "write", write)


@bug(Focus({Faults.compact_and_crash: 1, Faults.lose_power: 1}))
def state_is_not_synced_before_the_log_is_compacted(patch: pytest.MonkeyPatch) -> None:
    real = StateStore.write

    def write(self: StateStore, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        if not isinstance(self._db, _Unsynced):
            self._db = _Unsynced(self._db)
        real(self, items)

    patch.setattr(StateStore, "write", write)


@bug(Focus({Faults.compact_and_crash: 1}, limits={"group.state_flusher.FLUSH_BYTES": 1 << 22}))
def log_is_compacted_through_what_is_applied_but_not_stored(patch: pytest.MonkeyPatch) -> None:
    async def compact(self: StateFlusher) -> int:
        self._compact_through = self._state.header.applied_index
        self._due()
        return self._compact_through

    patch.setattr(StateFlusher, "compact", compact)


_RARE_FLUSHES = {
    "group.state_flusher.FLUSH_INTERVAL_S": 4.0,
    "group.state_flusher.FLUSH_BYTES": 1 << 22,
}


@bug(Focus({Faults.keep_the_only_copy_damaged: 1}, limits=_RARE_FLUSHES))
def node_that_lost_entries_votes_at_once(patch: pytest.MonkeyPatch) -> None:
    real = stores.Core
    patch.setattr(stores, "Core", lambda **given: real(**given | {"may_vote": True}))


_FREQUENT_WRITES_TO_LEVELDB = {
    "storage.journal.MAX_BYTES": 1 << 14,
    "group.state_flusher.FLUSH_BYTES": 500,
}


@bug(Focus({Faults.tear_write: 1}, limits=_FREQUENT_WRITES_TO_LEVELDB))
def torn_write_is_mistaken_for_damage(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leveldb, "cut_torn_tails", lambda *_: None)


@bug(Focus({Faults.keep_the_only_copy_damaged: 1}, limits=_RARE_FLUSHES))
def damage_is_mistaken_for_a_torn_write(patch: pytest.MonkeyPatch) -> None:
    """Confirmed entries are cut off."""

    def whole_size(content: bytes, records: Any) -> int:
        try:
            return leveldb_format.whole_size(content, records)
        except leveldb_format.FileDamaged as damage:
            return damage.size

    patch.setattr(torn_writes, "whole_size", whole_size)
    patch.setattr(torn_writes.Batches, "fall_short", False)
    records = journal.records

    def whole_records(content: bytes, mark: Mark) -> Iterator[Record]:
        with suppress(journal.JournalDamaged):
            yield from records(content, mark)

    patch.setattr(journal, "records", whole_records)


@bug(Focus({Faults.damage_log: 1, Faults.keep_the_only_copy_damaged: 1}))
def truncated_log_is_not_compared_with_its_floor(patch: pytest.MonkeyPatch) -> None:
    """Neither the floor nor the state shows that there were more entries."""
    patch.setattr(LogEvidence, "floor", lambda _: ChainPosition())
    patch.setattr(LogEvidence, "note_lost", lambda *_: None)


# -- Raft snapshots ---------------------------------------------------------------------------


@bug(Focus({Faults.interrupt_install: 1}))
def raft_snapshot_is_installed_without_a_marker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(install, "write_checked", lambda *_: None)


@bug(Focus({Faults.need_a_raft_snapshot: 1}))
def raft_snapshot_is_installed_beside_the_state_in_memory(
    patch: pytest.MonkeyPatch,
) -> None:
    real = State.load

    def load(self: State) -> None:
        before = self.__dict__.copy()
        real(self)
        for name in ("streams", "tails"):
            if name in before:
                setattr(self, name, before[name])

    patch.setattr(State, "load", load)


@bug(Focus({Faults.crash_after_install: 1}, mean_pause_s=2.0))
def raft_snapshot_does_not_reset_the_log(patch: pytest.MonkeyPatch) -> None:
    def reset(self: LogStore, position: ChainPosition) -> None:
        real(self, position)
        self._engine.begin_after(ChainPosition())

    real = LogStore.reset
    patch.setattr(LogStore, "reset", reset)


# -- answers ----------------------------------------------------------------------------------


@bug(Focus({Faults.partition: 1}))
def followers_read_without_a_read_index(patch: pytest.MonkeyPatch) -> None:
    real = GroupReads.catch_up

    async def catch_up(self: GroupReads, timeout_s: float = 10.0) -> None:
        if self._core.role is Role.LEADER:
            await real(self, timeout_s)

    patch.setattr(GroupReads, "catch_up", catch_up)


@bug(
    Focus(
        {Faults.pause: 1},
        mean_pause_s=3.0,
        at_leaders=1.0,
        lasting_s=(3.0,),
        clients=30,
        client_pause_s=0.6,
        seconds=20,
    )
)
def leaders_read_without_asking_anyone(patch: pytest.MonkeyPatch) -> None:
    real = GroupReads.catch_up

    async def catch_up(self: GroupReads, timeout_s: float = 10.0) -> None:
        if self._core.role is not Role.LEADER:
            await real(self, timeout_s)

    patch.setattr(GroupReads, "catch_up", catch_up)


_LEADERS_CHANGE = Focus(
    {Faults.break_connections: 1, Faults.crash_leader_while_it_writes: 1, Faults.isolate: 1},
    mean_pause_s=0.5,
    at_leaders=1.0,
    lasting_s=(2.0,),
    clients=20,
    client_pause_s=0.1,
)


@bug(_LEADERS_CHANGE)
def package_takes_effect_each_time_it_arrives(patch: pytest.MonkeyPatch) -> None:
    real = Machine._apply_package

    def apply_package(
        self: Machine, stamp: PackageStamp, commands: list[Command], now_ms: int
    ) -> list[Outcome]:
        session = self.state.sessions.get(keys.number(stamp.node_id))
        if session is not None:
            session.outcomes.pop(stamp.sequence, None)
        return real(self, stamp, commands, now_ms)

    patch.setattr(Machine, "_apply_package", apply_package)


@bug(_LEADERS_CHANGE)
def packages_of_the_leader_itself_have_no_number_in_the_log(patch: pytest.MonkeyPatch) -> None:
    """It still sends them again when another node leads."""
    real = Draft.__init__

    def init(self: Draft, *given: Any) -> None:
        real(self, *given)
        self.stamps = [other.stamp for other in self.foreign]
        for package in self._own:
            self.proposals += package.proposals

    patch.setattr(Draft, "__init__", init)


@bug(_LEADERS_CHANGE)
def outcomes_are_forgotten_while_their_package_may_come_again(patch: pytest.MonkeyPatch) -> None:
    real = OwnPackages.stamp

    def stamp(self: OwnPackages, package: OwnPackage) -> PackageStamp:
        return replace(real(self, package), lowest=package.sequence)

    patch.setattr(OwnPackages, "stamp", stamp)


@bug(Focus({Faults.need_a_raft_snapshot: 1, Faults.break_connections: 1}, client_pause_s=0.02))
def sessions_are_forgotten_at_an_install(patch: pytest.MonkeyPatch) -> None:
    real = State.load

    def load(self: State) -> None:
        is_install = hasattr(self, "sessions")
        real(self)
        for node_id in range(1, 4) if is_install else ():
            self.sessions.delete(keys.number(node_id))

    patch.setattr(State, "load", load)


def _fails_at_a_leader_change(
    patch: pytest.MonkeyPatch, error: Unavailable | OutcomeUnknown
) -> None:
    """Writes that a deposed leader left undecided fail, although they may have been committed."""

    def lose_all(self: OwnPackages) -> None:
        for package in list(self._undecided.values()):
            if package.is_under_way:
                self._forget(package)
                fail_all(package.proposals, error)

    patch.setattr(OwnPackages, "lose_all", lose_all)


@bug(_LEADERS_CHANGE)
def write_of_a_deposed_leader_is_called_refused(patch: pytest.MonkeyPatch) -> None:
    _fails_at_a_leader_change(patch, Unavailable("the leader changed"))


@bug(_LEADERS_CHANGE)
def write_of_a_deposed_leader_is_called_unknown(patch: pytest.MonkeyPatch) -> None:
    _fails_at_a_leader_change(patch, OutcomeUnknown("the leader changed"))


@bug(_LEADERS_CHANGE)
def package_of_another_node_is_mistaken_for_the_own(patch: pytest.MonkeyPatch) -> None:
    """Only the package's number is compared, not its node."""
    real = OwnPackages.decided

    def decided(
        self: OwnPackages, session_id: int, sequence: int, outcomes: Sequence[Outcome]
    ) -> None:
        real(self, self.session_id, sequence, outcomes)

    def settle(
        self: PendingEntry, outcomes: Sequence[Outcome], node_id: int, own: OwnPackages
    ) -> None:
        told(self, outcomes, node_id, own)
        for stamp in self.packages:
            own.decided(stamp.session_id, stamp.sequence, outcomes[-stamp.count :])

    told = PendingEntry.settle
    patch.setattr(OwnPackages, "decided", decided)
    patch.setattr(PendingEntry, "settle", settle)


@bug(Focus({Faults.crash: 1, Faults.partition: 1}, at_leaders=1.0))
def forwarded_write_is_answered_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    """The leader applies a proposal before it is committed, to answer sooner."""
    real = Group._propose_pending

    def propose_pending(self: Group) -> None:
        before = self.view.last_index
        real(self)
        pending = self._applier._pending.get(self.view.last_index)
        header = self.state.header
        if pending is None or header.applied_index != before or self.view.last_index == before:
            return
        outcomes = self.machine.apply(
            self.view.last_index, pending.term, pending.now_ms, pending.commands, pending.packages
        )
        self.state.header.applied_index = before
        pending.settle(outcomes, self.view.node_id, self._packages)

    patch.setattr(Group, "_propose_pending", propose_pending)


# -- the same everywhere ----------------------------------------------------------------------


@bug(Focus({Faults.skew_clock: 1}))
def replicas_use_their_own_clocks(patch: pytest.MonkeyPatch) -> None:
    real = Group.__init__

    def init(self: Group, *args: Any, **given: Any) -> None:
        real(self, *args, **given)
        of_the_leader = self._applier.pending

        def pending(entry: Entry) -> PendingEntry:
            found = of_the_leader(entry)
            if not self.view.leads:
                found.now_ms = given["clock_ms"]()
            return found

        self._applier.pending = pending

    patch.setattr(Group, "__init__", init)
