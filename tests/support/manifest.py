"""What must hold of a node's rows and the objects of the cold store at any time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from streamd.objectstore.names import check_digest
from streamd.objectstore.packs import decode_slice
from streamd.streams import keys
from streamd.streams.chunks import Chunk
from streamd.streams.model import Blob, ColdSlice, Header, Pack, Stream
from streamd.streams.tables import KeyValue

T = TypeVar("T")
_ALL = 10**6


def rows_of(store: KeyValue, letter: bytes, kind: type[T]) -> dict[bytes, T]:
    """All rows of a kind, by their keys."""
    stop = bytes([letter[0] + 1])
    rows = store.scan(letter, stop, limit=_ALL)
    return {key: msgspec.msgpack.decode(value, type=kind) for key, value in rows}


class Manifest:
    """The rows of a store about the cold store, and the objects."""

    def __init__(self, store: KeyValue, objects: Mapping[str, bytes]) -> None:
        raw = store.get(keys.HEADER)
        assert raw is not None
        self.header = msgspec.msgpack.decode(raw, type=Header)
        self.streams = rows_of(store, keys.STREAM, Stream)
        self.blobs = rows_of(store, keys.BLOB, Blob)
        self.packs = rows_of(store, keys.PACK, Pack)
        self.slices: dict[int, dict[int, ColdSlice]] = defaultdict(dict)
        for key, row in rows_of(store, keys.SLICE, ColdSlice).items():
            self.slices[keys.stream_id_in(key)][keys.parse_number(key)] = row
        self.chunks: dict[int, list[Chunk]] = defaultdict(list)
        for key, chunk in rows_of(store, keys.CHUNK, Chunk).items():
            self.chunks[keys.stream_id_in(key)].append(chunk)
        self._objects = objects

    def check(self) -> None:
        """Every invariant of docs/cold-store.md about one node's rows."""
        self._check_packs()
        self._check_counts()
        for stream in self.streams.values():
            self._check_stream(stream)
        for stream_id, slices in self.slices.items():
            for end_record, row in slices.items():
                self._check_slice(stream_id, end_record, row)

    def _check_packs(self) -> None:
        live: Counter[tuple[int, int]] = Counter()
        for slices in self.slices.values():
            for row in slices.values():
                live[row.term, row.number] += row.length
        for key, pack in self.packs.items():
            assert pack.live == live.pop(keys.place_in(key[1:]), 0)
            content = self._objects[pack.name]
            check_digest(pack.name, content)
            assert len(content) == pack.size
        assert not live, "each slice's pack has a row"
        assert self.header.cold_bytes == sum(pack.live for pack in self.packs.values())

    def _check_counts(self) -> None:
        owners: list[Stream | Blob] = [*self.streams.values(), *self.blobs.values()]
        hot = sum(owner.size - owner.cold.byte for owner in owners if owner.hot_at_ms is not None)
        assert self.header.hot_bytes == hot

    def _check_stream(self, stream: Stream) -> None:
        """Slices follow each other without a gap up to `cold`; with the chunks they cover all
        records."""
        own = sorted(self.slices[stream.stream_id].items())
        starts = [row.start_record for _, row in own]
        ends = [end_record for end_record, _ in own]
        if stream.snapshot is None:
            assert starts[1:] == ends[:-1]
            if own:
                assert (ends[-1], own[-1][1].end_byte) == stream.cold
        first = max(stream.earliest, stream.fork_point).record
        covered = set(range(first))
        for end_record, row in own:
            covered |= set(range(row.start_record, end_record))
        for chunk in self.chunks[stream.stream_id]:
            covered |= set(range(chunk.start_record, chunk.end_record))
        assert covered >= set(range(stream.records)), stream

    def _check_slice(self, stream_id: int, end_record: int, row: ColdSlice) -> None:
        pack = self.packs[keys.pack_key(row.term, row.number)]
        ref = row.ref(stream_id, end_record)
        content = self._objects[pack.name]
        chunk = decode_slice(ref, content[ref.offset : ref.offset + ref.length])
        assert chunk.digest() == row.digest
