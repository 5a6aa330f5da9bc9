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
    Chunk,
    Limit,
    OffsetMismatch,
    Slice,
    Window,
    joined,
    read_chunk,
)
from streamd.streams.model import ColdSlice, Pack, SliceRef, Stream
from streamd.streams.tables import KeyValue

# Rows of cold slices that are looked up at once: for this read, and for the next.
_SLICES = 16

_END_RECORD = attrgetter("end_record")
_CHUNK_DECODER = msgspec.msgpack.Decoder(Chunk)
_SLICE_DECODER = msgspec.msgpack.Decoder(ColdSlice)
_PACK_DECODER = msgspec.msgpack.Decoder(Pack)


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


def gather(stream: Stream, window: Window, find: Find) -> Slice | None:
    """The records in `window` as far as `find` has them; None if it lacks the first.

    Raises `OffsetMismatch` when the window's position contradicts the stream.
    """
    at = window.at
    if at.record >= stream.records:
        if at != stream.tail:
            raise OffsetMismatch
        return Slice([], at, 0)
    pieces: list[Slice] = []
    rest: Window | None = window
    while rest is not None:
        record = rest.at.record
        stream_id, limit = home(stream, record)
        chunk = find(stream_id, record)
        if chunk is None:
            break
        piece = read_chunk(chunk, rest, limit, at_least_one=not pieces)
        if not piece.size:
            break  # The next record is too large for the rest of the window.
        pieces.append(piece)
        if piece.end.record == stream.records:
            break
        rest = rest.after(piece)
    if len(pieces) > 1:
        return joined(pieces)
    return pieces[0] if pieces else None


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
    """Read like `read_stored`, but skip evicted chunks without looking for them. Blocks.

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


def read_from_store(store: KeyValue, stream: Stream, window: Window) -> StoredRead:
    """The records of `window` that are in the store, or their places in the cold store.

    Takes only one stream id's chunks at a time: a fork's reader returns for the next.
    Blocks. Raises `OffsetMismatch` when the window's position contradicts the stream.
    """
    record = window.at.record
    stream_id, _ = home(stream, record)
    chunks = held(store, stream_id, record, max_bytes=window.max_bytes)
    found = gather(stream, window, finder(stream_id, chunks))
    if found is not None:
        return StoredRead(found, stream_id, chunks)
    return StoredRead(None, stream_id, [], read_slices(store, stream_id, record))


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
