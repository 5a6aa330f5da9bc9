"""The machine's state: tables and tails over a key-value store.

Changes gather in memory and are stored a batch at a time, together with the index of the last
entry applied; the Raft log makes up for what a crash loses of them. Nothing here grows with the
number of streams: an idle stream is only a few keys in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from streamd.streams import keys
from streamd.streams.blobs import Parts
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
from streamd.streams.commands import (
    Append,
    Archived,
    BeginUpload,
    Command,
    Create,
    CreateBucket,
    Delete,
    DeleteBucket,
    DropUploads,
    PublishSnapshot,
    StorePart,
    Sweep,
    Touch,
)
from streamd.streams.model import Blob, Bucket, Header, ProducerState, Stream, Upload
from streamd.streams.offsets import Position
from streamd.streams.tables import Table
from streamd.streams.tails import Tails

_STREAM_LIMIT = 50_000
_PRODUCER_LIMIT = 50_000
_BUCKET_LIMIT = 10_000
_BLOB_LIMIT = 10_000
_TAIL_LIMIT_BYTES = 96 * 1024 * 1024
# What a change to a table costs in memory while it waits to be stored, roughly.
_ROW_BYTES = 300

_ENCODER = msgspec.msgpack.Encoder()
_CHUNK_DECODER = msgspec.msgpack.Decoder(Chunk)
_UPLOAD_DECODER = msgspec.msgpack.Decoder(Upload)
_HEADER_DECODER = msgspec.msgpack.Decoder(Header)

Item = tuple[bytes, bytes | None]


class KeyValue(Protocol):
    """The ordered store underneath; its calls may block for a disk read."""

    def get(self, key: bytes) -> bytes | None: ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(
        self, start: bytes, stop: bytes, *, limit: int, max_bytes: int | None = None
    ) -> list[tuple[bytes, bytes]]: ...


class State:
    """All that the machine knows, as of `header.applied_index`."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store
        self.flushes = 0
        self.load()

    def load(self) -> None:
        """Begin with what is in the store, forgetting everything else."""
        store = self._store
        raw = store.get(keys.HEADER)
        self.header = Header() if raw is None else _HEADER_DECODER.decode(raw)
        self.stored_index = self.header.applied_index
        # Whoever reads ahead for the state before must not bring it back.
        self.flushes += 1
        self.streams = Table(Stream, keys.STREAM, store.get, _STREAM_LIMIT)
        self.producers = Table(ProducerState, b"", store.get, _PRODUCER_LIMIT)
        self.buckets = Table(Bucket, keys.BUCKET, store.get, _BUCKET_LIMIT)
        self.uploads = Table(Upload, keys.UPLOAD, store.get, _BLOB_LIMIT)
        self.blobs = Table(Blob, keys.BLOB, store.get, _BLOB_LIMIT)
        self._tables = (self.streams, self.producers, self.buckets, self.uploads, self.blobs)
        self.parts = Parts()
        self.tails = Tails(_TAIL_LIMIT_BYTES)
        self._rows: dict[bytes, bytes | None] = {}
        self._appended_bytes = 0
        self._flushing_index = 0

    # -- changes ------------------------------------------------------------------------------

    def append(self, stream: Stream, data: bytes, lengths: list[int]) -> None:
        """Add one append's records behind the stream's tail and move the tail."""
        self.tails.append(stream.stream_id, Position(stream.records, stream.size), data, lengths)
        stream.records += len(lengths)
        stream.size += len(data)
        self._appended_bytes += len(data)

    def schedule_sweep(self, key: bytes, stream: Stream) -> None:
        """Have the stream looked at when it may have expired; a renewal alone moves nothing."""
        self.cancel_sweep(key, stream)
        at_ms = stream.expiry_ms()
        if at_ms is not None:
            stream.sweep_at_ms = at_ms
            self._rows[keys.expiry_key(at_ms, key)] = b""

    def cancel_sweep(self, key: bytes, stream: Stream) -> None:
        if stream.sweep_at_ms is not None:
            self._rows[keys.expiry_key(stream.sweep_at_ms, key)] = None
            stream.sweep_at_ms = None

    def discard(self, stream_id: int) -> None:
        """Leave the records and producers of a stream id to the background removal."""
        self.tails.drop(stream_id)
        self._rows[keys.garbage_key(stream_id)] = b""

    def trim(self, stream_id: int, record: int) -> None:
        """Leave the chunks before `record` to the background removal."""
        self._rows[keys.trim_key(stream_id, record)] = b""

    def store_part(self, blob_id: int, number: int, data: bytes) -> None:
        """Keep a part of a blob."""
        self.parts.put(blob_id, number, data)
        self._appended_bytes += len(data)

    def discard_blob(self, blob_id: int) -> None:
        """Leave a blob's parts to the background removal; who still reads them may go on."""
        self._rows[keys.garbage_key(blob_id)] = b""

    # -- reads --------------------------------------------------------------------------------

    def read_recent(self, stream: Stream, at: Position, max_bytes: int) -> Slice | None:
        """Records from `at` on as far as they are in memory, at most about `max_bytes`.

        At least one record is read, whatever its size. None when the record at `at` is only in
        the store. Raises `OffsetMismatch` when `at` is not a record boundary of the stream.
        """
        return _gather(stream, at, max_bytes, self.tails.find)

    def read_recent_records(
        self, stream: Stream, at: Position, max_bytes: int
    ) -> RecordSlice | None:
        """As `read_recent`, with the records' lengths."""
        lengths: list[int] = []
        found = _gather(stream, at, max_bytes, self.tails.find, lengths)
        return None if found is None else RecordSlice(found, lengths)

    def chunk_at(self, stream: Stream, record: int) -> tuple[AnyChunk, Limit]:
        """The chunk with `record`, from memory or store, and how far the stream reads in it."""
        stream_id, limit = _home(stream, record)
        chunk = self.tails.find(stream_id, record)
        if chunk is None:
            found = read_stored(self._store, stream_id, record, max_bytes=1)
            if not found:
                raise OffsetMismatch
            chunk = found[0]
        return chunk, limit

    # -- storing ------------------------------------------------------------------------------

    @property
    def unstored_bytes(self) -> int:
        """About how much memory the changes hold that are not in the store yet."""
        rows = self.streams.dirty + self.producers.dirty + len(self._rows)
        return self._appended_bytes + rows * _ROW_BYTES

    @property
    def unstored(self) -> bool:
        return self.header.applied_index > self.stored_index

    def begin_flush(self) -> list[Item]:
        """All changes as one batch for the store; call `end_flush` once it is written."""
        items: list[Item] = []
        for stream_id, chunk, replaced in self.tails.begin_flush():
            if replaced is not None:
                items.append((keys.chunk_key(stream_id, replaced.end_record), None))
            items.append((keys.chunk_key(stream_id, chunk.end_record), _ENCODER.encode(chunk)))
        for table in self._tables:
            items.extend(table.begin_flush())
        items.extend(self.parts.begin_flush())
        items.extend(self._rows.items())
        items.append((keys.HEADER, _ENCODER.encode(self.header)))
        self._rows = {}
        self._appended_bytes = 0
        self._flushing_index = self.header.applied_index
        return items

    def end_flush(self) -> None:
        self.stored_index = self._flushing_index
        self.flushes += 1
        self.tails.end_flush()
        self.parts.end_flush()
        for table in self._tables:
            table.end_flush()


def _home(stream: Stream, record: int) -> tuple[int, Limit]:
    """The stream id that holds a record of `stream`, and where its part there ends."""
    for segment in stream.segments:
        if record < segment.end_record:
            return segment.stream_id, Limit(segment.end_record, segment.end_byte)
    return stream.stream_id, Limit(stream.records, stream.size)


class _Find(Protocol):
    def __call__(self, stream_id: int, record: int, /) -> AnyChunk | None: ...


class RecordSlice(NamedTuple):
    """What a read found, and the sizes in bytes of its records, in order.

    No record lies in two of the parts.
    """

    slice: Slice
    lengths: list[int]


def _gather(
    stream: Stream,
    at: Position,
    max_bytes: int,
    find: _Find,
    lengths: list[int] | None = None,
) -> Slice | None:
    if at.record >= stream.records:
        if at != stream.tail:
            raise OffsetMismatch
        return Slice([], at, 0)
    parts: list[Buffer] = []
    size = 0
    start = at
    while at.record < stream.records and size < max_bytes:
        stream_id, limit = _home(stream, at.record)
        chunk = find(stream_id, at.record)
        if chunk is None:
            break
        piece = read_chunk(chunk, at, limit, max_bytes - size, at_least_one=at is start)
        if not piece.size:
            break  # the next record is too large for what is left of `max_bytes`
        parts += piece.parts
        size += piece.size
        if lengths is not None:
            lengths += lengths_between(chunk, at, piece.end)
        at = piece.end
    if at is start:
        return None
    return Slice(parts, at, size)


def read_stored(store: KeyValue, stream_id: int, record: int, *, max_bytes: int) -> list[Chunk]:
    """Stored chunks of one stream id from the one with `record` on. Blocks.

    Always at least one chunk where there is one, then as many as `max_bytes` allows.
    """
    rows = store.scan(
        keys.chunk_key(stream_id, record + 1),
        keys.id_range(keys.CHUNK, stream_id)[1],
        limit=10_000,
        max_bytes=max_bytes,
    )
    return [_CHUNK_DECODER.decode(value) for _, value in rows]


def read_from_store(store: KeyValue, stream: Stream, at: Position, max_bytes: int) -> StoredRead:
    """Records from `at` on as far as they are in the store. Blocks.

    Takes only one stream id's chunks at a time: a fork's reader comes again for the next.
    Raises `OffsetMismatch` when `at` is not a record boundary of the stream.
    """
    stream_id, _ = _home(stream, at.record)
    chunks = read_stored(store, stream_id, at.record, max_bytes=max_bytes)
    found = _gather(stream, at, max_bytes, _finder(stream_id, chunks))
    return StoredRead(found, stream_id, chunks)


def records_from_store(
    store: KeyValue, stream: Stream, at: Position, max_bytes: int
) -> RecordSlice | None:
    """As `read_from_store`, with the records' lengths. Blocks."""
    stream_id, _ = _home(stream, at.record)
    chunks = read_stored(store, stream_id, at.record, max_bytes=max_bytes)
    lengths: list[int] = []
    found = _gather(stream, at, max_bytes, _finder(stream_id, chunks), lengths)
    return None if found is None else RecordSlice(found, lengths)


def _finder(stream_id: int, chunks: Sequence[Chunk]) -> _Find:
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


def read_part(store: KeyValue, blob_id: int, number: int) -> bytes | None:
    """A stored part of a blob. Blocks."""
    return store.get(keys.part_key(blob_id, number))


class StoredRead(msgspec.Struct):
    """What `read_from_store` found; `chunks` may be kept in memory by the reader."""

    slice: Slice | None
    stream_id: int
    chunks: Sequence[Chunk]


def due_for_sweep(store: KeyValue, now_ms: int, limit: int) -> list[bytes]:
    """Keys of up to `limit` streams that may have expired by `now_ms`. Blocks."""
    start, stop = keys.expiry_range(now_ms)
    return [keys.key_in_expiry(key) for key, _ in store.scan(start, stop, limit=limit)]


def idle_uploads(store: KeyValue, until_ms: int, limit: int) -> list[int]:
    """Ids of uploads, among the `limit` oldest, to which nothing was added since `until_ms`.

    Blocks.
    """
    start, stop = keys.UPLOAD, bytes([keys.UPLOAD[0] + 1])
    return [
        keys.id_in(row)
        for row, value in store.scan(start, stop, limit=limit)
        if _UPLOAD_DECODER.decode(value).touched_ms <= until_ms
    ]


def load_rows(
    store: KeyValue, wanted: Sequence[bytes], prefix: bytes = keys.STREAM
) -> dict[bytes, bytes | None]:
    """Read rows of a table, ahead of the commands that will ask for them. Blocks."""
    rows = store.get_many([prefix + key for key in wanted])
    return dict(zip(wanted, rows, strict=True))


def stream_keys(command: Command) -> list[bytes]:
    """The streams a command will look at, so that they can be loaded before it is applied."""
    match command:
        case Append(key=key) | Delete(key=key) | BeginUpload(key=key) | PublishSnapshot(key=key):
            return [key]
        case Create(key=key, settings=settings):
            return [key] if settings.fork is None else [key, settings.fork.source]
        case Touch(reads=reads):
            return [key for key, _, _ in reads]
        case Sweep(keys=due):
            return due
        case CreateBucket() | DeleteBucket() | StorePart() | DropUploads() | Archived():
            return []
