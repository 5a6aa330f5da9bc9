"""Readers of the cold store: who goes on is expected."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import trio

from streamd.blocking import in_thread
from streamd.cold.packs import PackWriter, SliceRef
from streamd.streams.chunks import Chunk
from streamd.streams.model import ColdSlice
from streamd.streams.reading import LocatedSlice
from streamd.tier.reads import AHEAD_BYTES, READ_BYTES, ColdReads
from streamd.tier.records import ColdRecords, ref_of
from streamd.tier.store import Cold
from tests.http.serving import until
from tests.support.flaky_store import FlakyStore

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
async def reading(store: FlakyStore) -> AsyncIterator[tuple[ColdRecords, ColdReads]]:
    cold = Cold(store, run_blocking=in_thread, random=Random(1), max_requests=4)
    reads = ColdReads(cold, cache_bytes=64 * 1024 * 1024)
    records = ColdRecords(reads)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(records.run)
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
