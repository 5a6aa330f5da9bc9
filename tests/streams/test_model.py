"""Random commands, flushes and crashes: the machine stays what plain lists say it is."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from streamd.objectstore.packs import PackWriter
from streamd.streams import keys
from streamd.streams.commands import (
    Append,
    BeginUpload,
    Command,
    Create,
    CreateBucket,
    Delete,
    DeleteBucket,
    DropSlices,
    DropUploads,
    FlushCold,
    ForgetPacks,
    MovedSlice,
    MoveSlices,
    Outcome,
    PublishSnapshot,
    Result,
    StorePart,
    Sweep,
    Touch,
)
from streamd.streams.content import split_body
from streamd.streams.listing import ListQuery, list_streams
from streamd.streams.model import (
    ColdSlice,
    ForkRequest,
    IfMatch,
    Pack,
    ProducerStamp,
    Settings,
    Stream,
    VerifiedPosition,
    Version,
)
from streamd.streams.offsets import START, Position
from streamd.streams.reading import read_slices
from streamd.streams.state import Item
from tests.streams.driver import EVERYTHING, JSON, TEXT, Driver, key
from tests.streams.reference import Published, Reference, ReferenceStream, Stamp

NAMES = st.sampled_from(["a", "b", "c", "d"])
KINDS = st.sampled_from([TEXT, JSON])
TTLS = st.sampled_from([None, None, None, 50])
BODIES = {
    TEXT: st.binary(min_size=1, max_size=12),
    JSON: st.lists(st.integers(0, 10**6), min_size=1, max_size=4).map(msgspec.json.encode),
}
STAMPS = st.tuples(st.sampled_from("pq"), st.integers(0, 1), st.integers(0, 2))
PACK_BYTES = st.sampled_from([1, 100, 300, EVERYTHING])
SEQS = st.sampled_from(["1", "10", "2", "3"])


def records_of(kind: str, body: bytes) -> list[bytes]:
    data, lengths = split_body(kind, body)
    records = []
    for length in lengths:
        records.append(data[:length])
        data = data[length:]
    return records


class MachineAgainstLists(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.reference = Reference(self.driver.now_ms)
        # What the log holds after the store's end: time, command and what became of it.
        self.log: list[tuple[int, Command, Result]] = []
        self.flushing: list[Item] | None = None
        self.flushing_entries = 0
        # A pack that is in the cold store while the log does not know of it yet.
        self.pack: FlushCold | None = None
        # What was found of positions before, perhaps of streams that are no more.
        self.findings: dict[tuple[bytes, Position, int], VerifiedPosition] = {}
        # Versions of streams as clients have seen them, most of them no more.
        self.seen: list[Version] = []

    def apply(self, command: Command, expected: Result) -> Outcome:
        outcome = self.driver.do(command)
        self.log.append((self.driver.now_ms, command, outcome.result))
        assert outcome.result is expected
        return outcome

    @initialize(text=NAMES, json=NAMES)
    def begin(self, text: str, json: str) -> None:
        for name, kind in ((text, TEXT), (json, JSON)):
            expected = self.reference.create(name, kind, [], False, None)
            self.apply(Create(key(name), Settings(kind), implicit_bucket=True), expected)
        self.fill(text, TEXT, b"text")
        self.fill(text, TEXT, b"more")
        self.fill(json, JSON, b"[1, 22, 333]")

    def fill(self, name: str, kind: str, body: bytes) -> None:
        expected = self.reference.append(name, kind, records_of(kind, body), False, None, None)
        self.apply(Append(key(name), kind, *split_body(kind, body)), expected)

    def some_name(self, data: st.DataObject) -> str:
        """Mostly the name of a stream that is there."""
        there = sorted(self.reference.streams)
        return data.draw(st.sampled_from(there * 3 + ["a", "d"]))

    def some_condition(self, data: st.DataObject, name: str) -> IfMatch | None:
        """Mostly none, else one that the stream meets or one that it may have met once."""
        kind = data.draw(st.sampled_from(["none", "none", "none", "any", "now", "before"]))
        if kind == "none":
            return None
        if kind == "any":
            return IfMatch()
        stream = self.driver.find(name)
        versions = data.draw(st.lists(st.sampled_from(self.seen), max_size=2)) if self.seen else []
        if kind == "now" and stream is not None:
            versions.append(stream.version())
        return IfMatch(tuple(versions))

    # -- commands -----------------------------------------------------------------------------

    @rule()
    def create_bucket(self) -> None:
        self.apply(CreateBucket(b"b"), self.reference.create_bucket())

    @rule()
    def delete_bucket(self) -> None:
        self.apply(DeleteBucket(b"b"), self.reference.delete_bucket())

    @rule(name=NAMES, kind=KINDS, data=st.data(), closed=st.booleans(), ttl_ms=TTLS)
    def create(
        self, name: str, kind: str, data: st.DataObject, closed: bool, ttl_ms: int | None
    ) -> None:
        body = data.draw(st.just(b"") | BODIES[kind])
        closed = closed and data.draw(st.booleans())
        implicit = data.draw(st.booleans())
        if_match = self.some_condition(data, name)
        expected = self.reference.create(
            name,
            kind,
            records_of(kind, body),
            closed,
            ttl_ms,
            implicit_bucket=implicit,
            if_match=if_match,
        )
        command = Create(
            key(name), Settings(kind, ttl_ms), closed, *split_body(kind, body), implicit, if_match
        )
        self.apply(command, expected)

    @precondition(lambda self: self.reference.streams)
    @rule(name=NAMES, data=st.data())
    def fork(self, name: str, data: st.DataObject) -> None:
        source = self.some_name(data)
        known = self.reference.streams.get(source)
        boundaries = [START] if known is None else known.boundaries
        anywhere = st.builds(Position, st.integers(0, 6), st.integers(0, 40))
        offset = data.draw(st.none() | st.sampled_from(boundaries) | anywhere)
        sub_offset = data.draw(st.just(0) | st.integers(0, 8))
        expected = self.reference.fork(name, source, offset, sub_offset)
        request = ForkRequest(key(source), offset, sub_offset)
        finding = self.driver.find_anchor(request)
        if offset is not None:
            self.findings.setdefault((key(source), offset, sub_offset), finding)
        command = Create(key(name), Settings(fork=request), implicit_bucket=True, finding=finding)
        self.apply(command, expected)

    @precondition(lambda self: self.findings)
    @rule(name=NAMES, data=st.data())
    def fork_by_an_old_finding(self, name: str, data: st.DataObject) -> None:
        """It serves as long as the stream is the same; else the command must be made again."""
        asked = data.draw(st.sampled_from(sorted(self.findings)))
        source, offset, sub_offset = asked
        request = ForkRequest(source, offset, sub_offset)
        command = Create(
            key(name),
            Settings(fork=request),
            implicit_bucket=True,
            finding=self.findings[asked],
        )
        outcome = self.driver.do(command)
        self.log.append((self.driver.now_ms, command, outcome.result))
        if outcome.result is Result.STALE:
            # Looking at streams ends those that have expired.
            self.reference.look(name)
            finding = self.findings[asked] = self.driver.find_anchor(request)
            outcome = self.driver.do(replace(command, finding=finding))
            self.log.append((self.driver.now_ms, replace(command, finding=finding), outcome.result))
        source_name = keys.name_of(source).decode()
        assert outcome.result is self.reference.fork(name, source_name, offset, sub_offset)

    @precondition(lambda self: self.reference.streams)
    @rule(data=st.data(), close=st.sampled_from([False, False, False, True]))
    def append(self, data: st.DataObject, close: bool) -> None:
        self.post(data, close, None, None)

    @precondition(lambda self: self.reference.streams)
    @rule(data=st.data(), close=st.sampled_from([False, False, False, True]), stamp=STAMPS)
    def append_as_a_producer(self, data: st.DataObject, close: bool, stamp: Stamp) -> None:
        self.post(data, close, None, stamp)

    @precondition(lambda self: self.reference.streams)
    @rule(data=st.data(), seq=SEQS, stamp=st.none() | STAMPS)
    def append_in_sequence(self, data: st.DataObject, seq: str, stamp: Stamp | None) -> None:
        self.post(data, False, seq, stamp)

    def post(self, data: st.DataObject, close: bool, seq: str | None, stamp: Stamp | None) -> None:
        name = self.some_name(data)
        known = self.reference.streams.get(name)
        kind = data.draw(KINDS) if known is None else known.kind
        if data.draw(st.integers(0, 9)) == 9:
            kind = TEXT if kind == JSON else JSON
        body = data.draw(BODIES[kind])
        if close and data.draw(st.booleans()):
            body = b""
        if_match = self.some_condition(data, name)
        expected = self.reference.append(
            name, kind, records_of(kind, body), close, seq, stamp, if_match
        )
        producer = None if stamp is None else ProducerStamp(*stamp)
        command = Append(key(name), kind, *split_body(kind, body), close, seq, producer, if_match)
        outcome = self.apply(command, expected)
        if expected is Result.DUPLICATE:
            assert known is not None
            assert stamp is not None
            remembered = known.producers[stamp[0]]
            own = stamp[2] == remembered.seq
            assert outcome.tail == (remembered.tail if own else known.tail)
        elif known is not None and outcome.incarnation:
            assert (outcome.tail, outcome.closed) == (known.tail, known.closed)
            assert outcome.incarnation == known.incarnation
            self.seen.append(known.version)

    @precondition(lambda self: self.reference.streams)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = self.some_name(data)
        if_match = self.some_condition(data, name)
        self.apply(Delete(key(name), if_match), self.reference.delete(name, if_match))

    # -- snapshots ----------------------------------------------------------------------------

    def some_place(self, data: st.DataObject, name: str) -> Position:
        known = self.reference.streams.get(name)
        boundaries = [START] if known is None else known.boundaries
        anywhere = st.builds(Position, st.integers(0, 6), st.integers(0, 40))
        return data.draw(st.sampled_from(boundaries) | anywhere)

    @precondition(lambda self: self.reference.streams)
    @rule(data=st.data(), body=st.binary(max_size=2), kind=KINDS)
    def publish(self, data: st.DataObject, body: bytes, kind: str) -> None:
        name = self.some_name(data)
        at = self.some_place(data, name)
        expected = self.reference.publish(name, Published(at, body, kind))
        finding = self.driver.find_boundary(key(name), at)
        command = PublishSnapshot(key(name), at, kind, len(body), body, 0, body, finding)
        self.apply(command, expected)

    @precondition(lambda self: self.reference.streams)
    @rule(data=st.data(), parts=st.lists(st.binary(min_size=1, max_size=2), max_size=3))
    def upload(self, data: st.DataObject, parts: list[bytes]) -> None:
        """An upload is published, dropped, or left to lie."""
        name = self.some_name(data)
        at = self.some_place(data, name)
        expected = self.reference.begin_upload(name, at)
        finding = self.driver.find_boundary(key(name), at)
        begun = self.apply(BeginUpload(key(name), at, finding), expected)
        if expected is not Result.UPLOADING:
            return
        for number, part in enumerate(parts):
            self.apply(StorePart(begun.upload_id, number, part), Result.UPLOADING)
        self.apply(StorePart(begun.upload_id, len(parts) + 1, b"x"), Result.UPLOAD_LOST)
        body = b"".join(parts)
        fate = data.draw(st.sampled_from(["published", "published", "dropped", "left"]))
        if fate == "published":
            expected = self.reference.publish(name, Published(at, body, TEXT), uploaded=True)
            command = PublishSnapshot(
                key(name), at, TEXT, len(body), body, begun.upload_id, b"", finding
            )
            self.apply(command, expected)
        elif fate == "dropped":
            self.apply(DropUploads([begun.upload_id]), Result.DONE)

    @rule()
    def reclaim(self) -> None:
        self.driver.reclaim()

    @rule(data=st.data(), ms=st.integers(0, 60), swept=st.booleans())
    def time_passes(self, data: st.DataObject, ms: int, swept: bool) -> None:
        """Some stream is read before and what has expired may be swept up after."""
        name = self.some_name(data)
        stream = self.driver.find(name)
        if stream is not None:
            self.reference.touch(name)
            self.apply(Touch([(key(name), stream.stream_id, self.driver.now_ms)]), Result.DONE)
        self.driver.now_ms += ms
        self.reference.now_ms += ms
        if swept:
            self.reference.sweep()
            self.apply(Sweep([key(name) for name in "abcd"]), Result.DONE)

    # -- the cold store -----------------------------------------------------------------------

    @precondition(lambda self: self.flushing is None)
    @rule(pack_bytes=PACK_BYTES)
    def gather_a_pack(self, pack_bytes: int) -> None:
        """The log hears of it later, or never."""
        self.begin_flush()
        self.end_flush()
        self.pack = self.driver.gather(pack_bytes)

    @precondition(lambda self: self.flushing is None)
    @rule(pack_bytes=PACK_BYTES)
    def move_to_the_cold_store(self, pack_bytes: int) -> None:
        self.gather_a_pack(pack_bytes)
        self.make_the_pack_known()
        self.look_at_the_manifest()

    @precondition(lambda self: self.flushing is None and self.driver.find("a") is not None)
    @rule()
    def have_it_only_there(self) -> None:
        self.move_to_the_cold_store(EVERYTHING)
        self.drop_hot_bytes()
        self.crash(False)

    @precondition(lambda self: self.pack is not None)
    @rule()
    def make_the_pack_known(self) -> None:
        assert self.pack is not None
        self.apply(replace(self.pack, term=2), Result.STALE)
        self.apply(self.pack, Result.DONE)
        self.apply(self.pack, Result.STALE)
        self.pack = None

    @precondition(lambda self: self.flushing is None)
    @rule()
    def drop_hot_bytes(self) -> None:
        assert self.driver.evict_hot() == 0

    @precondition(lambda self: self.flushing is None)
    @rule()
    def collect_garbage(self) -> None:
        """Drop the slices that notes speak of, and forget packs without any."""
        self.begin_flush()
        self.end_flush()
        for note in [row for row in self.driver.store.rows if row[:1] in (keys.GARBAGE, keys.TRIM)]:
            for stream_id, end_record in self.driver.slices_noted(note):
                self.apply(DropSlices(stream_id, [end_record, end_record]), Result.DONE)
        self.begin_flush()
        self.end_flush()
        places = {keys.place_in(row[1:]): pack for row, pack in self.packs().items()}
        self.apply(ForgetPacks(list(places)), Result.DONE)
        for pack in places.values():
            if not pack.live:
                del self.driver.objects[pack.name]

    @precondition(lambda self: self.flushing is None)
    @rule(data=st.data())
    def move_slices(self, data: st.DataObject) -> None:
        """What is alive in some packs goes into a new one."""
        self.begin_flush()
        self.end_flush()
        slices = self.slices()
        if not slices:
            return
        chosen = data.draw(st.lists(st.sampled_from(sorted(slices)), unique=True, min_size=1))
        self.driver.packs += 1
        writer = PackWriter(0, 1, self.driver.packs)
        moved = []
        for row in chosen:
            stream_id, old = keys.stream_id_in(row), slices[row]
            [found, *_] = read_slices(self.driver.store, stream_id, old.start_record)
            ref = writer.add(stream_id, self.driver.cold_chunks([found])[0])
            moved.append(
                MovedSlice(
                    stream_id,
                    ref.end_record,
                    old.term,
                    old.number,
                    ref.offset,
                    ref.length,
                    ref.crc,
                )
            )
        pack = writer.finish()
        self.driver.objects[pack.name] = pack.content
        number = self.driver.packs
        self.apply(MoveSlices(1, number, pack.name, len(pack.content), moved), Result.DONE)

    def slices(self) -> dict[bytes, ColdSlice]:
        rows = self.driver.store.rows
        return {
            row: msgspec.msgpack.decode(rows[row], type=ColdSlice)
            for row in sorted(rows)
            if row[:1] == keys.SLICE
        }

    def packs(self) -> dict[bytes, Pack]:
        rows = self.driver.store.rows
        return {
            row: msgspec.msgpack.decode(rows[row], type=Pack)
            for row in rows
            if row[:1] == keys.PACK
        }

    @precondition(lambda self: self.flushing is None)
    @rule()
    def look_at_the_manifest(self) -> None:
        """Slices are end to end and reach to where the cold store's records end, but for what was
        trimmed; packs count those that refer to them."""
        self.begin_flush()
        self.end_flush()
        live: Counter[tuple[int, int]] = Counter()
        ends: dict[int, tuple[int, int]] = {}
        trimmed = {stream.stream_id: stream.earliest for stream in self.streams()}
        for row, found in self.slices().items():
            stream_id, end_record = keys.stream_id_in(row), keys.parse_number(row)
            live[found.term, found.number] += found.length
            start = (found.start_record, found.start_byte)
            if ends.get(stream_id, start) != start:
                assert start <= trimmed.get(stream_id, start)
            ends[stream_id] = (end_record, found.end_byte)
        for row, pack in self.packs().items():
            assert pack.live == live.pop(keys.place_in(row[1:]), 0)
            assert len(self.driver.objects[pack.name]) == pack.size
            assert (not pack.live) == bool(pack.dead_index)
        assert not live
        for stream in self.streams():
            end = ends.get(stream.stream_id, stream.cold)
            assert end == stream.cold or end < stream.cold <= stream.earliest

    def streams(self) -> list[Stream]:
        return [stream for name in "abcd" if (stream := self.driver.find(name)) is not None]

    # -- the store ----------------------------------------------------------------------------

    @precondition(lambda self: self.flushing is None)
    @rule()
    def begin_flush(self) -> None:
        self.flushing = self.driver.state.begin_flush()
        self.flushing_entries = len(self.log)

    @precondition(lambda self: self.flushing is not None)
    @rule()
    def end_flush(self) -> None:
        self.driver.store.write(self.flushing or [])
        self.driver.state.end_flush()
        del self.log[: self.flushing_entries]
        self.flushing = None

    @rule(written=st.booleans())
    def crash(self, written: bool) -> None:
        """Start over from the store and the log; a flush under way is all there or not at all."""
        if self.flushing is not None and written:
            self.driver.store.write(self.flushing)
            del self.log[: self.flushing_entries]
        self.flushing = None
        now_ms = self.driver.now_ms
        self.driver.reopen()
        for at_ms, command, result in self.log:
            self.driver.now_ms = at_ms
            assert self.driver.do(command).result is result
        self.driver.now_ms = now_ms

    @precondition(lambda self: self.flushing is None)
    @rule(max_bytes=st.integers(1, 40))
    def read_from_the_store_alone(self, max_bytes: int) -> None:
        self.begin_flush()
        self.end_flush()
        reader = Driver(self.driver.store, self.driver.objects)
        for name, expected in self.reference.live().items():
            assert reader.content(name, max_bytes=max_bytes) == b"".join(expected.readable)

    @precondition(lambda self: self.flushing is None)
    @rule(limit=st.integers(1, 4), prefix=st.sampled_from(["", "a", "c"]))
    def list_the_store(self, limit: int, prefix: str) -> None:
        self.begin_flush()
        self.end_flush()
        expected = [name for name in self.reference.listed() if name.startswith(prefix)]
        after = b""
        while True:
            query = ListQuery(b"b", prefix.encode(), after, limit)
            page = list_streams(self.driver.store, query, self.driver.now_ms)
            names = [listed.name.decode() for listed in page.streams]
            assert names == expected[:limit]
            del expected[:limit]
            assert page.has_more == bool(expected)
            if not expected:
                return
            assert page.cursor is not None
            after = page.cursor

    # -- what always holds --------------------------------------------------------------------

    @invariant()
    def streams_are_what_the_lists_say(self) -> None:
        for name in "abcd":
            expected = self.reference.streams.get(name)
            stream = self.driver.find(name)
            if expected is None or stream is None:
                assert stream is expected
                continue
            assert (stream.deleted, stream.forks) == (expected.deleted, expected.forks)
            self.reads_agree(name, expected)

    def reads_agree(self, name: str, expected: ReferenceStream) -> None:
        assert self.driver.stream(name).tail == expected.tail
        if expected.deleted:
            assert self.driver.stream(name).snapshot is None
            return
        assert self.driver.stream(name).earliest == expected.earliest
        body = None if expected.snapshot is None else expected.snapshot.body
        assert self.driver.blob(name) == body
        assert self.driver.boundaries(name) == expected.boundaries[expected.earliest.record :]
        content = b"".join(expected.readable)
        for max_bytes in (1, 7, 23, EVERYTHING):
            assert self.driver.content(name, max_bytes=max_bytes) == content

    @invariant()
    def all_is_counted(self) -> None:
        header = self.driver.state.header
        assert header.streams == len(self.reference.streams)
        bucket = self.driver.state.buckets.get(b"b")
        assert (bucket is not None) is self.reference.bucket
        counts = (bucket.streams, bucket.hidden) if bucket else (0, 0)
        rows = [stream for stream in self.streams() if stream.hot_at_ms is not None]
        blobs = {s.snapshot.blob_id for s in self.streams() if s.snapshot is not None}
        hot = sum(stream.size - stream.cold.byte for stream in rows)
        for blob_id in blobs:
            blob = self.driver.state.blobs.get(keys.number(blob_id))
            assert blob is not None
            hot += blob.size - blob.cold.byte
        assert header.hot_bytes == hot
        for stream in self.streams():
            assert (stream.hot_at_ms is not None) == (stream.tail != stream.cold_from)
        hidden = sum(stream.deleted for stream in self.reference.streams.values())
        assert counts == (len(self.reference.streams), hidden)

    def teardown(self) -> None:
        """What no stream owns any more is noted for removal."""
        if self.flushing is not None:
            self.end_flush()
        self.driver.flush()
        rows = self.driver.store.rows
        streams = [s for n in "abcd" if (s := self.driver.find(n)) is not None]
        owned = {s.stream_id for s in streams}
        owned |= {s.snapshot.blob_id for s in streams if s.snapshot is not None}
        owned |= {keys.parse_id(row) for row in rows if row[:1] == keys.UPLOAD}
        noted = {keys.parse_id(row) for row in rows if row[:1] == keys.GARBAGE}
        holding = {int.from_bytes(row[1:9], "big") for row in rows if row[:1] in b"dpBc"}
        assert holding <= owned | noted
        assert not owned & noted
        owners = [keys.parse_hot(row)[1] for row in rows if row[:1] == keys.HOT]
        assert len(owners) == len(set(owners))
        hot = [owner for owner in owners if keys.blob_in_owner(owner) is None]
        found = [(key(name), self.driver.find(name)) for name in "abcd"]
        assert sorted(hot) == [k for k, stream in found if stream and stream.hot_at_ms is not None]
        referred = {keys.parse_id(row) for row in rows if row[:1] == keys.BLOB}
        assert referred == {s.snapshot.blob_id for s in streams if s.snapshot is not None}


MachineAgainstLists.TestCase.settings = settings(max_examples=300, stateful_step_count=50)
TestMachineAgainstLists = MachineAgainstLists.TestCase
