"""Repacks packs with few live bytes, and small packs: their live slices move together into new
ones.

Slow writers cause small packs, because their bytes are flushed for age. Packs of about the same
size are merged into one of the next class, so a byte moves as often as there are classes, and each
class has fewer packs than make one of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import structlog

from streamd.group.group import Group
from streamd.objectstore.errors import ObjectCorrupt, ObjectMissing
from streamd.objectstore.names import check_digest, cluster_folder
from streamd.objectstore.objects import MAX_OBJECT_BYTES
from streamd.objectstore.packs import Pack as MadePack
from streamd.objectstore.packs import PackWriter, decode_slice, read_pack
from streamd.process.threads import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.cold.packs import Place, StoredPack, living_page
from streamd.streams.commands import MovedSlice, MoveSlices
from streamd.streams.model import ColdSlice, Pack, SliceRef
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.tier import LeaderTerm

log = structlog.get_logger("streamd.objectstore")

# A pack is sparse if a smaller share of its slices is alive.
_SPARSE = 0.5
# A pack is small if it has a smaller share of the configured size.
_SMALL = 0.25
# This many small packs of one class make one of the next, which begins at this many times the size.
_CLASS_BITS = 3
_SMALL_AT_ONCE = 1 << _CLASS_BITS
# About how much one command may move.
_MAX_SLICES = 10_000
# The footer of a pack with as many slices takes less than what is left here.
_MAX_LIVING_BYTES = MAX_OBJECT_BYTES - 4 * 1024 * 1024
# How many packs are remembered that should be left alone.
_MAX_REMEMBERED = 100_000

_SLICE = msgspec.msgpack.Decoder(ColdSlice)


class _Living(NamedTuple):
    """A live slice, its place now and its content."""

    place: Place
    ref: SliceRef
    content: bytes


class Repacker:
    """Moves live slices, one new pack at a time; that pack and one old one are in memory."""

    def __init__(
        self,
        group: Group,
        store: StateStore,
        cold: AsyncObjectStore,
        *,
        run_blocking: RunBlocking,
        cluster_id: Callable[[], str],
        group_id: int,
        pack_bytes: int,
    ) -> None:
        self._group = group
        self._store = store
        self._cold = cold
        self._run_blocking = run_blocking
        self._cluster_id = cluster_id
        self._group_id = group_id
        self._pack_bytes = pack_bytes
        # How much was alive of packs that turned out not to be sparse, though their footers make
        # them look so; and of those that cannot be read, or have too many slices to be merged.
        self._dense = _Remembered()
        self._left = _Remembered()
        self._sparse_start: bytes | None = keys.PACK
        self._small_start: bytes | None = keys.PACK
        # Small packs found since the beginning, by class.
        self._small: dict[int, list[StoredPack]] = {}

    async def begin(self) -> None:
        """Start again with the first pack. Raises `StorageError`."""
        self._sparse_start = self._small_start = keys.PACK
        self._small.clear()
        # Moved slices must not be found in their former packs.
        await self._group.reads.stored()

    async def repack_sparse(self, lead: LeaderTerm) -> int:
        """Make one new pack from sparse ones; returns how many it replaces, 0 if there are no more.

        Raises `ColdError`, `Unavailable`, `OutcomeUnknown`.
        """
        living: list[_Living] = []
        emptied = 0
        while self._sparse_start is not None and self._has_room(living):
            packs, following = await self._run_blocking(
                living_page, self._store, self._sparse_start
            )
            for one in packs:
                if _looks_sparse(one.pack) and one not in self._dense and one not in self._left:
                    if not self._has_room(living, one.pack.live):
                        # It is the first of the next pack. If this one, which may still be below
                        # the packs' size, looked at it again, it would never fit.
                        await self._move(lead, living)
                        return emptied
                    found = await self._sparse(one)
                    living += found
                    emptied += bool(found)
                self._sparse_start = keys.pack_key(*one.place) + b"\0"
            self._sparse_start = following
        if living:
            await self._move(lead, living)
        return emptied

    async def repack_small(self, lead: LeaderTerm) -> int:
        """Make one new pack from small ones; returns how many it replaces, 0 if there are no more.

        Raises `ColdError`, `Unavailable`, `OutcomeUnknown`.
        """
        while self._small_start is not None:
            packs, following = await self._run_blocking(living_page, self._store, self._small_start)
            for one in packs:
                self._small_start = keys.pack_key(*one.place) + b"\0"
                together = self._note_small(one)
                merged = await self._repack_small_ones(lead, together) if together else 0
                if merged:
                    return merged
            self._small_start = following
        return 0

    def _has_room(self, living: Sequence[_Living], more: int = 0) -> bool:
        size = sum(one.ref.length for one in living)
        if living and size + more > _MAX_LIVING_BYTES:
            return False
        return size < self._pack_bytes and len(living) < _MAX_SLICES

    async def _sparse(self, one: StoredPack) -> list[_Living]:
        """The live slices of a pack; none if it is not sparse after all."""
        living, total = await self._living(one)
        if living and sum(found.ref.length for found in living) >= _SPARSE * total:
            self._dense.add(one)
            return []
        return living

    def _note_small(self, one: StoredPack) -> list[StoredPack]:
        """Note a small pack; returns its class once they are enough for one of the next."""
        is_to_be_moved = _looks_sparse(one.pack) and one not in self._dense
        if one.pack.live >= self._pack_bytes * _SMALL or is_to_be_moved or one in self._left:
            return []
        alike = self._small.setdefault(_size_class(one.pack), [])
        alike.append(one)
        size = sum(small.pack.live for small in alike)
        if len(alike) < _SMALL_AT_ONCE and size < self._pack_bytes:
            return []
        return self._small.pop(_size_class(one.pack))

    async def _repack_small_ones(self, lead: LeaderTerm, small: Sequence[StoredPack]) -> int:
        """Merge those packs that can be merged; returns how many."""
        living: list[_Living] = []
        merged = 0
        for one in small:
            found, _ = await self._living(one)
            if 2 * len(found) > _MAX_SLICES:
                self._left.add(one)
            elif found and len(living) + len(found) <= _MAX_SLICES:
                living += found
                merged += 1
        if merged < 2:
            return 0
        await self._move(lead, living)
        return merged

    async def _living(self, one: StoredPack) -> tuple[list[_Living], int]:
        """The live slices of a pack, and the bytes of all; none if it cannot be read."""
        try:
            content = await self._cold.get(one.pack.name, 0, one.pack.size)
            return await self._run_blocking(_pick, self._store, one, content)
        except (ObjectMissing, ObjectCorrupt) as error:
            log.error("a pack cannot be repacked", pack=one.pack.name, error=str(error))
            self._left.add(one)
            return [], 0

    async def _move(self, lead: LeaderTerm, living: Sequence[_Living]) -> None:
        with lead.pack() as number:
            writer = PackWriter(self._group_id, lead.term, number)
            pack, moved = await self._run_blocking(_write, writer, living)
            name = cluster_folder(self._cluster_id()) + pack.name
            await self._cold.put_verified(name, pack.content)
            command = MoveSlices(lead.term, number, name, len(pack.content), moved)
            await self._group.writes.propose(command, 64 * len(moved))


class _Remembered:
    """Packs by how much was alive of them: another look at one is useful only after a change."""

    def __init__(self) -> None:
        self._live: dict[Place, int] = {}

    def __contains__(self, one: StoredPack) -> bool:
        return self._live.get(one.place) == one.pack.live

    def add(self, one: StoredPack) -> None:
        if len(self._live) >= _MAX_REMEMBERED:
            self._live.clear()
        self._live[one.place] = one.pack.live


def _looks_sparse(pack: Pack) -> bool:
    return pack.live < pack.size * _SPARSE


def _size_class(pack: Pack) -> int:
    return pack.live.bit_length() // _CLASS_BITS


def _pick(store: StateStore, one: StoredPack, content: bytes) -> tuple[list[_Living], int]:
    """The slices of a whole pack to which rows refer, and the bytes of all slices. Blocks.

    Raises `ObjectCorrupt`.
    """
    check_digest(one.pack.name, content)
    refs = read_pack(content).slices
    rows = store.get_many([keys.slice_key(ref.stream_id, ref.end_record) for ref in refs])
    living = [
        _Living(one.place, ref, content[ref.offset : ref.offset + ref.length])
        for ref, row in zip(refs, rows, strict=True)
        if row is not None and _is_there(_SLICE.decode(row), one.place, ref)
    ]
    return living, sum(ref.length for ref in refs)


def _is_there(row: ColdSlice, place: Place, ref: SliceRef) -> bool:
    return (row.term, row.number, row.offset) == (*place, ref.offset)


def _write(writer: PackWriter, living: Sequence[_Living]) -> tuple[MadePack, list[MovedSlice]]:
    """The new pack, and where each slice is in it. Raises `ObjectCorrupt`."""
    moved: list[MovedSlice] = []
    # Consecutive slices of a stream are then read in one request.
    for old in sorted(living, key=lambda one: (one.ref.stream_id, one.ref.end_record)):
        ref = writer.add(old.ref.stream_id, decode_slice(old.ref, old.content))
        moved.append(
            MovedSlice(ref.stream_id, ref.end_record, *old.place, ref.offset, ref.length, ref.crc)
        )
    return writer.finish(), moved
