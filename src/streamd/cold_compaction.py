"""Packs of which little is alive: what is, moves together into new ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import structlog

from streamd.blocking import RunBlocking
from streamd.cold.errors import ObjectCorrupt, ObjectMissing
from streamd.cold.names import check_digest, cluster_folder
from streamd.cold.objects import MAX_PAGE
from streamd.cold.packs import Pack as MadePack
from streamd.cold.packs import PackWriter, SliceRef, decode_slice, read_pack
from streamd.cold_store import Cold
from streamd.cold_tier import Lead
from streamd.group import Group
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.commands import MovedSlice, MoveSlices
from streamd.streams.model import ColdSlice, Pack

log = structlog.get_logger("streamd.cold")

# Of its slices, below this share a pack is sparse.
_SPARSE = 0.5
# What one command may move.
_MAX_SLICES = 10_000
# Packs remembered to look sparse, for their footers are large, but not to be.
_MAX_REMEMBERED = 100_000

_PACK = msgspec.msgpack.Decoder(Pack)
_SLICE = msgspec.msgpack.Decoder(ColdSlice)

Place = tuple[int, int]


class _Sparse(NamedTuple):
    place: Place
    pack: Pack


class _Living(NamedTuple):
    """A slice that is alive, where it is now and what it holds."""

    place: Place
    ref: SliceRef
    content: bytes


class Compaction:
    """Moves what is alive, a new pack at a time; in memory are that and one old one."""

    def __init__(
        self,
        group: Group,
        store: StateStore,
        cold: Cold,
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
        # How much was alive of packs that turned out not to be sparse, or not to be readable.
        self._left: dict[Place, int] = {}
        self._start: bytes | None = keys.PACK

    def begin(self) -> None:
        """Begin with the first pack again."""
        self._start = keys.PACK

    async def move_some(self, lead: Lead) -> int:
        """Make one new pack of sparse ones; returns of how many, 0 when there are no more.

        Raises `ColdError`, `Unavailable`, `OutcomeUnknown`.
        """
        living: list[_Living] = []
        emptied = 0
        while self._start is not None and self._has_room(living):
            sparse, following = await self._run_blocking(_sparse_packs, self._store, self._start)
            for one in sparse:
                if not self._has_room(living):
                    break
                self._start = keys.pack_key(*one.place) + b"\0"
                if self._left.get(one.place) == one.pack.live:
                    continue
                found = await self._living(one)
                living += found
                emptied += bool(found)
            else:
                self._start = following
        if living:
            await self._move(lead, living)
        return emptied

    def _has_room(self, living: Sequence[_Living]) -> bool:
        size = sum(one.ref.length for one in living)
        return size < self._pack_bytes and len(living) < _MAX_SLICES

    async def _living(self, one: _Sparse) -> list[_Living]:
        """The living slices of a pack; none when it is not sparse after all."""
        try:
            content = await self._cold.get(one.pack.name, 0, one.pack.size)
            living = await self._run_blocking(_pick, self._store, one, content)
        except (ObjectMissing, ObjectCorrupt) as error:
            log.error("a pack cannot be compacted", pack=one.pack.name, error=str(error))
            living = []
        if not living:
            if len(self._left) >= _MAX_REMEMBERED:
                self._left.clear()
            self._left[one.place] = one.pack.live
        return living

    async def _move(self, lead: Lead, living: Sequence[_Living]) -> None:
        with lead.pack() as number:
            writer = PackWriter(self._group_id, lead.term, number)
            pack, moved = await self._run_blocking(_write, writer, living)
            name = cluster_folder(self._cluster_id()) + pack.name
            await self._cold.put_verified(name, pack.content)
            command = MoveSlices(lead.term, number, name, len(pack.content), moved)
            await self._group.propose(command, 64 * len(moved))


def _sparse_packs(store: StateStore, start: bytes) -> tuple[list[_Sparse], bytes | None]:
    """Packs among the next rows that look sparse, and where to go on. Blocks."""
    rows = store.scan(start, bytes([keys.PACK[0] + 1]), limit=MAX_PAGE)
    packs = [_Sparse(keys.place_in(key[1:]), _PACK.decode(value)) for key, value in rows]
    following = rows[-1][0] + b"\0" if len(rows) == MAX_PAGE else None
    return [one for one in packs if 0 < one.pack.live < one.pack.size * _SPARSE], following


def _pick(store: StateStore, one: _Sparse, content: bytes) -> list[_Living]:
    """The slices of a whole pack to which rows refer, if they are few. Blocks.

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
    size = sum(found.ref.length for found in living)
    return living if size < _SPARSE * sum(ref.length for ref in refs) else []


def _is_there(row: ColdSlice, place: Place, ref: SliceRef) -> bool:
    return (row.term, row.number, row.offset) == (*place, ref.offset)


def _write(writer: PackWriter, living: Sequence[_Living]) -> tuple[MadePack, list[MovedSlice]]:
    """The new pack, and what is where in it. Raises `ObjectCorrupt`."""
    moved: list[MovedSlice] = []
    for old in living:
        ref = writer.add(old.ref.stream_id, decode_slice(old.ref, old.content))
        moved.append(
            MovedSlice(ref.stream_id, ref.end_record, *old.place, ref.offset, ref.length, ref.crc)
        )
    return writer.finish(), moved
