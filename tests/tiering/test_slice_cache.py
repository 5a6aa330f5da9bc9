"""Reading slices of packs: few requests, bounded memory, never wrong bytes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from streamd.blocking import in_thread
from streamd.objectstore.errors import ColdRefused, ObjectCorrupt
from streamd.objectstore.packs import Pack, PackWriter
from streamd.streams.chunks import Chunk
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.slice_cache import READ_BYTES, SliceCache
from tests.support.flaky_store import FlakyStore

SLICE_BYTES = 256 * 1024


def _pack(count: int) -> tuple[Pack, list[Chunk]]:
    random = Random(1)
    writer = PackWriter(0, 1, 0)
    chunks = [
        Chunk(number, number * SLICE_BYTES, [SLICE_BYTES], [], random.randbytes(SLICE_BYTES))
        for number in range(count)
    ]
    for chunk in chunks:
        writer.add(5, chunk)
    return writer.finish(), chunks


@pytest.fixture
def store(tmp_path: Path) -> FlakyStore:
    return FlakyStore(tmp_path)


def _reads(store: FlakyStore, cache_bytes: int = 64 * 1024 * 1024) -> SliceCache:
    cold = AsyncObjectStore(store, run_blocking=in_thread, random=Random(1), max_requests=4)
    return SliceCache(cold, cache_bytes=cache_bytes)


async def _read_all(reads: SliceCache, pack: Pack) -> list[Chunk]:
    found: list[Chunk] = []
    while len(found) < len(pack.slices):
        found += await reads.chunks(pack.name, pack.slices[len(found) :])
    return found


async def test_a_stream_is_read_in_large_requests(store: FlakyStore) -> None:
    pack, chunks = _pack(40)
    store.put(pack.name, pack.content)
    store.calls = 0
    assert await _read_all(_reads(store), pack) == chunks
    assert store.calls == -(-len(pack.content) // READ_BYTES)


async def test_the_next_reader_is_served_from_memory(store: FlakyStore) -> None:
    pack, chunks = _pack(20)
    store.put(pack.name, pack.content)
    reads = _reads(store)
    await _read_all(reads, pack)
    store.calls = 0
    assert await _read_all(reads, pack) == chunks
    assert store.calls == 0
    assert reads.hits == 20


async def test_memory_stays_below_the_limit(store: FlakyStore) -> None:
    pack, chunks = _pack(20)
    store.put(pack.name, pack.content)
    reads = _reads(store, cache_bytes=3 * SLICE_BYTES)
    assert await _read_all(reads, pack) == chunks
    assert reads.size == 3 * SLICE_BYTES
    tiny = _reads(store, cache_bytes=1)
    assert await _read_all(tiny, pack) == chunks
    assert tiny.size == 0


async def test_readers_of_one_place_share_one_request(store: FlakyStore) -> None:
    pack, _ = _pack(4)
    store.put(pack.name, pack.content)
    store.calls = 0
    reads = _reads(store)
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(_read_all, reads, pack)
    assert store.calls == 1


async def test_who_wants_the_middle_of_a_range_under_way_waits_for_it(store: FlakyStore) -> None:
    pack, chunks = _pack(6)
    store.put(pack.name, pack.content)
    store.calls = 0
    reads = _reads(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_read_all, reads, pack)
        await trio.testing.wait_all_tasks_blocked(0.0)
        assert all(reads.expects(pack.name, ref) for ref in pack.slices)
        assert await reads.chunks(pack.name, pack.slices[3:]) == chunks[3:]
    assert store.calls == 1


async def test_a_reader_that_leaves_does_not_take_others_with_it(store: FlakyStore) -> None:
    pack, chunks = _pack(2)
    store.put(pack.name, pack.content)
    store.calls = 0
    reads = _reads(store)
    results: list[list[Chunk]] = []

    async def read() -> None:
        results.append(await _read_all(reads, pack))

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as leaving:
            async with trio.open_nursery() as left:
                left.start_soon(_read_all, reads, pack)
                await trio.testing.wait_all_tasks_blocked(0.0)
                nursery.start_soon(read)
                leaving.cancel()
    assert results == [chunks]


async def test_a_failed_request_fails_only_who_made_it(store: FlakyStore) -> None:
    pack, chunks = _pack(2)
    store.put(pack.name, pack.content)
    store.failures = [ColdRefused("not now")]
    reads = _reads(store)
    with pytest.raises(ColdRefused):
        await reads.chunks(pack.name, pack.slices)
    assert await reads.chunks(pack.name, pack.slices) == chunks


async def test_slices_with_others_in_between_are_read_one_range_at_a_time(
    store: FlakyStore,
) -> None:
    pack, chunks = _pack(6)
    store.put(pack.name, pack.content)
    reads = _reads(store)
    refs = [pack.slices[number] for number in (0, 1, 3, 5)]
    assert await reads.chunks(pack.name, refs) == chunks[:2]
    assert await reads.chunks(pack.name, refs[2:]) == chunks[3:4]


async def test_damage_in_the_store_is_an_error_and_nothing_of_it_is_kept(
    store: FlakyStore, tmp_path: Path
) -> None:
    pack, chunks = _pack(3)
    damaged = bytearray(pack.content)
    damaged[pack.slices[1].offset + 100] ^= 1
    store.put(pack.name, bytes(damaged))
    reads = _reads(store)
    with pytest.raises(ObjectCorrupt, match=r"\.pack in the directory .*wrong checksum"):
        await reads.chunks(pack.name, pack.slices)
    assert reads.size == 0
    assert await reads.chunks(pack.name, pack.slices[:1]) == chunks[:1], "the rest is whole"


async def test_a_pack_that_is_no_more_is_forgotten(store: FlakyStore) -> None:
    pack, _ = _pack(3)
    store.put(pack.name, pack.content)
    reads = _reads(store)
    await _read_all(reads, pack)
    reads.forget(pack.name)
    assert reads.size == 0
