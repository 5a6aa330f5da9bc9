"""A machine with its state and store, driven one log entry at a time."""

from __future__ import annotations

import msgspec

from streamd.streams import keys
from streamd.streams.chunks import Chunk, Slice
from streamd.streams.commands import (
    Append,
    BeginUpload,
    Command,
    Create,
    Delete,
    Outcome,
    PublishSnapshot,
    Result,
    StorePart,
)
from streamd.streams.content import split_body
from streamd.streams.machine import Machine
from streamd.streams.model import ForkRequest, IfMatch, ProducerStamp, Settings, Stream
from streamd.streams.offsets import START, Position
from streamd.streams.reading import read_from_store, read_part
from streamd.streams.state import State
from tests.streams.memory_store import MemoryStore

TEXT = "text/plain"
JSON = "application/json"
EVERYTHING = 1 << 40


def key(name: str, bucket: str = "b") -> bytes:
    return keys.stream_key(bucket.encode(), name.encode())


class Driver:
    """Keeps the log time `now_ms`, which stands still unless a test moves it."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.now_ms = 1_000_000
        self.reopen()

    def reopen(self) -> None:
        """Start over from what the store has."""
        self.state = State(self.store)
        self.machine = Machine(self.state)

    def flush(self) -> None:
        self.store.write(self.state.begin_flush())
        self.state.end_flush()

    # -- commands -----------------------------------------------------------------------------

    def entry(self, *commands: Command) -> list[Outcome]:
        """Apply the commands as one log entry."""
        index = self.state.header.applied_index + 1
        return self.machine.apply(index, 1, self.now_ms, list(commands))

    def do(self, command: Command) -> Outcome:
        [outcome] = self.entry(command)
        return outcome

    def create(
        self,
        name: str = "s",
        content_type: str | None = TEXT,
        *,
        body: bytes = b"",
        closed: bool = False,
        ttl_ms: int | None = None,
        expires_at_ms: int | None = None,
    ) -> Outcome:
        settings = Settings(content_type, ttl_ms, expires_at_ms and "as given", expires_at_ms)
        data, lengths = split_body(content_type or "", body)
        return self.do(Create(key(name), settings, closed, data, lengths, True))

    def fork(
        self,
        name: str,
        source: str,
        offset: Position | None = None,
        sub_offset: int = 0,
        *,
        content_type: str | None = None,
        ttl_ms: int | None = None,
        body: bytes = b"",
    ) -> Outcome:
        request = ForkRequest(key(source), offset, sub_offset)
        settings = Settings(content_type, ttl_ms, fork=request)
        data, lengths = split_body(content_type or "", body)
        return self.do(Create(key(name), settings, False, data, lengths, True))

    def append(
        self,
        body: bytes,
        name: str = "s",
        content_type: str = TEXT,
        *,
        close: bool = False,
        seq: str | None = None,
        producer: tuple[str, int, int] | None = None,
        if_match: IfMatch | None = None,
    ) -> Outcome:
        data, lengths = split_body(content_type, body)
        stamp = None if producer is None else ProducerStamp(*producer)
        return self.do(Append(key(name), content_type, data, lengths, close, seq, stamp, if_match))

    def close(self, name: str = "s", *, producer: tuple[str, int, int] | None = None) -> Outcome:
        return self.append(b"", name, "", close=True, producer=producer)

    def delete(self, name: str = "s") -> Result:
        return self.do(Delete(key(name))).result

    def publish(
        self, body: bytes, at: Position, name: str = "s", *, upload_id: int = 0, kind: str = TEXT
    ) -> Outcome:
        """Publish a body, or what was uploaded of it; the digest is a simple one."""
        data = b"" if upload_id else body
        command = PublishSnapshot(key(name), at, kind, len(body), body, upload_id, data)
        return self.do(command)

    def upload(self, at: Position, *parts: bytes, name: str = "s") -> int:
        """Bring parts in; returns the upload's id."""
        begun = self.do(BeginUpload(key(name), at))
        assert begun.result is Result.UPLOADING
        for number, part in enumerate(parts):
            stored = self.do(StorePart(begun.upload_id, number, part))
            assert stored.result is Result.UPLOADING
        return begun.upload_id

    def blob(self, name: str = "s") -> bytes | None:
        """The bytes of a stream's snapshot."""
        snapshot = self.stream(name).snapshot
        if snapshot is None:
            return None
        found = b""
        number = 0
        while len(found) < snapshot.size:
            part = self.state.parts.find(snapshot.blob_id, number)
            part = part or read_part(self.store, snapshot.blob_id, number)
            assert part is not None, f"part {number} is there"
            found += part
            number += 1
        return found

    def reclaim(self) -> None:
        """Remove what the notes in the store speak of, and the notes."""
        notes = [row for row in self.store.rows if row[:1] in (keys.GARBAGE, keys.TRIM)]
        doomed = list(notes)
        for note in notes:
            if note[:1] == keys.TRIM:
                ranges = [keys.trimmed_chunks(note)[1]]
            else:
                letters = (keys.CHUNK, keys.PRODUCER, keys.BLOB_PART)
                ranges = [keys.id_range(letter, keys.id_in(note)) for letter in letters]
            for start, stop in ranges:
                doomed += [row for row, _ in self.store.scan(start, stop, limit=10**6)]
        self.store.write([(row, None) for row in doomed])

    # -- reads --------------------------------------------------------------------------------

    def find(self, name: str = "s") -> Stream | None:
        return self.state.streams.get(key(name))

    def stream(self, name: str = "s") -> Stream:
        stream = self.find(name)
        assert stream is not None
        return stream

    def read(self, stream: Stream, at: Position = START, max_bytes: int = EVERYTHING) -> Slice:
        """One read, from memory where the records are there, else from the store."""
        found = self.state.read_recent(stream, at, max_bytes)
        if found is None:
            found = read_from_store(self.store, stream, at, max_bytes).slice
        if found is None:
            found = self.state.read_recent(stream, at, max_bytes)
        assert found is not None, f"nothing at {at}"
        return found

    def content(
        self, name: str = "s", at: Position | None = None, max_bytes: int = EVERYTHING
    ) -> bytes:
        """All bytes from `at` on, or all there are, read slice by slice."""
        stream = self.stream(name)
        at = stream.earliest if at is None else at
        read = bytearray()
        while at != stream.tail:
            found = self.read(stream, at, max_bytes)
            assert found.end > at, "a reader always gets on"
            piece = b"".join(found.parts)
            assert len(piece) == found.size == found.end.byte - at.byte
            read += piece
            at = found.end
        return bytes(read)

    def boundaries(self, name: str = "s") -> list[Position]:
        """All positions a reader can be given, the tail included."""
        stream = self.stream(name)
        found = [stream.earliest]
        while found[-1] != stream.tail:
            found.append(self.read(stream, found[-1], max_bytes=1).end)
        return found


def logical(store: MemoryStore) -> dict[bytes, object]:
    """What the rows mean: chunks joined, and without what waits for removal."""
    garbage = {keys.id_in(row) for row in store.rows if row[:1] == keys.GARBAGE}
    meaning: dict[bytes, object] = {}
    chunks: dict[int, Chunk] = {}
    for row in sorted(store.rows):
        value = store.rows[row]
        owner = int.from_bytes(row[1:9], "big") if row[:1] in b"dpB" else 0
        if owner in garbage:
            continue
        if row[:1] != keys.CHUNK:
            meaning[row] = msgspec.msgpack.decode(value) if value else None
            continue
        chunk = msgspec.msgpack.decode(value, type=Chunk)
        known = chunks.get(owner)
        assert known is None or known.end_record == chunk.start_record, "chunks are contiguous"
        chunks[owner] = chunk if known is None else known.merged(chunk)
    for owner, chunk in chunks.items():
        if chunk.appends == [1] * len(chunk.lengths):
            chunk.appends = []
        meaning[keys.chunk_key(owner, 0)] = msgspec.to_builtins(chunk)
    return meaning
