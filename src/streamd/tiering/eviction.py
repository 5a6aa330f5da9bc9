"""Eviction: a node removes records that the cold store has from its own disk.

A node evicts records only after it has compared its own copy with the digest of the slice that
holds them. It keeps about `cold.hot_keep_bytes` of flushed bytes for readers.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

import msgspec
import structlog
import trio

from streamd.process.threads import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.chunks import Chunk, gathered
from streamd.streams.model import ColdSlice
from streamd.streams.reading import read_stored
from streamd.streams.state import State

log = structlog.get_logger("streamd.objectstore")

_LOOK_EVERY_S = 1.0
# About how much a step reads and compares; flushes of the state wait for it.
_STEP_BYTES = 4 * 1024 * 1024
_STEP_ROWS = 1_000
_STEP_IDS = 200
# How much deleted data may stay on the disk before it is compacted.
COMPACT_BYTES = 64 * 1024 * 1024
# Everything is counted again this often, but counting takes only a small part of the time.
_COUNT_EVERY_S = 20.0
_COUNT_PAUSES = 20

_CHUNK_DECODER = msgspec.msgpack.Decoder(Chunk)
_SLICE_DECODER = msgspec.msgpack.Decoder(ColdSlice)


class Place(NamedTuple):
    """The evictor's place: below a letter of rows, at a stream or blob id, at a row's number.

    A search from the id's beginning would read past everything that was just deleted.
    """

    letter: bytes = keys.CHUNK
    stream_id: int = 0
    number: int = 0

    @property
    def key(self) -> bytes:
        return keys.row_key(self.letter, self.stream_id, self.number)


class Step(NamedTuple):
    """How far a step came (None at the very end), and how many bytes it evicted.

    `straddling` bytes are in the cold store, but share a chunk with bytes that are not.
    """

    place: Place | None
    evicted: int = 0
    straddling: int = 0
    differing: int = 0


class Evictor:
    """Keeps a node's flushed bytes within a limit.

    `stored` waits until all that was applied is in the store; while `exclusive` is held, no other
    task writes there.

    The bytes are counted at the start, and newly flushed ones added. Removed streams make the
    count too high, until a pass over everything corrects it. A chunk that returns, joined to the
    records after it, makes it too low, until everything is counted again.
    """

    def __init__(
        self,
        state: State,
        store: StateStore,
        exclusive: AbstractAsyncContextManager[object],
        stored: Callable[[], Awaitable[object]],
        *,
        keep_bytes: int,
        run_blocking: RunBlocking,
    ) -> None:
        self._state = state
        self._store = store
        self._exclusive = exclusive
        self._stored = stored
        self._keep_bytes = keep_bytes
        self._run_blocking = run_blocking
        self._place = Place()
        self._begin_count()
        self._count_again_at = 0.0
        self._counted_from = state.header.flushed_bytes
        self._evicted_this_way = 0
        self._flushed_before = 0
        self._flushed_in_vain = -1
        self._straddling = 0
        # By letter: the keys between which rows were deleted, and about how many bytes.
        self._deleted: dict[bytes, tuple[bytes, bytes, int]] = {}
        # Whether files of the deleted rows may still exist.
        self._replaced_files = False
        # For operators.
        self.kept_bytes = 0
        self.evicted_bytes = 0
        self.differing = 0

    @property
    def held_bytes(self) -> int | None:
        """About how many bytes this node holds that the store has too; None before they were
        counted."""
        if self._counted_from is None:
            return None
        return self.kept_bytes + self._state.header.flushed_bytes - self._counted_from

    async def round(self) -> float:
        """Evict a little, if there is too much. Raises `StorageError`."""
        if self._counting is not None:
            await self._count(self._counting)
            return 0.0
        await self._give_back()
        flushed = self._state.header.flushed_bytes
        # Fewer than before: another node's state has replaced this one's.
        self.kept_bytes += max(0, flushed - self._counted_from)
        self._counted_from = flushed
        if self.kept_bytes <= self._keep_bytes:
            if flushed != self._count_flushed and trio.current_time() >= self._count_again_at:
                self._begin_count()
            return _LOOK_EVERY_S
        if self._place == Place():
            if self._flushed_in_vain == flushed:
                return _LOOK_EVERY_S
            # Only stored rows can be counted.
            self._flushed_before, self._straddling = flushed, 0
            await self._stored()
        # No flush may be under way, and the state must not be replaced: what was compared is
        # evicted.
        async with self._exclusive:
            step = await self._run_blocking(evict_some, self._store, self._place)
        if step.place is not None and step.evicted:
            self._note_deleted(self._place, step.place, step.evicted)
        self.kept_bytes = max(0, self.kept_bytes - step.evicted)
        self.evicted_bytes += step.evicted
        self._evicted_this_way += step.evicted
        self._straddling += step.straddling
        self.differing += step.differing
        if step.place is not None:
            self._place = step.place
            return 0.0
        return self._begin_again()

    def _note_deleted(self, before: Place, after: Place, size: int) -> None:
        first, last, so_far = self._deleted.get(before.letter, (before.key, b"", 0))
        self._deleted[before.letter] = (
            min(first, before.key),
            max(last, after.key),
            so_far + size,
        )

    async def _give_back(self) -> None:
        """Free the disk space of deleted rows, if there is much of it.

        Otherwise it stays taken until rows are written over its keys, which for old streams may be
        never. Compaction rewrites the live rows in between: at most as many bytes.
        """
        for letter, (first, last, size) in list(self._deleted.items()):
            if size >= COMPACT_BYTES and await self._run_blocking(
                _give_back, self._store, first, last, size
            ):
                del self._deleted[letter]
                self._replaced_files = True
        if self._replaced_files and await self._run_blocking(self._store.remove_unused):
            self._replaced_files = False

    def _begin_count(self) -> None:
        self._counting: Place | None = Place()
        self._counted = 0
        self._count_flushed = self._state.header.flushed_bytes
        self._count_took_s = 0.0

    async def _count(self, place: Place) -> None:
        """Count a little more; the result is valid once everything has been counted."""
        started = trio.current_time()
        counted = await self._run_blocking(count_some, self._store, place)
        self._count_took_s += trio.current_time() - started
        self._counted += counted.kept
        self._counting = counted.place
        if counted.place is None:
            self.kept_bytes = self._counted
            self._counted_from = self._count_flushed
            pause_s = max(_COUNT_EVERY_S, _COUNT_PAUSES * self._count_took_s)
            self._count_again_at = trio.current_time() + pause_s

    def _begin_again(self) -> float:
        """Start over after the last row. If nothing was evicted, the rest cannot be evicted yet, or
        is new."""
        found, self._evicted_this_way = self._evicted_this_way, 0
        self._place = Place()
        if not found:
            self._flushed_in_vain = self._flushed_before
            self.kept_bytes = self._straddling + self._counted_from - self._flushed_before
        return _LOOK_EVERY_S


class Counted(NamedTuple):
    """How far a count came (None at the very end), and how many bytes it found to be in the cold
    store as well."""

    place: Place | None
    kept: int = 0


def count_some(store: StateStore, place: Place) -> Counted:
    """Count some of the rows after `place`. Blocks."""
    kept = 0
    for _ in range(_STEP_IDS):
        row = _next_row(store, place)
        if row is None:
            return Counted(_after_all(place), kept)
        stream_id = keys.stream_id_in(row[0])
        last = store.last(*keys.id_range(keys.SLICE, stream_id))
        if last is not None:
            kept += max(0, _SLICE_DECODER.decode(last[1]).end_byte - _start(store, *row))
        place = Place(place.letter, stream_id + 1)
    return Counted(place, kept)


def _start(store: StateStore, key: bytes, value: bytes) -> int:
    """The byte at which the node's rows of an id begin, if the cold store has that byte; known
    from the first row."""
    if key[:1] == keys.CHUNK:
        return _CHUNK_DECODER.decode(value).start_byte
    slices = _slices(store, keys.stream_id_in(key), keys.parse_number(key))
    return slices[0].start_byte if slices else sys.maxsize


def _next_row(store: StateStore, place: Place) -> tuple[bytes, bytes] | None:
    """The first chunk or part from a place on."""
    rows = store.scan(place.key, keys.end_of(place.letter), limit=1)
    return rows[0] if rows else None


def _after_all(place: Place) -> Place | None:
    return Place(keys.BLOB_PART) if place.letter == keys.CHUNK else None


def evict_some(store: StateStore, place: Place) -> Step:
    """Compare and evict some rows after `place`; never anything that is not stored. Blocks."""
    row = _next_row(store, place)
    if row is None:
        return Step(_after_all(place))
    stream_id = keys.stream_id_in(row[0])
    of_blob = place.letter == keys.BLOB_PART
    chunks = _parts(store, *row) if of_blob else _chunks(store, *row)
    compared = _compare(store, stream_id, chunks)
    doomed = [chunk for chunk in chunks if chunk.end_record <= compared.through]
    if doomed:
        _delete(store, place.letter, stream_id, doomed)
        # There may be more of this id.
        after = Place(place.letter, stream_id, doomed[-1].end_record + (not of_blob))
        return Step(after, sum(chunk.size for chunk in doomed), 0, compared.differing)
    straddling = max(0, compared.through_byte - chunks[0].start_byte)
    next_place = Place(place.letter, stream_id + 1)
    return Step(next_place, 0, straddling, compared.differing)


def _delete(store: StateStore, letter: bytes, stream_id: int, doomed: list[Chunk]) -> None:
    if letter == keys.BLOB_PART:
        store.write([(keys.part_key(stream_id, part.start_record), None) for part in doomed])
        return
    gone = keys.dropped_key(stream_id), keys.number(doomed[-1].end_record)
    rows = [(keys.chunk_key(stream_id, chunk.end_record), None) for chunk in doomed]
    store.write([*rows, gone])


def _give_back(store: StateStore, first: bytes, last: bytes, size: int) -> bool:
    return store.size_between(first, last) <= 2 * size and store.compact(first, last)


class _Compared(NamedTuple):
    """Everything before record `through`, at `through_byte`, is the same here and in the cold
    store."""

    through: int
    through_byte: int
    differing: int = 0


def _compare(store: StateStore, stream_id: int, chunks: list[Chunk]) -> _Compared:
    """Compare the first chunks that a node holds of an id with the digests of their slices."""
    through = through_byte = 0
    rows = store.scan(
        keys.slice_key(stream_id, chunks[0].start_record + 1),
        keys.id_range(keys.SLICE, stream_id)[1],
        limit=_STEP_ROWS,
    )
    for key, value in rows:
        end_record, row = keys.parse_number(key), _SLICE_DECODER.decode(value)
        if row.start_record >= chunks[-1].end_record:
            break
        # Its earlier part was evicted after the whole had been compared (trimmed records stay
        # for that), or was never here.
        if row.start_record >= chunks[0].start_record:
            own = gathered(chunks, row.start_record, end_record)
            if own is None:
                break  # it reaches beyond what was read
            if own.digest() != row.digest:
                log.error(
                    "records differ from those in the cold store, and are kept",
                    stream=stream_id,
                    records=(row.start_record, end_record),
                )
                return _Compared(through, through_byte, 1)
        through, through_byte = end_record, row.end_byte
    return _Compared(through, through_byte)


def _chunks(store: StateStore, key: bytes, value: bytes) -> list[Chunk]:
    """The first chunks of a stream id from a row on, at least one slice's worth."""
    stream_id = keys.stream_id_in(key)
    first = _CHUNK_DECODER.decode(value)
    slices = _slices(store, stream_id, first.start_record)
    # Part of the first slice may have been evicted before; the second one should be whole here.
    wanted = max(_STEP_BYTES, slices[-1].end_byte - first.start_byte) if slices else 1
    return read_stored(store, stream_id, first.start_record, max_bytes=wanted)


def _parts(store: StateStore, key: bytes, value: bytes) -> list[Chunk]:
    """The first parts of a blob from a row on, each as a chunk, at least one slice's worth."""
    blob_id, number = keys.stream_id_in(key), keys.parse_number(key)
    slices = _slices(store, blob_id, number)
    if not slices:
        return [Chunk(number, 0, [0], [], b"")]  # hot: it stays, whatever it is
    stop = keys.id_range(keys.BLOB_PART, blob_id)[1]
    at_byte = slices[0].start_byte
    wanted = max(_STEP_BYTES, slices[-1].end_byte - at_byte)
    parts: list[Chunk] = []
    for _, data in store.scan(key, stop, limit=_STEP_ROWS, max_bytes=wanted):
        parts.append(Chunk(number, at_byte, [len(data)], [], data))
        number += 1
        at_byte += len(data)
    return parts


def _slices(store: StateStore, stream_id: int, record: int) -> list[ColdSlice]:
    """The slice that holds a record, and the one after it."""
    start = keys.slice_key(stream_id, record + 1)
    rows = store.scan(start, keys.id_range(keys.SLICE, stream_id)[1], limit=2)
    return [_SLICE_DECODER.decode(value) for _, value in rows]
