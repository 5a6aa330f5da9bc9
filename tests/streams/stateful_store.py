"""Random flushes, evictions, repacking and crashes, which change nothing that clients see."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from streamd.objectstore.packs import PackWriter
from streamd.streams import keys
from streamd.streams.commands import DropSlices, ForgetPacks, MovedSlice, MoveSlices, Result
from streamd.streams.model import ColdSlice, Pack, Stream
from streamd.streams.queries.listing import ListQuery, list_streams
from streamd.streams.queries.reading import read_slices
from tests.streams.driver import EVERYTHING, Driver
from tests.streams.stateful_commands import CommandRules

PACK_BYTES = st.sampled_from([1, 100, 300, EVERYTHING])


class StoreRules(CommandRules):
    """What a node does to its stores between commands."""

    # -- the cold store -----------------------------------------------------------------------

    @precondition(lambda self: self.flushing is None)
    @rule(pack_bytes=PACK_BYTES)
    def gather_a_pack(self, pack_bytes: int) -> None:
        """The log records it later, or never."""
        self.begin_flush()
        self.end_flush()
        self.pack = self.driver.gather(pack_bytes)

    @precondition(lambda self: self.flushing is None)
    @rule(pack_bytes=PACK_BYTES)
    def move_to_the_cold_store(self, pack_bytes: int) -> None:
        self.gather_a_pack(pack_bytes)
        self.record_the_pack_in_the_log()
        self.check_the_manifest()

    @precondition(lambda self: self.flushing is None and self.driver.find("a") is not None)
    @rule()
    def keep_everything_in_the_cold_store_only(self) -> None:
        self.move_to_the_cold_store(EVERYTHING)
        self.evict_hot_bytes()
        self.crash(False)

    @precondition(lambda self: self.pack is not None)
    @rule()
    def record_the_pack_in_the_log(self) -> None:
        assert self.pack is not None
        self.apply(replace(self.pack, term=2), Result.STALE)
        self.apply(self.pack, Result.DONE)
        self.apply(self.pack, Result.STALE)
        self.pack = None

    @precondition(lambda self: self.flushing is None)
    @rule()
    def evict_hot_bytes(self) -> None:
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
        """Live slices of some packs move into a new one."""
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
    def check_the_manifest(self) -> None:
        """Slices follow each other without a gap up to the end of the cold records, except for
        trimmed ones; packs count the slices that refer to them."""
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
        """Start again from the store and the log; a flush under way is stored whole or not at
        all."""
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
