"""The rows on a node's disk whose bytes the cold store has too: count, compare and delete them.

Each function does one step from a `Place` on and says where the next one begins, so that flushes
of the state, which must not run beside a step, wait for a few MiB at most. `eviction` decides when.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import msgspec
import structlog

from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.chunks import Chunk, gathered
from streamd.streams.model import ColdSlice
from streamd.streams.queries.reading import read_stored

log = structlog.get_logger("streamd.objectstore")

# About how much a step reads and compares; flushes of the state wait for it.
_STEP_BYTES = 4 * 1024 * 1024
_STEP_ROWS = 1_000
_STEP_IDS = 200

_CHUNK_DECODER = msgspec.msgpack.Decoder(Chunk)
_SLICE_DECODER = msgspec.msgpack.Decoder(ColdSlice)


class Place(NamedTuple):
    """Where a step begins: below a letter of rows, at a stream or blob id, at a row's number.

    A search from the id's beginning would read past everything that was just deleted.
    """

    letter: bytes = keys.CHUNK
    stream_id: int = 0
    number: int = 0

    @property
    def key(self) -> bytes:
        return keys.row_key(self.letter, self.stream_id, self.number)


START = Place()


class Step(NamedTuple):
    """How far a step came (None at the very end), and how many bytes it evicted.

    `straddling` bytes are in the cold store, but share a chunk with bytes that are not.
    """

    place: Place | None
    evicted: int = 0
    straddling: int = 0
    differing: int = 0


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
        # There may be more of this id. A chunk's key ends in the record after its last, a part's
        # in its own number: with the same step for both, the next part would be skipped.
        after = Place(place.letter, stream_id, doomed[-1].end_record + (not of_blob))
        return Step(after, sum(chunk.size for chunk in doomed), 0, compared.differing)
    straddling = max(0, compared.through_byte - chunks[0].start_byte)
    next_place = Place(place.letter, stream_id + 1)
    return Step(next_place, 0, straddling, compared.differing)


def _delete(store: StateStore, letter: bytes, stream_id: int, doomed: list[Chunk]) -> None:
    if letter == keys.BLOB_PART:
        store.write([(keys.part_key(stream_id, part.start_record), None) for part in doomed])
        return
    # In the same write as the deletion: written later, it would let readers search all the deleted
    # rows; written earlier, it would hide chunks that a crash then leaves in place.
    gone = keys.dropped_key(stream_id), keys.number(doomed[-1].end_record)
    rows = [(keys.chunk_key(stream_id, chunk.end_record), None) for chunk in doomed]
    store.write([*rows, gone])


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
