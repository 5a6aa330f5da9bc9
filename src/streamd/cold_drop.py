"""Dropping of hot bytes that are in the cold store, on this node alone.

A node lets go of records only after it has compared its own with the digest of the slice that
holds them. What it keeps besides, for readers, is bounded by `cold.hot_keep_bytes`, about.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

import msgspec
import structlog

from streamd.blocking import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.chunks import Chunk, gathered
from streamd.streams.model import ColdSlice
from streamd.streams.reading import read_stored
from streamd.streams.state import State

log = structlog.get_logger("streamd.cold")

_LOOK_EVERY_S = 1.0
# What a step reads and compares, about; flushes of the state wait for it.
_STEP_BYTES = 4 * 1024 * 1024
_STEP_ROWS = 1_000

_CHUNK_DECODER = msgspec.msgpack.Decoder(Chunk)
_SLICE_DECODER = msgspec.msgpack.Decoder(ColdSlice)


class Place(NamedTuple):
    """Where the dropper is: below a letter of rows, at a stream or blob id."""

    letter: bytes = keys.CHUNK
    stream_id: int = 0


class Step(NamedTuple):
    """How far a step came (None at the very end), and what it dropped, in bytes."""

    place: Place | None
    dropped: int = 0
    differing: int = 0


class Dropper:
    """Keeps what a node holds of flushed bytes within a limit.

    `stored` waits until all that was applied is in the store; while `exclusive` is held, nobody
    writes there.

    What it holds is counted since the start, on top of what the files' sizes say then. A removal
    of streams makes the count too high; a round through everything sets it right.
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
        self._counted_from: int | None = None
        self._dropped_this_way = 0
        self._flushed_before = 0
        # For operators.
        self.kept_bytes = 0
        self.dropped_bytes = 0
        self.differing = 0

    @property
    def held_bytes(self) -> int | None:
        """What this node holds that is in the store, about; None before it was counted."""
        if self._counted_from is None:
            return None
        return self.kept_bytes + self._state.header.flushed_bytes - self._counted_from

    async def round(self) -> float:
        """Drop a little, if there is too much. Raises `StorageError`."""
        await self._count()
        if self.kept_bytes <= self._keep_bytes:
            return _LOOK_EVERY_S
        if self._place == Place():
            # What is counted must be stored to be found.
            self._flushed_before = self._state.header.flushed_bytes
            await self._stored()
        # No flush may be under way, and nobody replace the state: what was compared is dropped.
        async with self._exclusive:
            step = await self._run_blocking(drop_some, self._store, self._place)
        self.kept_bytes = max(0, self.kept_bytes - step.dropped)
        self.dropped_bytes += step.dropped
        self._dropped_this_way += step.dropped
        self.differing += step.differing
        if step.place is not None:
            self._place = step.place
            return 0.0
        return self._begin_again()

    def _begin_again(self) -> float:
        """Everything was looked at. When nothing was found, there is only what came since."""
        found, self._dropped_this_way = self._dropped_this_way, 0
        self._place = Place()
        if not found:
            self.kept_bytes = self._state.header.flushed_bytes - self._flushed_before
        return _LOOK_EVERY_S

    async def _count(self) -> None:
        flushed = self._state.header.flushed_bytes
        if self._counted_from is None or flushed < self._counted_from:
            held = await self._run_blocking(self._store.size_of, _RANGES)
            self.kept_bytes = max(0, held - self._state.header.hot_bytes)
        else:
            self.kept_bytes += flushed - self._counted_from
        self._counted_from = flushed


_RANGES = [(letter, bytes([letter[0] + 1])) for letter in (keys.CHUNK, keys.BLOB_PART)]


def drop_some(store: StateStore, place: Place) -> Step:
    """Compare and drop some of what follows `place`; never anything that is not stored. Blocks."""
    start = keys.id_range(place.letter, place.stream_id)[0]
    rows = store.scan(start, bytes([place.letter[0] + 1]), limit=1)
    if not rows:
        return Step(Place(keys.BLOB_PART) if place.letter == keys.CHUNK else None)
    stream_id = keys.stream_id_in(rows[0][0])
    of_blob = place.letter == keys.BLOB_PART
    chunks = _parts(store, stream_id) if of_blob else _chunks(store, stream_id)
    compared = _compare(store, stream_id, chunks)
    doomed = [chunk for chunk in chunks if chunk.end_record <= compared.through]
    if doomed:
        key = keys.part_key if of_blob else keys.chunk_key
        ends = [chunk.start_record if of_blob else chunk.end_record for chunk in doomed]
        store.write([(key(stream_id, end), None) for end in ends])
    dropped = sum(chunk.size for chunk in doomed)
    # There may be more of this id, unless what is left is hot, or differs.
    next_id = stream_id if doomed else stream_id + 1
    return Step(Place(place.letter, next_id), dropped, compared.differing)


class _Compared(NamedTuple):
    """Everything before record `through` is in the cold store as it is here."""

    through: int
    differing: int = 0


def _compare(store: StateStore, stream_id: int, chunks: list[Chunk]) -> _Compared:
    """Compare the first chunks that a node holds of an id with the digests of their slices."""
    through = 0
    rows = store.scan(
        keys.slice_key(stream_id, chunks[0].start_record + 1),
        keys.id_range(keys.SLICE, stream_id)[1],
        limit=_STEP_ROWS,
    )
    for key, value in rows:
        end_record, row = keys.number_in(key), _SLICE_DECODER.decode(value)
        if row.start_record >= chunks[-1].end_record:
            break
        # What was held of it before was dropped after it had been compared as a whole.
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
                return _Compared(through, 1)
        through = end_record
    return _Compared(through)


def _chunks(store: StateStore, stream_id: int) -> list[Chunk]:
    """The first chunks of a stream id, a slice's worth at least."""
    [(_, value)] = store.scan(*keys.id_range(keys.CHUNK, stream_id), limit=1)
    first = _CHUNK_DECODER.decode(value)
    slices = _slices(store, stream_id, first.start_record)
    # Of the first slice a part may have been dropped before; the second one is to be whole here.
    wanted = max(_STEP_BYTES, slices[-1].end_byte - first.start_byte) if slices else 1
    return read_stored(store, stream_id, first.start_record, max_bytes=wanted)


def _parts(store: StateStore, blob_id: int) -> list[Chunk]:
    """The first parts of a blob, each as a chunk, a slice's worth at least."""
    start, stop = keys.id_range(keys.BLOB_PART, blob_id)
    [(key, _)] = store.scan(start, stop, limit=1)
    number = keys.number_in(key)
    slices = _slices(store, blob_id, number)
    if not slices:
        return [Chunk(number, 0, [0], [], b"")]  # hot: whatever it is, it stays
    at_byte = slices[0].start_byte
    wanted = max(_STEP_BYTES, slices[-1].end_byte - at_byte)
    parts: list[Chunk] = []
    for _, data in store.scan(start, stop, limit=_STEP_ROWS, max_bytes=wanted):
        parts.append(Chunk(number, at_byte, [len(data)], [], data))
        number += 1
        at_byte += len(data)
    return parts


def _slices(store: StateStore, stream_id: int, record: int) -> list[ColdSlice]:
    """The slice that holds a record, and the one behind it."""
    start = keys.slice_key(stream_id, record + 1)
    rows = store.scan(start, keys.id_range(keys.SLICE, stream_id)[1], limit=2)
    return [_SLICE_DECODER.decode(value) for _, value in rows]
