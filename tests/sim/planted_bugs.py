"""Deliberate mistakes around the core, each a small change to one of the node's own parts.

What is wrong with the core itself is planted in `tests/raft/planted_bugs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from streamd.group import group, stores
from streamd.group.group import Group
from streamd.group.proposals import (
    OutcomeUnknown,
    Proposal,
    Unavailable,
    decode_answers,
    encode_proposals,
)
from streamd.group.storing import Storing
from streamd.raft.core import Ready, SoftState
from streamd.raft.messages import Entry, HardState
from streamd.storage import install
from streamd.storage.binding import plyvel
from streamd.storage.floor import Floor
from streamd.storage.log_store import LogStore
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.state import State
from tests.sim.faults import Faults
from tests.sim.focus import Focus

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Planted:
    """A mistake, and what has to happen for it to show."""

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


# -- the order in which things get to the disk ------------------------------------------------


@bug(Focus({Faults.lose_power: 1}))
def writes_are_acknowledged_before_the_fsync(patch: pytest.MonkeyPatch) -> None:
    real = LogStore.append

    def append(self: LogStore, entries: Sequence[Entry], hard_state: HardState | None) -> None:
        if not isinstance(self._db, _Unsynced):
            self._db = _Unsynced(self._db)
        real(self, entries, hard_state)

    patch.setattr(LogStore, "append", append)


@bug(Focus({Faults.crash: 1}))
def acknowledgements_leave_before_the_write(patch: pytest.MonkeyPatch) -> None:
    real = Group._write

    async def write(self: Group, ready: Ready) -> None:
        self._peers.send(ready.messages_after_store)
        ready.messages_after_store = []
        await real(self, ready)

    patch.setattr(Group, "_write", write)


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
    real = LogStore.append

    def append(self: LogStore, entries: Sequence[Entry], hard_state: HardState | None) -> None:
        class Careless(_Unsynced):
            def write_batch(self, *, sync: bool = False) -> Any:
                batch = self._db.write_batch(sync=sync)
                write = batch.write

                def careless() -> None:
                    with suppress(plyvel.IOError):
                        write()

                batch.write = careless
                return batch

        if not isinstance(self._db, Careless):
            self._db = Careless(self._db)
        real(self, entries, hard_state)

    patch.setattr(LogStore, "append", append)


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
def state_is_not_synced_before_the_log_is_cut(patch: pytest.MonkeyPatch) -> None:
    real = StateStore.write

    def write(self: StateStore, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        if not isinstance(self._db, _Unsynced):
            self._db = _Unsynced(self._db)
        real(self, items)

    patch.setattr(StateStore, "write", write)


@bug(Focus({Faults.compact_and_crash: 1}, limits={"group.storing.FLUSH_BYTES": 1 << 22}))
def log_is_cut_behind_what_is_applied_but_not_stored(patch: pytest.MonkeyPatch) -> None:
    async def compact(self: Storing) -> int:
        self._compact_through = self._state.header.applied_index
        self._due()
        return self._compact_through

    patch.setattr(Storing, "compact", compact)


@bug(
    Focus(
        {Faults.keep_the_only_copy_damaged: 1},
        limits={"group.storing.FLUSH_INTERVAL_S": 4.0, "group.storing.FLUSH_BYTES": 1 << 22},
    )
)
def node_that_lost_entries_votes(patch: pytest.MonkeyPatch) -> None:
    real = stores.Core
    patch.setattr(stores, "Core", lambda **given: real(**given | {"may_vote": True}))


# -- snapshots --------------------------------------------------------------------------------


@bug(Focus({Faults.interrupt_install: 1}))
def snapshot_is_installed_without_a_marker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(install, "write_checked", lambda *_: None)


@bug(Focus({Faults.need_a_snapshot: 1}))
def snapshot_is_installed_beside_the_state_in_memory(patch: pytest.MonkeyPatch) -> None:
    real = State.load

    def load(self: State) -> None:
        before = self.__dict__.copy()
        real(self)
        for name in ("streams", "tails"):
            if name in before:
                setattr(self, name, before[name])

    patch.setattr(State, "load", load)


@bug(Focus({Faults.crash_behind_install: 1}, mean_pause_s=2.0))
def snapshot_leaves_the_log_as_it_is(patch: pytest.MonkeyPatch) -> None:
    def reset(self: LogStore, index: int, term: int, chain: int) -> None:
        real(self, index, term, chain)
        batch = self._db.write_batch(sync=True)
        self._rows.put_base(batch, Floor())
        batch.write()

    real = LogStore.reset
    patch.setattr(LogStore, "reset", reset)


# -- answers ----------------------------------------------------------------------------------


@bug(Focus({Faults.partition: 1}))
def followers_read_without_a_barrier(patch: pytest.MonkeyPatch) -> None:
    real = Group.read_barrier

    async def read_barrier(self: Group, timeout_s: float = 10.0) -> None:
        if self.leads:
            await real(self, timeout_s)

    patch.setattr(Group, "read_barrier", read_barrier)


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
    patch.setattr(Group, "may_read", lambda self: self.leads)


@bug(
    Focus(
        {Faults.break_connections: 1, Faults.crash_leader_while_it_writes: 1},
        mean_pause_s=0.2,
        clients=20,
        client_pause_s=0.3,
    )
)
def write_of_unknown_outcome_is_sent_again(patch: pytest.MonkeyPatch) -> None:
    async def forward(self: Group, leader_id: int, proposals: list[Proposal]) -> None:
        try:
            answers = await self._peers.forward(leader_id, encode_proposals(proposals))
            for proposal, settled in zip(proposals, decode_answers(answers), strict=True):
                proposal.settle(settled)
        except (Unavailable, OutcomeUnknown):
            self._intake.put_back(proposals)
        finally:
            self._forwards -= 1

    patch.setattr(Group, "_forward", forward)


@bug(
    Focus(
        {Faults.deafen: 1},
        mean_pause_s=3.0,
        at_leaders=1.0,
        lasting_s=(2.0,),
        clients=20,
        client_pause_s=0.5,
    )
)
def write_of_a_deposed_leader_is_called_refused(patch: pytest.MonkeyPatch) -> None:
    real = Group._role_changed

    def role_changed(self: Group, state: SoftState) -> None:
        patch.setattr(group, "OutcomeUnknown", Unavailable)
        real(self, state)
        patch.setattr(group, "OutcomeUnknown", OutcomeUnknown)

    patch.setattr(Group, "_role_changed", role_changed)


@bug(
    Focus(
        {Faults.isolate: 1},
        mean_pause_s=3.0,
        at_leaders=1.0,
        lasting_s=(2.0,),
        clients=30,
        client_pause_s=0.6,
    )
)
def entry_of_another_leader_answers_for_the_own(patch: pytest.MonkeyPatch) -> None:
    """Who waits for a place in the log is told what became of the entry that took it."""
    real = Group._batch

    def batch(self: Group, entry: Entry) -> Any:
        own = self._batches.get(entry.index)
        if own is not None and own.term != entry.term:
            waiting, own.proposals = own.proposals, ()
            found = real(self, entry)
            found.proposals = waiting
            return found
        return real(self, entry)

    patch.setattr(Group, "_role_changed", lambda self, _: self._barriers.ask_again())
    patch.setattr(Group, "_batch", batch)


@bug(Focus({Faults.crash: 1, Faults.partition: 1}, at_leaders=1.0))
def forwarded_write_is_answered_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    """The leader applies what it has just proposed, to answer as soon as it can."""
    real = Group._propose_pending

    def propose_pending(self: Group) -> None:
        before = self.core.last_index
        real(self)
        batch = self._batches.get(self.core.last_index)
        header = self.state.header
        if batch is None or header.applied_index != before or self.core.last_index == before:
            return
        outcomes = self.machine.apply(
            self.core.last_index, batch.term, batch.now_ms, batch.commands
        )
        self.state.header.applied_index = before
        for proposal, result in zip(batch.proposals, outcomes, strict=False):
            proposal.settle(group.outcome.Value(result))

    patch.setattr(Group, "_propose_pending", propose_pending)


# -- the same everywhere ----------------------------------------------------------------------


@bug(Focus({Faults.skew_clock: 1}))
def replicas_go_by_their_own_clocks(patch: pytest.MonkeyPatch) -> None:
    real = Group._batch

    def batch(self: Group, entry: Entry) -> Any:
        found = real(self, entry)
        if not self.leads:
            found.now_ms = self._clock_ms()
        return found

    patch.setattr(Group, "_batch", batch)
