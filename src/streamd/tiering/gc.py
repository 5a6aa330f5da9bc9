"""Removes what nothing needs any more from the cold store: by the leader, a little at a time.

Slices of removed and trimmed streams go by a command, because all replicas have their rows. A pack
may then have no live slices. Its object is deleted when no state that can still be restored, or is
on its way to a follower, refers to it; then its row goes. Each step may be done twice, or by two
leaders that do not know about each other: nothing that is dead comes alive again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set

import msgspec
import trio

from streamd.config.settings import ColdConfig
from streamd.group.group import Group
from streamd.objectstore.names import (
    CHECKPOINTS,
    LOG,
    PACKS,
    ManifestName,
    PackName,
    SegmentName,
    cluster_folder,
    group_folder,
)
from streamd.objectstore.objects import MAX_PAGE
from streamd.process.threads import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.cold.packs import Place, StoredPack, pack_page
from streamd.streams.commands import DropSlices, ForgetPacks
from streamd.streams.model import Pack
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.cold_reader import ColdReader
from streamd.tiering.fence import Guard
from streamd.tiering.repacking import Repacker
from streamd.tiering.tier import LeaderTerm, PeriodicTask

# The time between searches through all names in the store. Crashes and changes of leader cause
# orphans.
ORPHANS_INTERVAL_S = 3600.0
_SLICES_PER_COMMAND = 1000
_PACKS_PER_COMMAND = 100
# How many notes, and dead packs, are remembered until their grace is over; the others wait.
_MAX_REMEMBERED = 100_000

_PACK = msgspec.msgpack.Decoder(Pack)


class Removed(msgspec.Struct, rename={"repacked_packs": "compacted_packs"}):
    """What a round removed or repacked, as ``/cluster/cold`` shows it."""

    dropped_slices: int = 0
    deleted_packs: int = 0
    deleted_bytes: int = 0
    repacked_packs: int = 0
    deleted_orphans: int = 0


class ColdGc:
    """Rounds of removal while this node leads."""

    def __init__(
        self,
        group: Group,
        store: StateStore,
        cold: AsyncObjectStore,
        reader: ColdReader,
        guard: Guard,
        config: ColdConfig,
        cluster_id: Callable[[], str],
        *,
        run_blocking: RunBlocking,
    ) -> None:
        """Deletes only in the cluster's own folder; the cluster may get its id only when the node
        joins it."""
        self._group = group
        self._store = store
        self._cold = cold
        self._reader = reader
        self._pins = group.pins
        self._guard = guard
        self._run_blocking = run_blocking
        self._cluster_id = cluster_id
        self._folder = ""
        self._group_id = group.group_id
        self._interval_s = config.gc_interval_ms / 1000
        self._grace_s = config.gc_grace_ms / 1000
        self._repacker = Repacker(
            group,
            store,
            cold,
            run_blocking=run_blocking,
            cluster_id=cluster_id,
            group_id=group.group_id,
            pack_bytes=config.pack_bytes,
        )
        self._lead: LeaderTerm | None = None
        # When this leader first saw a note, or a dead pack, on Trio's clock: log time follows the
        # wall clock, which may jump.
        self._noted_at: dict[bytes, float] = {}
        self._dead_at: dict[Place, float] = {}
        self._orphans_at = -math.inf
        # The round that looks for orphans even if it is not time for that.
        self._whole_round = 0
        self.task = PeriodicTask("garbage", self._make_round)
        # For operators: rounds begun, and the last one that ended; its work now, and its results.
        self.begun = 0
        self.ended = 0
        self.doing = "nothing"
        self.last = Removed()
        self.total = Removed()

    def want_round(self) -> int:
        """Make the next round a complete one, orphans included; `ended` reaches the returned number
        when it is done."""
        # A round under way may already have passed what the caller means.
        self._whole_round = self.begun + 1
        return self._whole_round

    async def _make_round(self, lead: LeaderTerm) -> float:
        """Remove what can be removed now.

        Raises `ColdError`, and `Unavailable` or `OutcomeUnknown` if this node is no longer the
        leader.
        """
        if lead is not self._lead:
            self._lead, self._folder = lead, cluster_folder(self._cluster_id())
            self._noted_at, self._dead_at, self._orphans_at = {}, {}, -math.inf
        self.begun += 1
        number, removed = self.begun, Removed()
        steps = (
            ("slices", self._drop_slices),
            ("dead packs", self._delete_dead),
            ("sparse and small packs", self._repack),
            ("orphans", self._delete_orphans),
        )
        try:
            await self._guard.check(deleting=True)
            for self.doing, step in steps:
                await step(lead, removed)
        finally:
            self.doing = "nothing"
            for name in Removed.__struct_fields__:
                setattr(self.total, name, getattr(self.total, name) + getattr(removed, name))
        self.ended, self.last = number, removed
        return self._interval_s

    # -- slices -------------------------------------------------------------------------------

    async def _drop_slices(self, lead: LeaderTerm, removed: Removed) -> None:
        """Propose to forget the slices that notes name: new readers cannot find them, and earlier
        readers had the grace period to finish."""
        seen: dict[bytes, float] = {}
        now = trio.current_time()
        for letter in (keys.GARBAGE, keys.TRIM):
            start: bytes | None = letter
            while start is not None and len(seen) < _MAX_REMEMBERED:
                notes, start = await self._run_blocking(_notes, self._store, start)
                for note in notes:
                    seen[note] = self._noted_at.get(note, now)
                    if now - seen[note] >= self._grace_s:
                        await self._drop_noted(note, removed)
        self._noted_at = seen

    async def _drop_noted(self, note: bytes, removed: Removed) -> None:
        stream_id, after = keys.parse_id(note[:9]), 0
        while True:
            ends = await self._run_blocking(_slices, self._store, note, stream_id, after)
            if not ends or stream_id in self._pins.held():
                return
            await self._group.writes.propose(DropSlices(stream_id, ends), 8 * len(ends))
            removed.dropped_slices += len(ends)
            after = ends[-1]

    # -- dead packs ---------------------------------------------------------------------------

    async def _delete_dead(self, lead: LeaderTerm, removed: Removed) -> None:
        floor: float | None = None
        start: bytes | None = keys.PACK
        seen: dict[Place, float] = {}
        now = trio.current_time()
        while start is not None and len(seen) < _MAX_REMEMBERED:
            dead, start = await self._run_blocking(_dead_packs, self._store, start)
            seen |= {one.place: self._dead_at.get(one.place, now) for one in dead}
            due = [one for one in dead if now - seen[one.place] >= self._grace_s]
            if not due:
                continue
            if floor is None:
                floor = min(await self._restorable_from(), self._group.retention.unneeded_through())
            going = [one for one in due if one.pack.dead_index <= floor]
            for first in range(0, len(going), _PACKS_PER_COMMAND):
                await self._delete_packs(going[first : first + _PACKS_PER_COMMAND], removed)
        self._dead_at = seen

    async def _restorable_from(self) -> int:
        """The first log index that the archive can restore: packs dead by then are never read.

        It is that of the oldest checkpoint, unless the archive has the log from its first entry.
        While nothing is archived yet it is not known, and no pack may go.
        """
        segments = group_folder(self._folder + LOG, self._group_id)
        for found in await self._cold.page(segments, limit=1):
            segment = SegmentName.parse(found.name.removeprefix(self._folder))
            if segment is None or segment.first_index == 1:
                return 0
        manifests = group_folder(self._folder + CHECKPOINTS, self._group_id)
        for found in await self._cold.page(manifests, limit=1):
            manifest = ManifestName.parse(found.name.removeprefix(self._folder))
            return manifest.log_index if manifest is not None else 0
        return 0

    async def _delete_packs(self, dead: Sequence[StoredPack], removed: Removed) -> None:
        """Objects first: if this ends in between, their rows still list them."""
        own = [one.pack for one in dead if one.pack.name.startswith(self._folder)]
        await self._guard.check(deleting=True)
        await self._cold.delete_now([pack.name for pack in own])
        for one in dead:
            self._reader.forget(one.pack.name)
        await self._group.writes.propose(ForgetPacks([one.place for one in dead]), 16 * len(dead))
        removed.deleted_packs += len(own)
        removed.deleted_bytes += sum(pack.size for pack in own)

    # -- sparse and small packs ---------------------------------------------------------------

    async def _repack(self, lead: LeaderTerm, removed: Removed) -> None:
        await self._repacker.begin()
        while moved := await self._repacker.repack_sparse(lead):
            removed.repacked_packs += moved
        while merged := await self._repacker.repack_small(lead):
            removed.repacked_packs += merged

    # -- orphans ------------------------------------------------------------------------------

    async def _delete_orphans(self, lead: LeaderTerm, removed: Removed) -> None:
        """Delete packs that no row mentions and none ever will.

        A pack of a lower term than that of an entry applied here is an orphan for ever, however
        stale this node is; of the leader's own term, a pack that is not being written is one.
        """
        rested_s = trio.current_time() - self._orphans_at
        is_asked_for = self.ended < self._whole_round <= self.begun
        if rested_s < ORPHANS_INTERVAL_S and not is_asked_for:
            return
        if self._group.state.header.applied_term != lead.term:
            return
        after, folder = "", group_folder(self._folder + PACKS, self._group_id)
        while page := await self._cold.page(folder, after=after, limit=MAX_PAGE):
            # The names first, then the rows: an interruption leaves a row.
            under_way = frozenset(lead.under_way)
            await self._group.reads.stored()
            names = [found.name for found in page]
            orphans = await self._run_blocking(
                _orphans, self._store, self._folder, names, lead.term, under_way
            )
            if orphans:
                await self._guard.check(deleting=True)
                await self._cold.delete_now(orphans)
            removed.deleted_orphans += len(orphans)
            after = names[-1]
        self._orphans_at = trio.current_time()


def _notes(store: StateStore, start: bytes) -> tuple[list[bytes], bytes | None]:
    """Notes of one kind from `start` on, and where to continue. Blocks."""
    rows = store.scan(start, keys.end_of(start), limit=MAX_PAGE)
    return [note for note, _ in rows], rows[-1][0] + b"\0" if len(rows) == MAX_PAGE else None


def _slices(store: StateStore, note: bytes, stream_id: int, after: int) -> list[int]:
    """The end records of slices that a note names, after the record `after`. Blocks."""
    of_trim = note[:1] == keys.TRIM
    _, stop = keys.trimmed_slices(note) if of_trim else keys.id_range(keys.SLICE, stream_id)
    start = keys.slice_key(stream_id, after + 1)
    rows = store.scan(start, stop, limit=_SLICES_PER_COMMAND) if start < stop else []
    return [keys.parse_number(row) for row, _ in rows]


def _dead_packs(store: StateStore, start: bytes) -> tuple[list[StoredPack], bytes | None]:
    """Dead packs among the next rows, and where to continue. Blocks."""
    packs, following = pack_page(store, start)
    return [one for one in packs if not one.pack.live], following


def _orphans(
    store: StateStore, folder: str, names: Iterable[str], term: int, under_way: Set[int]
) -> list[str]:
    """Those of the packs that have no row, and never will. Blocks."""
    found = [(name, PackName.parse(name.removeprefix(folder))) for name in names]
    old = [
        (name, place)
        for name, place in found
        if place is not None
        and (place.term < term or (place.term == term and place.number not in under_way))
    ]
    rows = store.get_many([keys.pack_key(place.term, place.number) for _, place in old])
    return [
        name
        for (name, _), row in zip(old, rows, strict=True)
        # A row may name another object with this number, of a leader that died over this one.
        if row is None or _PACK.decode(row).name != name
    ]
