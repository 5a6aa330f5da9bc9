"""Streams in a cold store, without any server, at its newest state.

A checkpoint of a state names each stream and the slices in packs that hold its old records; rows of
its own hold the records that no pack has. The driver reads the rows twice, for the streams and for
what holds their records, and tells each task the places to read.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from streamd.spark.errors import StoreChanged, StreamMissing, Trimmed
from streamd.spark.options import DEFAULT_BUCKET, BadOption, Stores
from streamd.spark.streams import Described, Located, Piece, Range, Snapshot, Source
from streamd.streams.keys import stream_key
from streamd.streams.offsets import Position
from streamd_audit import names, rows
from streamd_audit.checkpoints import Manifest, read_manifest, read_piece
from streamd_audit.errors import ObjectMissing
from streamd_audit.framing import check_digest
from streamd_audit.packs import Chunk, read_chunk, read_slice
from streamd_audit.rows import read_row, split_rows
from streamd_audit.sources.source import the_only_cluster
from streamd_audit.store import Store, open_store

_ROW_HEAD_BYTES = 8
_STREAM, _SLICE, _CHUNK, _PACK, _HEADER = b"s", b"c", b"d", b"k", b"!"


_open: dict[tuple[Stores, int], Stored] = {}


def stored_in(stores: Stores, *, fresh: bool) -> Stored:
    """A reader that this process keeps. With `fresh` it looks for the newest state."""
    key = stores, os.getpid()
    if fresh or key not in _open:
        _open[key] = Stored(stores)
    return _open[key]


class _State:
    """One state, which a manifest names."""

    def __init__(self, store: Store, cluster: str, manifest: Manifest) -> None:
        self._store = store
        self._pieces = [
            f"{cluster}/{manifest.piece_name(number)}" for number in range(len(manifest.pieces))
        ]
        sizes = [piece.rows_bytes for piece in manifest.pieces]
        self._starts = list(accumulate(sizes, initial=0))

    def rows(self) -> Iterator[tuple[bytes, memoryview, int]]:
        """Key and value of each row, and where the value begins among the bytes of all rows."""
        at = 0
        for key, value in split_rows(piece_rows(self._store, name) for name in self._pieces):
            at += _ROW_HEAD_BYTES + len(key)
            yield key, value, at
            at += len(value)

    def parts(self, start: int, length: int) -> tuple[tuple[str, int, int], ...]:
        """The places of some bytes of the rows: objects, and a range in the rows of each."""
        found = []
        number = bisect_right(self._starts, start) - 1
        while length:
            size = min(length, self._starts[number + 1] - start)
            found.append((self._pieces[number], start - self._starts[number], size))
            start, length, number = start + size, length - size, number + 1
        return tuple(found)


def piece_rows(store: Store, name: str) -> bytes:
    """The bytes of a piece's rows. Raises `ObjectMissing`, `Damaged`."""
    content = store.read(name)
    check_digest(name, content)
    return read_piece(content)


class _Home(NamedTuple):
    """Records [`start`, `end`) of a stream are records of `stream_id`; the last one ends at
    `end_byte`."""

    stream_id: int
    start: int
    end: int
    end_byte: int


def _homes(stream: rows.Stream) -> list[_Home]:
    found, start = [], 0
    for extent in stream.extents:
        found.append(_Home(extent.stream_id, start, extent.end_record, extent.end_byte))
        start = extent.end_record
    return [*found, _Home(stream.stream_id, start, stream.records, stream.size)]


class Stored:
    """`Streams` in a store. Also raises `StoreFailed` and `Damaged`."""

    def __init__(self, stores: Stores) -> None:
        self._store = open_store(stores.url, dict(stores.options))
        self._cluster = stores.cluster
        self._states: list[_State] | None = None
        self._streams: dict[str, rows.Stream] = {}
        self._sources: dict[int, list[Source]] = {}
        self._rows: tuple[str, bytes] = ("", b"")

    def describe(self, wanted: Iterable[str]) -> list[Described]:
        by_key = {_key(name): name for name in wanted}
        found = self._find(lambda key: by_key.get(key))
        for name in by_key.values():
            if name not in found:
                raise StreamMissing(f"there is no stream {name} in the newest state of the store")
        return [found[name] for name in by_key.values()]

    def listed(self, bucket: str, prefix: str) -> Iterator[Described]:
        begin = bucket.encode() + b"\0"

        def name_of(key: bytes) -> str | None:
            if not key.startswith(begin + prefix.encode()):
                return None
            name = key[len(begin) :].decode()
            return name if bucket == DEFAULT_BUCKET and "/" not in name else f"{bucket}/{name}"

        yield from self._find(name_of).values()

    def boundary(self, name: str, record: int) -> Position:
        stream = self._streams[name]
        if record >= stream.records:
            return Position(stream.records, stream.size)
        [piece, *_] = self.pieces(self.located(Range(name, "", record, record + 1, 0)), record)
        return piece.start

    def located(self, wanted: Range) -> Range:
        """Raises `StoreChanged` when records are in none of the places that the state names."""
        stream = self._streams[wanted.name]
        if not self._sources:
            self._locate()
        found: list[Source] = []
        at = max(wanted.start, stream.earliest[0])
        for home in _homes(stream):
            sources = self._sources.get(home.stream_id, [])
            number = bisect_right(sources, at, key=lambda source: source.end)
            while at < min(home.end, wanted.end):
                if number == len(sources) or sources[number].start > at:
                    raise StoreChanged(f"the state of the store lacks record {at} of {wanted.name}")
                # A chunk may begin with records that an earlier slice has as well.
                source = sources[number]._replace(start=at)
                if source.end >= home.end:
                    source = source._replace(end=home.end, end_byte=home.end_byte)
                found.append(source)
                at, number = source.end, number + 1
        return wanted._replace(
            located=Located(stream.content_type, Position(*stream.earliest), tuple(found))
        )

    def pieces(self, wanted: Range, start: int) -> Iterator[Piece]:
        located = wanted.located
        assert located is not None
        if start < located.earliest.record:
            raise Trimmed(wanted.name, located.earliest)
        for source in located.sources:
            if source.end > start:
                at = max(start, source.start)
                yield _piece(located.content_type, source, self._chunk(source), at)

    def snapshot(self, name: str) -> Snapshot:
        raise BadOption(
            f"{name} is trimmed, and its snapshot is not read from a store: give option url"
        )

    # -- the state ------------------------------------------------------------------------------

    def _find(self, name_of: Callable[[bytes], str | None]) -> dict[str, Described]:
        """The streams to whose keys `name_of` gives a name, in the order of their keys."""
        found: dict[str, Described] = {}
        for state in self._newest():
            header = rows.Header()
            for key, value, _ in state.rows():
                if key[:1] == _HEADER:
                    read = read_row(key, value).value
                    assert isinstance(read, rows.Header)
                    header = read
                if key[:1] != _STREAM or (name := name_of(key[1:])) is None:
                    continue
                stream = read_row(key, value).value
                assert isinstance(stream, rows.Stream)
                if stream.deleted or _is_over(stream, header.log_ms):
                    continue
                self._streams[name] = stream
                incarnation = str(header.incarnation_base + stream.stream_id)
                tail = Position(stream.records, stream.size)
                found[name] = Described(name, stream.content_type, incarnation, tail)
        self._sources.clear()
        return found

    def _locate(self) -> None:
        """Find what holds the records of the requested streams."""
        wanted = {home.stream_id for stream in self._streams.values() for home in _homes(stream)}
        for state in self._newest():
            slices: list[tuple[int, int, rows.ColdSlice]] = []
            packs: dict[tuple[int, ...], str] = {}
            for key, value, at in state.rows():
                if key[:1] not in (_SLICE, _CHUNK, _PACK):
                    continue
                kind, numbers, _ = rows.read_key(key)
                if kind != "pack" and numbers[0] not in wanted:
                    continue
                read = read_row(key, value).value
                if isinstance(read, rows.Pack):
                    packs[numbers] = read.name
                elif isinstance(read, rows.ColdSlice):
                    slices.append((*numbers, read))  # type: ignore[arg-type]
                elif isinstance(read, Chunk):
                    source = Source(read.start_record, numbers[1], None, False, ())
                    parts = state.parts(at, len(value))
                    self._sources.setdefault(numbers[0], []).append(source._replace(parts=parts))
            for stream_id, end, row in slices:
                part = (packs[row.term, row.number], row.offset, row.length)
                source = Source(row.start_record, end, None, True, (part,))
                self._sources.setdefault(stream_id, []).append(source)
        for sources in self._sources.values():
            sources.sort(key=lambda source: source.end)

    def _newest(self) -> list[_State]:
        """The newest state of each group."""
        if self._states is not None:
            return self._states
        cluster = self._cluster or the_only_cluster(self._store)
        newest: dict[int, str] = {}
        for page in self._store.list(f"{cluster}/{names.SNAPSHOTS}"):
            for listed in page:
                found = names.parse(listed.name.removeprefix(f"{cluster}/"))
                if isinstance(found, names.ManifestName):
                    newest[found.group] = listed.name
        if not newest:
            raise StreamMissing(f"the store has no state of cluster {cluster} yet")
        self._states = []
        for name in newest.values():
            content = self._store.read(name)
            check_digest(name, content)
            self._states.append(_State(self._store, cluster, read_manifest(content)))
        return self._states

    # -- records --------------------------------------------------------------------------------

    def _chunk(self, source: Source) -> Chunk:
        try:
            if source.is_slice:
                [(name, offset, length)] = source.parts
                return read_slice(self._store.read(name, offset, length)).chunk
            parts = [self._rows_of(name)[at : at + size] for name, at, size in source.parts]
            return read_chunk(b"".join(parts))
        except ObjectMissing as missing:
            raise StoreChanged(f"{missing} is gone since the query was planned") from None

    def _rows_of(self, name: str) -> bytes:
        if self._rows[0] != name:
            self._rows = name, piece_rows(self._store, name)
        return self._rows[1]


def _key(name: str) -> bytes:
    bucket, slash, below = name.partition("/")
    if not slash:
        bucket, below = DEFAULT_BUCKET, name
    return stream_key(bucket.encode(), below.encode())


def _is_over(stream: rows.Stream, log_ms: int) -> bool:
    if stream.ttl_ms is not None:
        return stream.touched_ms + stream.ttl_ms <= log_ms
    return stream.expires_at_ms is not None and stream.expires_at_ms <= log_ms


def _piece(content_type: str, source: Source, chunk: Chunk, start: int) -> Piece:
    """The records of a chunk from number `start` on, as far as the source goes."""
    first = start - chunk.start_record
    count = source.end - chunk.start_record
    lengths = np.array(chunk.lengths[:count], dtype=np.int64)
    end = int(lengths.sum())
    if source.end_byte is not None:
        # A fork that was cut inside a record has the record's first part.
        lengths[-1] -= chunk.start_byte + end - source.end_byte
        end = source.end_byte - chunk.start_byte
    skipped = int(lengths[:first].sum())
    at = Position(chunk.start_record + first, chunk.start_byte + skipped)
    return Piece(content_type, at, lengths[first:], bytes(chunk.data[skipped:end]))
