"""Reads records: from chunks in memory, chunks in the store, and slices in the cold store."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol

import msgspec

from streamd.streams import keys
from streamd.streams.chunks import (
    AnyChunk,
    Buffer,
    Chunk,
    Limit,
    OffsetMismatch,
    Slice,
    lengths_between,
    read_chunk,
)
from streamd.streams.model import ColdSlice, Pack, SliceRef, Stream
from streamd.streams.offsets import Position
from streamd.streams.tables import KeyValue

# Rows of cold slices that are looked up at once: for this read, and for the next.
_SLICES = 16

_END_RECORD = attrgetter("end_record")
_CHUNK_DECODER = msgspec.msgpack.Decoder(Chunk)
_SLICE_DECODER = msgspec.msgpack.Decoder(ColdSlice)
_PACK_DECODER = msgspec.msgpack.Decoder(Pack)


class RecordSlice(NamedTuple):
    """The result of a read, with the sizes in bytes of its records, in order.

    No record lies in two of the parts.
    """

    slice: Slice
    lengths: list[int]


class LocatedSlice(NamedTuple):
    """The name of a pack, and a slice in it."""

    pack: str
    ref: SliceRef

    @property
    def key(self) -> tuple[str, int]:
        """Names the slice among those of all packs."""
        return self.pack, self.ref.offset


class StoredRead(NamedTuple):
    """The result of `read_from_store` for stream id `stream_id`.

    The reader may keep `chunks` in memory. If the store has no chunk with the first record, `cold`
    are the slices that hold it and what follows.
    """

    slice: Slice | None
    stream_id: int
    chunks: Sequence[Chunk]
    cold: Sequence[LocatedSlice] = ()


class Find(Protocol):
    """Finds the chunk of a stream id that holds a record, if it is in memory."""

    def __call__(self, stream_id: int, record: int, /) -> AnyChunk | None: ...


def home(stream: Stream, record: int) -> tuple[int, Limit]:
    """The stream id that holds a record of `stream`, and where the stream's part of that id
    ends."""
    extents = stream.extents
    # There can be many: a fork of a fork of a fork has one of each.
    place = bisect_right(extents, record, key=_END_RECORD) if extents else 0
    if place < len(extents):
        extent = extents[place]
        return extent.stream_id, Limit(extent.end_record, extent.end_byte)
    return stream.stream_id, Limit(stream.records, stream.size)


def gather(
    stream: Stream,
    at: Position,
    max_bytes: int,
    find: Find,
    lengths: list[int] | None = None,
) -> Slice | None:
    """Records from `at` on, as far as `find` has them; None if it lacks the first.

    Their sizes are added to `lengths`. Raises `OffsetMismatch` when `at` contradicts the stream.
    """
    if at.record >= stream.records:
        if at != stream.tail:
            raise OffsetMismatch
        return Slice([], at, 0)
    parts: list[Buffer] = []
    size = 0
    start = at
    while at.record < stream.records and size < max_bytes:
        stream_id, limit = home(stream, at.record)
        chunk = find(stream_id, at.record)
        if chunk is None:
            break
        piece = read_chunk(chunk, at, limit, max_bytes - size, at_least_one=at is start)
        if not piece.size:
            break  # the next record is too large for the rest of `max_bytes`
        parts += piece.parts
        size += piece.size
        if lengths is not None:
            lengths += lengths_between(chunk, at, piece)
        at = piece.end
    if at is start:
        return None
    return Slice(parts, at, size)


def finder(stream_id: int, chunks: Sequence[Chunk]) -> Find:
    """Finds the chunks of one stream id, asked for in their order."""
    by_record = iter(chunks)

    def find(wanted_id: int, record: int) -> AnyChunk | None:
        if wanted_id != stream_id:
            return None
        for chunk in by_record:
            if chunk.start_record <= record < chunk.end_record:
                return chunk
        return None

    return find


def held(store: KeyValue, stream_id: int, record: int, *, max_bytes: int) -> list[Chunk]:
    """As `read_stored`, but skips evicted chunks without looking for them. Blocks.

    LevelDB finds out that rows are gone by reading past their remains: each reader of a cold
    stream would read megabytes of chunks that were deleted a moment ago.
    """
    dropped = store.get(keys.dropped_key(stream_id))
    if dropped is not None and record < keys.number_of(dropped):
        return []
    return read_stored(store, stream_id, record, max_bytes=max_bytes)


def read_stored(store: KeyValue, stream_id: int, record: int, *, max_bytes: int) -> list[Chunk]:
    """Stored chunks of one stream id from the one with `record` on, without a gap. Blocks.

    At least one chunk if there is one, then as many as `max_bytes` allows.
    """
    stop = keys.id_range(keys.CHUNK, stream_id)[1]
    start = keys.chunk_key(stream_id, record + 1)
    # One first: after a gap there may be much that is not wanted.
    rows = store.scan(start, stop, limit=1)
    if not rows:
        return []
    chunks = [_CHUNK_DECODER.decode(rows[0][1])]
    if chunks[0].start_record > record:
        return []
    left = max_bytes - chunks[0].size
    if left > 0:
        for _, value in store.scan(rows[0][0] + b"\0", stop, limit=10_000, max_bytes=left):
            chunk = _CHUNK_DECODER.decode(value)
            if chunk.start_record != chunks[-1].end_record:
                break
            chunks.append(chunk)
    return chunks


def read_slices(store: KeyValue, stream_id: int, record: int) -> list[LocatedSlice]:
    """The slices of one stream id from the one with `record` on, without a gap. Blocks.

    Not all of them if there are many; none if the record is not in the cold store.
    """
    rows = store.scan(
        keys.slice_key(stream_id, record + 1),
        keys.id_range(keys.SLICE, stream_id)[1],
        limit=_SLICES,
    )
    found: list[tuple[int, ColdSlice]] = []
    at = record
    for key, value in rows:
        row = _SLICE_DECODER.decode(value)
        if row.start_record > at:
            break
        at = keys.parse_number(key)
        found.append((at, row))
    places = list(dict.fromkeys((row.term, row.number) for _, row in found))
    packs = store.get_many([keys.pack_key(*place) for place in places])
    names = {
        place: _PACK_DECODER.decode(raw).name
        for place, raw in zip(places, packs, strict=True)
        if raw is not None
    }
    located: list[LocatedSlice] = []
    for end_record, row in found:
        if (row.term, row.number) not in names:
            break  # Repacked between the two lookups: the next lookup finds the new pack.
        name = names[row.term, row.number]
        located.append(LocatedSlice(name, row.ref(stream_id, end_record)))
    return located


def read_from_store(
    store: KeyValue,
    stream: Stream,
    at: Position,
    max_bytes: int,
    lengths: list[int] | None = None,
) -> StoredRead:
    """Records from `at` on as far as they are in the store, or where in the cold store they are.

    Takes only one stream id's chunks at a time: a fork's reader returns for the next.
    Blocks. Raises `OffsetMismatch` when `at` contradicts the stream.
    """
    stream_id, _ = home(stream, at.record)
    chunks = held(store, stream_id, at.record, max_bytes=max_bytes)
    found = gather(stream, at, max_bytes, finder(stream_id, chunks), lengths)
    if found is not None:
        return StoredRead(found, stream_id, chunks)
    return StoredRead(None, stream_id, [], read_slices(store, stream_id, at.record))


def find_record(
    store: KeyValue, stream_id: int, record: int
) -> tuple[list[Chunk], list[LocatedSlice]]:
    """The stored chunk with a record of a stream id, or else its slices. Blocks."""
    chunks = held(store, stream_id, record, max_bytes=1)
    return chunks, [] if chunks else read_slices(store, stream_id, record)


def read_part(store: KeyValue, blob_id: int, number: int) -> bytes | None:
    """A stored part of a blob. Blocks."""
    return store.get(keys.part_key(blob_id, number))


def find_part(
    store: KeyValue, blob_id: int, number: int
) -> tuple[bytes | None, list[LocatedSlice]]:
    """A stored part of a blob, or else where in the cold store it is. Blocks."""
    data = read_part(store, blob_id, number)
    return data, [] if data is not None else read_slices(store, blob_id, number)
