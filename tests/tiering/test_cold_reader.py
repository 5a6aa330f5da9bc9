"""Readers of the cold store: who goes on is expected."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from streamd.blocking import RunBlocking, in_thread
from streamd.objectstore.packs import PackWriter, SliceRef
from streamd.streams.chunks import Chunk
from streamd.streams.model import ColdSlice
from streamd.streams.reading import LocatedSlice
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.cold_reader import ColdReader, ref_of
from streamd.tiering.slice_cache import AHEAD_BYTES, READ_BYTES, SliceCache
from tests.http.serving import until
from tests.support.flaky_store import FlakyStore
from tests.support.slow_line import SlowLine

STREAM_ID = 5
SLICE_BYTES = 1024 * 1024
PER_REQUEST = READ_BYTES // SLICE_BYTES
PER_REQUEST_AHEAD = AHEAD_BYTES // SLICE_BYTES


def packed(store: FlakyStore, packs: int, per_pack: int) -> tuple[list[LocatedSlice], list[Chunk]]:
    """One stream's records in packs in the store, and where they are."""
    located: list[LocatedSlice] = []
    chunks: list[Chunk] = []
    for number in range(packs):
        writer = PackWriter(0, 1, number)
        for _ in range(per_pack):
            at = len(chunks)
            data = Random(at).randbytes(SLICE_BYTES)
            chunks.append(Chunk(at, at * SLICE_BYTES, [SLICE_BYTES], [], data))
            writer.add(STREAM_ID, chunks[-1])
        pack = writer.finish()
        store.put(pack.name, pack.content)
        for ref in pack.slices:
            row = ColdSlice(
                ref.start_record,
                ref.start_byte,
                ref.end_byte,
                1,
                number,
                ref.offset,
                ref.length,
                ref.crc,
                ref.digest,
            )
            located.append(LocatedSlice(STREAM_ID, ref.end_record, row, pack.name))
    store.calls = 0
    return located, chunks


def at(located: LocatedSlice) -> tuple[str, SliceRef]:
    return located.pack, ref_of(located)


@asynccontextmanager
async def reading(
    store: FlakyStore, run_blocking: RunBlocking = in_thread
) -> AsyncIterator[tuple[ColdReader, SliceCache]]:
    cold = AsyncObjectStore(store, run_blocking=run_blocking, random=Random(1), max_requests=8)
    reads = SliceCache(cold, cache_bytes=64 * 1024 * 1024)
    records = ColdReader(reads)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(records.run)
        await wait_all_tasks_blocked()
        yield records, reads
        nursery.cancel_scope.cancel()


async def test_what_a_reader_wants_next_is_read_while_it_is_sent_the_first(tmp_path: Path) -> None:
    store = FlakyStore(tmp_path)
    slices, chunks = packed(store, packs=3, per_pack=8)
    async with reading(store) as (records, reads):
        found = await records.chunks(slices)
        assert found == chunks[:PER_REQUEST]
        end = len(found)
        while end < len(slices):
            # Also across the border of two packs, and when only part of what is ahead is there.
            await until(lambda end=end: not reads.under_way and reads.expects(*at(slices[end])))
            calls = store.calls
            more = await records.chunks(slices[end:])
            assert store.calls == calls, "what is wanted is at hand"
            assert more == chunks[end : end + len(more)]
            end += len(more)
    requests_ahead = 3 * -(-8 // PER_REQUEST_AHEAD)
    assert store.calls <= 1 + requests_ahead + 1


async def test_a_reader_of_one_place_brings_no_more_than_it_asked_for(tmp_path: Path) -> None:
    store = FlakyStore(tmp_path)
    slices, chunks = packed(store, packs=1, per_pack=16)
    async with reading(store) as (records, reads):
        assert await records.chunks(slices[7:]) == chunks[7 : 7 + PER_REQUEST]
        assert not reads.under_way
    assert store.calls == 1


# What the state names to a reader at a time (`streams.reading`).
WINDOW = 16


async def test_a_reader_waits_once_for_the_store_and_then_for_a_window_at_a_time(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    store, line = FlakyStore(tmp_path), SlowLine()
    slices, chunks = packed(store, packs=8, per_pack=8)
    line.delay_s = 1.0
    async with reading(store, line.run) as (records, reads):
        begun_at, found, most = trio.current_time(), list[Chunk](), 0
        while len(found) < len(slices):
            end = len(found)
            found += await records.chunks(slices[end : end + WINDOW])
            most = max(most, reads.under_way)
        assert found == chunks
        waited = trio.current_time() - begun_at
    # Which of the tasks that wake at once runs first is left to chance; without reading ahead it
    # is one wait for each request of `READ_BYTES`, four times as many.
    assert waited <= 2 * len(slices) / WINDOW
    assert most <= WINDOW
