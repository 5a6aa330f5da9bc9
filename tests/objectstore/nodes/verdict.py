"""Compares a state with an object store, row by row and byte by byte: nothing referred to is
missing or different, nothing is lost in between, and there are no orphans (I1, I7)."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from streamd.objectstore.errors import ObjectCorrupt, ObjectMissing
from streamd.objectstore.names import PACKS, PackName, check_digest
from streamd.objectstore.objects import ObjectStore
from streamd.objectstore.packs import decode_slice
from streamd.storage.state_store import open_state_database
from streamd.streams import keys
from streamd.streams.chunks import Chunk
from streamd.streams.model import Blob, ColdSlice, Header, Pack, Stream

T = TypeVar("T")

Scan = Callable[[bytes, bytes], Iterator[tuple[bytes, bytes]]]
_PAGE = 1000


class Verdict(NamedTuple):
    """What is wrong, in words, and what was checked."""

    findings: list[str]
    counts: Counter[str]
    orphans: list[str]

    def assert_sound(self, *, orphans: bool = True) -> None:
        """Nothing is wrong, and something was checked. Without `orphans` there must not be any
        objects that nothing refers to."""
        assert not self.findings, "\n".join([f"{len(self.findings)} findings", *self.findings[:10]])
        assert self.counts["slices"], "hollow: nothing is in the store"
        assert orphans or not self.orphans, self.orphans


class _Span(NamedTuple):
    """Records of one stream id in one place, from a start to before an end."""

    start: int
    start_byte: int
    end: int
    end_byte: int


class _State:
    """The rows that matter, decoded."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        (header,) = [value for _, value in scan(keys.HEADER, keys.HEADER + b"\0")]
        self.header = msgspec.msgpack.decode(header, type=Header)
        self.streams = {key[1:]: value for key, value in self._rows(keys.STREAM, Stream)}
        self.blobs = {keys.parse_id(key): value for key, value in self._rows(keys.BLOB, Blob)}
        self.packs = {keys.place_in(key[1:]): value for key, value in self._rows(keys.PACK, Pack)}
        self.slices: dict[int, list[tuple[int, ColdSlice]]] = defaultdict(list)
        for key, value in self._rows(keys.SLICE, ColdSlice):
            stream_id, end_record = keys.place_in(key[1:])
            self.slices[stream_id].append((end_record, value))
        self.chunks: dict[int, list[Chunk]] = defaultdict(list)
        for key, chunk in self._rows(keys.CHUNK, Chunk):
            self.chunks[keys.place_in(key[1:])[0]].append(chunk)
        self.parts: dict[int, dict[int, int]] = defaultdict(dict)
        for key, data in self._raw(keys.BLOB_PART):
            blob_id, number = keys.place_in(key[1:])
            self.parts[blob_id][number] = len(data)
        self.garbage = {keys.parse_id(key) for key, _ in self._raw(keys.GARBAGE)}
        self.trims: dict[int, int] = defaultdict(int)
        for key, _ in self._raw(keys.TRIM):
            stream_id, record = keys.place_in(key[1:])
            self.trims[stream_id] = max(record, self.trims[stream_id])

    def _raw(self, letter: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._scan(letter, bytes([letter[0] + 1]))

    def _rows(self, letter: bytes, kind: type[T]) -> Iterator[tuple[bytes, T]]:
        decoder = msgspec.msgpack.Decoder(kind)
        for key, value in self._raw(letter):
            yield key, decoder.decode(value)

    def slice_spans(self, stream_id: int) -> list[_Span]:
        return [
            _Span(found.start_record, found.start_byte, end, found.end_byte)
            for end, found in self.slices[stream_id]
        ]

    def chunk_spans(self, stream_id: int) -> list[_Span]:
        return [
            _Span(chunk.start_record, chunk.start_byte, chunk.end_record, chunk.end_byte)
            for chunk in self.chunks[stream_id]
        ]


class Judge:
    """One comparison. `objects` is the store with the cluster's folders in it."""

    def __init__(self, scan: Scan, objects: ObjectStore) -> None:
        self._state = _State(scan)
        self._objects = objects
        self._findings: list[str] = []
        self.counts: Counter[str] = Counter()
        self._packs_read: dict[str, bytes | None] = {}

    def judge(self) -> Verdict:
        self._judge_streams()
        self._judge_hot_bytes()
        self._judge_packs()
        self._judge_slices()
        self._judge_leftovers()
        return Verdict(self._findings, self.counts, list(self._orphans()))

    def _find(self, finding: str) -> None:
        self._findings.append(finding)

    # -- no gap -------------------------------------------------------------------------------

    def _judge_streams(self) -> None:
        state = self._state
        for key, stream in state.streams.items():
            self.counts["streams"] += 1
            own = stream.fork_point
            if not stream.forks:
                own = max(own, stream.earliest)
            self._covered(key, stream.stream_id, own.record, stream.records)
            self._end_to_end(key, stream, own.record)
            start = stream.earliest.record
            begin = 0
            for extent in stream.extents:
                first = max(start, begin)
                self._covered(key, extent.stream_id, first, extent.end_record)
                begin = extent.end_record

    def _covered(self, key: bytes, stream_id: int, first: int, end: int) -> None:
        """Slices and chunks have each record of a stream id from one on to before another."""
        state = self._state
        at = first
        for span in sorted([*state.slice_spans(stream_id), *state.chunk_spans(stream_id)]):
            if span.start <= at < span.end:
                at = span.end
        if at < end:
            self._find(f"{key!r}: record {at} of id {stream_id} is nowhere (of {first} to {end})")

    def _end_to_end(self, key: bytes, stream: Stream, first: int) -> None:
        """A stream's slices leave no gap, and reach to the end of its cold records."""
        spans = self._state.slice_spans(stream.stream_id)
        for one, other in itertools.pairwise(spans):
            if (one.end, one.end_byte) != (other.start, other.start_byte):
                self._find(f"{key!r}: between slices {one} and {other} there is a gap")
        cold = stream.cold_from
        if spans and (spans[-1].end, spans[-1].end_byte) != tuple(cold):
            if cold.record > first or spans[-1].end > cold.record:
                self._find(f"{key!r}: slices end at {spans[-1]}, cold is {cold}")
        elif not spans and cold.record > first:
            self._find(f"{key!r}: cold is {cold}, and there are no slices from {first} on")
        if cold.record > stream.records:
            self._find(f"{key!r}: cold {cold} lies beyond the tail {stream.tail}")

    def _judge_hot_bytes(self) -> None:
        state = self._state
        owners: list[Stream | Blob] = [*state.streams.values(), *state.blobs.values()]
        hot = sum(one.size - one.cold.byte for one in owners if one.hot_at_ms is not None)
        if hot != state.header.hot_bytes:
            self._find(f"hot_bytes is {state.header.hot_bytes}, and streams have {hot}")

    # -- what is in the store ------------------------------------------------------------------

    def _judge_packs(self) -> None:
        live: Counter[tuple[int, int]] = Counter()
        for slices in self._state.slices.values():
            for _, found in slices:
                live[found.term, found.number] += found.length
        for place, pack in self._state.packs.items():
            self.counts["packs"] += 1
            self.counts["dead packs"] += not pack.live
            if pack.live != live[place]:
                self._find(f"pack {place} has {pack.live} live bytes, slices have {live[place]}")
            if pack.live and (content := self._read(pack.name)) is not None:
                self._judge_pack(pack, content)
        for place in live:
            if place not in self._state.packs:
                self._find(f"slices refer to pack {place}, of which there is no row")
        if sum(pack.live for pack in self._state.packs.values()) != self._state.header.cold_bytes:
            self._find(f"cold_bytes is {self._state.header.cold_bytes}")

    def _judge_pack(self, pack: Pack, content: bytes) -> None:
        if len(content) != pack.size:
            self._find(f"{pack.name} has {len(content)} bytes, and its row says {pack.size}")
        try:
            check_digest(pack.name, content)
        except ObjectCorrupt as error:
            self._find(str(error))

    def _read(self, name: str) -> bytes | None:
        """A whole object; a finding if it is missing."""
        if name not in self._packs_read:
            try:
                size = self._objects.stat(name).size
                self._packs_read[name] = self._objects.get(name, 0, size)
            except (ObjectMissing, ObjectCorrupt) as error:
                self._packs_read[name] = None
                self._find(f"{name} is referred to: {error}")
        return self._packs_read[name]

    def _judge_slices(self) -> None:
        state = self._state
        for stream_id, slices in state.slices.items():
            for end_record, found in slices:
                self.counts["slices"] += 1
                pack = state.packs.get((found.term, found.number))
                content = None if pack is None else self._read(pack.name)
                if content is None:
                    continue
                try:
                    chunk = _decoded(stream_id, end_record, found, content)
                except ObjectCorrupt as error:
                    self._find(f"id {stream_id} before {end_record}: {error}")
                    continue
                if chunk.digest() != found.digest:
                    self._find(f"id {stream_id} before {end_record}: another digest")
                self._same_as_local(stream_id, chunk)

    def _same_as_local(self, stream_id: int, cold: Chunk) -> None:
        """What a node still has itself is what the store has."""
        for hot in self._state.chunks[stream_id]:
            start = max(hot.start_record, cold.start_record)
            end = min(hot.end_record, cold.end_record)
            if start >= end:
                continue
            self.counts["records here and there"] += end - start
            if _bytes_of(hot, start, end) != _bytes_of(cold, start, end):
                self._find(f"id {stream_id}: records {start} to {end} differ")

    # -- orphans ------------------------------------------------------------------------------

    def _judge_leftovers(self) -> None:
        """Slices without a stream, blob or note would stay for ever."""
        state = self._state
        ids = {stream.stream_id for stream in state.streams.values()}
        ids |= {part.stream_id for stream in state.streams.values() for part in stream.extents}
        ids |= set(state.blobs) | state.garbage | set(state.trims)
        for stream_id, slices in state.slices.items():
            if slices and stream_id not in ids:
                self._find(f"{len(slices)} slices of id {stream_id}, which nobody has")

    def _orphans(self) -> Iterator[str]:
        """Packs in the store that no row speaks of."""
        known = {pack.name for pack in self._state.packs.values()}
        after = ""
        while page := self._objects.page("", after=after):
            for found in page:
                _folder, _, name = found.name.partition("/" + PACKS)
                if name and PackName.parse(PACKS + name) and found.name not in known:
                    self.counts["orphans"] += 1
                    yield found.name
            after = page[-1].name


def _decoded(stream_id: int, end_record: int, found: ColdSlice, content: bytes) -> Chunk:
    ref = found.ref(stream_id, end_record)
    return decode_slice(ref, content[ref.offset : ref.offset + ref.length])


def _bytes_of(chunk: Chunk, start: int, end: int) -> tuple[list[int], bytes]:
    first, last = start - chunk.start_record, end - chunk.start_record
    skipped = sum(chunk.lengths[:first])
    lengths = chunk.lengths[first:last]
    return lengths, chunk.data[skipped : skipped + sum(lengths)]


def judge(data_dir: Path, objects: ObjectStore) -> Verdict:
    """Compare the state of a stopped node with the store."""
    database = open_state_database(data_dir / "state")
    try:

        def scan(start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
            with database.iterator(start=start, stop=stop) as rows:
                yield from rows

        return Judge(scan, objects).judge()
    finally:
        database.close()
