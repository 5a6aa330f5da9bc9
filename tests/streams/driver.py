"""A machine with its state and store, driven one log entry at a time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streamd.objectstore.packs import decode_slice
from streamd.streams import keys
from streamd.streams.chunks import AnyChunk, Chunk, Limit, Slice, Window
from streamd.streams.commands import (
    Append,
    BeginUpload,
    Command,
    Create,
    Delete,
    FlushCold,
    Outcome,
    PublishSnapshot,
    Result,
    StorePart,
)
from streamd.streams.content import split_body
from streamd.streams.forks import find_anchor
from streamd.streams.machine import Machine
from streamd.streams.model import (
    ForkRequest,
    IfMatch,
    ProducerStamp,
    Settings,
    Stream,
    Verdict,
    VerifiedPosition,
)
from streamd.streams.offsets import START, Position
from streamd.streams.queries.reading import (
    LocatedSlice,
    find_part,
    find_record,
    finder,
    gather,
    home,
    read_from_store,
)
from streamd.streams.snapshots import find_boundary
from streamd.streams.state import State
from streamd.tiering.flush import gather_pack
from streamd.tiering.local_rows import Place, evict_some
from tests.streams.memory_store import MemoryStore

TEXT = "text/plain"
JSON = "application/json"
EVERYTHING = 1 << 40


def key(name: str, bucket: str = "b") -> bytes:
    return keys.stream_key(bucket.encode(), name.encode())


class Driver:
    """Keeps the log time `now_ms`, which only tests advance, and the cold store's objects by their
    names."""

    def __init__(
        self,
        store: MemoryStore | None = None,
        objects: dict[str, bytes] | None = None,
        *,
        group_id: int = 0,
    ) -> None:
        self.store = store or MemoryStore()
        self.objects = {} if objects is None else objects
        self.packs = 0
        self.now_ms = 1_000_000
        self._group_id = group_id
        self.reopen()

    def reopen(self) -> None:
        """Start again from what the store has."""
        self.state = State(self.store, group_id=self._group_id)
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
        settings = Settings(
            content_type, ttl_ms, "as given" if expires_at_ms else None, expires_at_ms
        )
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
        cut_as: str | None = None,
    ) -> Outcome:
        request = ForkRequest(key(source), offset, sub_offset)
        settings = Settings(content_type, ttl_ms, fork=request)
        data, lengths = split_body(cut_as or content_type or "", body)
        finding = self.find_anchor(request)
        return self.do(
            Create(key(name), settings, False, data, lengths, True, finding=finding, cut_as=cut_as)
        )

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
        """Publish a body, or the upload with it; the body serves as its digest."""
        data = b"" if upload_id else body
        finding = self.find_boundary(key(name), at)
        command = PublishSnapshot(key(name), at, kind, len(body), body, upload_id, data, finding)
        return self.do(command)

    def upload(self, at: Position, *parts: bytes, name: str = "s") -> int:
        """Upload parts. Returns the upload's id."""
        begun = self.do(BeginUpload(key(name), at, self.find_boundary(key(name), at)))
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
            if part is None:
                part, cold = find_part(self.store, snapshot.blob_id, number)
            if part is None:
                part = self.cold_chunks(cold)[0].cut(number, number + 1).data
            found += part
            number += 1
        return found

    def reclaim(self) -> None:
        """Remove the rows that the notes in the store name, and the notes."""
        notes = [row for row in self.store.rows if row[:1] in (keys.GARBAGE, keys.TRIM)]
        doomed = []
        for note in notes:
            if not self.slices_noted(note):
                doomed.append(note)
            if note[:1] == keys.TRIM:
                ranges = [keys.trimmed_chunks(note)[1]]
            else:
                of_streams = (keys.CHUNK, keys.PRODUCER, keys.BLOB_PART, keys.DROPPED)
                letters = (*of_streams, keys.NAMED, keys.LINKED, keys.PENDING)
                ranges = [keys.id_range(letter, keys.parse_id(note)) for letter in letters]
            for start, stop in ranges:
                doomed += [row for row, _ in self.store.scan(start, stop, limit=10**6)]
        self.store.write([(row, None) for row in doomed])

    def slices_noted(self, note: bytes) -> list[tuple[int, int]]:
        """The slices, by id and end record, that a note names."""
        if note[:1] == keys.TRIM:
            start, stop = keys.trimmed_slices(note)
        else:
            start, stop = keys.id_range(keys.SLICE, keys.parse_id(note))
        rows = self.store.scan(start, stop, limit=10**6)
        return [(keys.stream_id_in(row), keys.parse_number(row)) for row, _ in rows]

    # -- the cold store -----------------------------------------------------------------------

    def gather(self, pack_bytes: int = EVERYTHING) -> FlushCold:
        """Put a pack of the hot stored bytes. Returns the command that records it."""
        self.packs += 1
        found = gather_pack(self.store, self.now_ms, pack_bytes, 1, self.packs)
        self.objects[found.name] = found.content
        return FlushCold(1, self.packs, found.name, len(found.content), found.slices)

    def flush_cold(self) -> None:
        """Flush everything to the cold store, and evict it here."""
        self.flush()
        assert self.do(self.gather()).result is Result.DONE
        self.flush()
        self.evict_hot()
        self.reopen()

    def evict_hot(self) -> int:
        """Evict everything that the cold store has. Returns how many slices differ."""
        place: Place | None = Place()
        differing = 0
        while place is not None:
            step = evict_some(self.store, place)  # type: ignore[arg-type]
            place = step.place
            differing += step.differing
        return differing

    def cold_chunks(self, located: Sequence[LocatedSlice]) -> list[Chunk]:
        """The chunk of the first slice."""
        pack, ref = located[0]
        content = self.objects[pack]
        return [decode_slice(ref, content[ref.offset : ref.offset + ref.length])]

    def find_anchor(self, request: ForkRequest) -> VerifiedPosition:
        """Find the position as the node that takes the request does."""
        source = self.state.streams.get(request.source)
        if request.offset is None or source is None:
            return VerifiedPosition()
        at = Position(*request.offset)
        if at == source.tail and request.sub_offset:
            return VerifiedPosition()
        if not source.earliest.record <= at.record < source.records:
            return self.find_boundary(request.source, at)
        return find_anchor(source, *self._chunk_at(source, at.record), at, request.sub_offset)

    def find_boundary(self, owner: bytes, at: Position) -> VerifiedPosition:
        stream = self.state.streams.get(owner)
        if stream is None or not stream.earliest.record <= at.record <= stream.records:
            return VerifiedPosition()
        if at.record == stream.records:
            verdict = Verdict.BOUNDARY if at == stream.tail else Verdict.NO_BOUNDARY
            return VerifiedPosition(stream.stream_id, verdict, *at)
        return find_boundary(stream, self._chunk_at(stream, at.record)[0], at)

    def _chunk_at(self, stream: Stream, record: int) -> tuple[AnyChunk, Limit]:
        stream_id, limit = home(stream, record)
        recent = self.state.tails.find(stream_id, record)
        if recent is not None:
            return recent, limit
        stored, cold = find_record(self.store, stream_id, record)
        return (stored or self.cold_chunks(cold))[0], limit

    # -- reads --------------------------------------------------------------------------------

    def find(self, name: str = "s") -> Stream | None:
        return self.state.streams.get(key(name))

    def stream(self, name: str = "s") -> Stream:
        stream = self.find(name)
        assert stream is not None
        return stream

    def recent(self, stream: Stream, window: Window) -> Slice | None:
        """The records of `window` that are in memory; None if the first is not."""
        return gather(stream, window, self.state.tails.find)

    def read(self, stream: Stream, at: Position = START, max_bytes: int = EVERYTHING) -> Slice:
        """One read, from memory where the records are there, else from the store."""
        window = Window(at, max_bytes)
        found = self.recent(stream, window)
        if found is None:
            stored = read_from_store(self.store, stream, window)
            found = stored.slice
            if found is None and stored.cold:
                chunks = self.cold_chunks(stored.cold)
                found = gather(stream, window, finder(stored.stream_id, chunks))
        if found is None:
            found = self.recent(stream, window)
        assert found is not None, f"nothing at {at}"
        lengths = found.lengths()
        assert (len(lengths), sum(lengths)) == (found.end.record - at.record, found.size)
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
    """What the rows mean: chunks joined, without rows that wait for removal."""
    garbage = {keys.parse_id(row) for row in store.rows if row[:1] == keys.GARBAGE}
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
