"""Reading slices of packs: few requests, bounded memory, never wrong bytes, and reading ahead."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from streamd.objectstore.errors import ColdRefused, ObjectCorrupt
from streamd.objectstore.packs import Pack, PackWriter
from streamd.process.threads import RunBlocking, in_thread
from streamd.streams.chunks import Chunk
from streamd.streams.queries.reading import LocatedSlice
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.cold_reader import AHEAD_BYTES, READ_BYTES, ColdReader
from tests.http.serving import until
from tests.support.flaky_store import FlakyStore
from tests.support.packs import located
from tests.support.slow_line import SlowLine

STREAM_ID = 5
SLICE_BYTES = 1024 * 1024
PER_REQUEST = READ_BYTES // SLICE_BYTES
PER_REQUEST_AHEAD = AHEAD_BYTES // SLICE_BYTES
SMALL_BYTES = 256 * 1024


def packed(store: FlakyStore, packs: int, per_pack: int) -> tuple[list[LocatedSlice], list[Chunk]]:
    """One stream's records in packs in the store, and their slices."""
    slices: list[LocatedSlice] = []
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
        slices += located(pack)
    store.calls = 0
    return slices, chunks


def reader_of(
    store: FlakyStore,
    cache_bytes: int = 64 * 1024 * 1024,
    *,
    run_blocking: RunBlocking = in_thread,
) -> ColdReader:
    cold = AsyncObjectStore(store, run_blocking=run_blocking, random=Random(1), max_requests=8)
    return ColdReader(cold, cache_bytes=cache_bytes)


@asynccontextmanager
async def reading(
    store: FlakyStore, run_blocking: RunBlocking = in_thread
) -> AsyncIterator[ColdReader]:
    reader = reader_of(store, run_blocking=run_blocking)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        await wait_all_tasks_blocked()
        yield reader
        nursery.cancel_scope.cancel()


async def test_the_next_range_is_read_ahead_while_the_first_is_sent(tmp_path: Path) -> None:
    store = FlakyStore(tmp_path)
    slices, chunks = packed(store, packs=3, per_pack=8)
    async with reading(store) as reader:
        found = await reader.chunks(slices)
        assert found == chunks[:PER_REQUEST]
        end = len(found)
        while end < len(slices):
            # Also across the border of two packs, and when only part of the next range exists.
            await until(lambda end=end: not reader.under_way and reader.expects(slices[end]))
            calls = store.calls
            more = await reader.chunks(slices[end:])
            assert store.calls == calls, "what is wanted is at hand"
            assert more == chunks[end : end + len(more)]
            end += len(more)
    requests_ahead = 3 * -(-8 // PER_REQUEST_AHEAD)
    assert store.calls <= 1 + requests_ahead + 1


async def test_a_single_read_does_not_read_ahead(tmp_path: Path) -> None:
    store = FlakyStore(tmp_path)
    slices, chunks = packed(store, packs=1, per_pack=16)
    async with reading(store) as reader:
        assert await reader.chunks(slices[7:]) == chunks[7 : 7 + PER_REQUEST]
        assert not reader.under_way
    assert store.calls == 1


# The slices that the state returns to a reader at a time (`streams.queries.reading`).
WINDOW = 16


async def test_a_reader_waits_once_per_window(tmp_path: Path, autojump_clock: MockClock) -> None:
    store, line = FlakyStore(tmp_path), SlowLine()
    slices, chunks = packed(store, packs=8, per_pack=8)
    line.delay_s = 1.0
    async with reading(store, line.run) as reader:
        begun_at, found, most = trio.current_time(), list[Chunk](), 0
        while len(found) < len(slices):
            end = len(found)
            found += await reader.chunks(slices[end : end + WINDOW])
            most = max(most, reader.under_way)
        assert found == chunks
        waited = trio.current_time() - begun_at
    # Which of the tasks that wake at once runs first is left to chance; without reading ahead it
    # is one wait for each request of `READ_BYTES`, four times as many.
    assert waited <= 2 * len(slices) / WINDOW
    assert most <= WINDOW


# -- without reading ahead ----------------------------------------------------------------------


def _pack(count: int) -> tuple[Pack, list[Chunk]]:
    random = Random(1)
    writer = PackWriter(0, 1, 0)
    chunks = [
        Chunk(number, number * SMALL_BYTES, [SMALL_BYTES], [], random.randbytes(SMALL_BYTES))
        for number in range(count)
    ]
    for chunk in chunks:
        writer.add(5, chunk)
    return writer.finish(), chunks


@pytest.fixture
def store(tmp_path: Path) -> FlakyStore:
    return FlakyStore(tmp_path)


async def _read_all(reader: ColdReader, pack: Pack) -> list[Chunk]:
    found: list[Chunk] = []
    while len(found) < len(pack.slices):
        found += await reader.chunks(located(pack)[len(found) :])
    return found


async def test_a_stream_is_read_in_large_requests(store: FlakyStore) -> None:
    pack, chunks = _pack(40)
    store.put(pack.name, pack.content)
    store.calls = 0
    assert await _read_all(reader_of(store), pack) == chunks
    assert store.calls == -(-len(pack.content) // READ_BYTES)


async def test_the_next_reader_is_served_from_memory(store: FlakyStore) -> None:
    pack, chunks = _pack(20)
    store.put(pack.name, pack.content)
    reader = reader_of(store)
    await _read_all(reader, pack)
    store.calls = 0
    assert await _read_all(reader, pack) == chunks
    assert store.calls == 0
    assert reader.hits == 20


async def test_memory_stays_below_the_limit(store: FlakyStore) -> None:
    pack, chunks = _pack(20)
    store.put(pack.name, pack.content)
    reader = reader_of(store, cache_bytes=3 * SMALL_BYTES)
    assert await _read_all(reader, pack) == chunks
    assert reader.cached_bytes == 3 * SMALL_BYTES
    tiny = reader_of(store, cache_bytes=1)
    assert await _read_all(tiny, pack) == chunks
    assert tiny.cached_bytes == 0


async def test_readers_of_one_place_share_one_request(store: FlakyStore) -> None:
    pack, _ = _pack(4)
    store.put(pack.name, pack.content)
    store.calls = 0
    reader = reader_of(store)
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(_read_all, reader, pack)
    assert store.calls == 1


async def test_a_reader_of_the_middle_of_a_range_under_way_waits_for_it(store: FlakyStore) -> None:
    pack, chunks = _pack(6)
    store.put(pack.name, pack.content)
    store.calls = 0
    reader = reader_of(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_read_all, reader, pack)
        await wait_all_tasks_blocked(0.0)
        assert all(reader.expects(each) for each in located(pack))
        assert await reader.chunks(located(pack)[3:]) == chunks[3:]
    assert store.calls == 1


async def test_a_cancelled_reader_does_not_cancel_others(store: FlakyStore) -> None:
    pack, chunks = _pack(2)
    store.put(pack.name, pack.content)
    store.calls = 0
    reader = reader_of(store)
    results: list[list[Chunk]] = []

    async def read() -> None:
        results.append(await _read_all(reader, pack))

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as leaving:
            async with trio.open_nursery() as left:
                left.start_soon(_read_all, reader, pack)
                await wait_all_tasks_blocked(0.0)
                nursery.start_soon(read)
                leaving.cancel()
    assert results == [chunks]


async def test_a_failed_request_fails_only_its_readers(store: FlakyStore) -> None:
    pack, chunks = _pack(2)
    store.put(pack.name, pack.content)
    store.failures = [ColdRefused("not now")]
    reader = reader_of(store)
    with pytest.raises(ColdRefused):
        await reader.chunks(located(pack))
    assert await reader.chunks(located(pack)) == chunks


async def test_slices_that_are_not_adjacent_are_read_in_separate_ranges(store: FlakyStore) -> None:
    pack, chunks = _pack(6)
    store.put(pack.name, pack.content)
    reader = reader_of(store)
    slices = [located(pack)[number] for number in (0, 1, 3, 5)]
    assert await reader.chunks(slices) == chunks[:2]
    assert await reader.chunks(slices[2:]) == chunks[3:4]


async def test_damaged_bytes_are_an_error_and_are_not_cached(
    store: FlakyStore, tmp_path: Path
) -> None:
    pack, chunks = _pack(3)
    damaged = bytearray(pack.content)
    damaged[pack.slices[1].offset + 100] ^= 1
    store.put(pack.name, bytes(damaged))
    reader = reader_of(store)
    with pytest.raises(ObjectCorrupt, match=r"\.pack in the directory .*wrong checksum"):
        await reader.chunks(located(pack))
    assert reader.cached_bytes == 0
    assert await reader.chunks(located(pack)[:1]) == chunks[:1], "the rest is whole"


async def test_a_forgotten_pack_leaves_the_cache(store: FlakyStore) -> None:
    pack, _ = _pack(3)
    store.put(pack.name, pack.content)
    reader = reader_of(store)
    await _read_all(reader, pack)
    reader.forget(pack.name)
    assert reader.cached_bytes == 0
