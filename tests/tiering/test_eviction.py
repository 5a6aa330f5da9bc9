"""A node evicts exactly the bytes that the cold store has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trio

from streamd.group.reclaim import reclaim_some
from streamd.process.threads import in_thread
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.chunks import Chunk
from streamd.streams.model import ColdSlice
from streamd.streams.state import State
from streamd.tiering.eviction import Evictor
from streamd.tiering.local_rows import Place, Step, evict_some

STREAM_ID = 7


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    store = StateStore(tmp_path / "state")
    yield store
    store.close()


def holds(store: StateStore, *borders: int, data: bytes) -> None:
    """Store records of a byte each, in chunks that end at these borders."""
    rows, start = [], 0
    for end in borders:
        chunk = Chunk(start, start, [1] * (end - start), [], data[start:end])
        rows.append((keys.chunk_key(STREAM_ID, end), msgspec.msgpack.encode(chunk)))
        start = end
    store.write(rows)


def stored_cold(store: StateStore, start: int, end: int, data: bytes) -> None:
    """Put a slice of these records into the cold store."""
    chunk = Chunk(start, start, [1] * (end - start), [], data[start:end])
    row = ColdSlice(start, start, end, 1, 1, 0, 1, 0, chunk.digest())
    store.write([(keys.slice_key(STREAM_ID, end), msgspec.msgpack.encode(row))])


def trimmed(store: StateStore, record: int) -> None:
    store.write([(keys.trim_key(STREAM_ID, record), b"")])
    reclaim_some(store, keys.TRIM, set())


def evict_all(store: StateStore) -> list[Step]:
    steps, place = [], Place()
    while place.letter == keys.CHUNK:
        step = evict_some(store, place)
        steps.append(step)
        assert step.place is not None
        place = step.place
    return steps


def ends(store: StateStore) -> list[int]:
    """The ends of the local chunks."""
    rows = store.scan(*keys.id_range(keys.CHUNK, STREAM_ID), limit=100)
    return [keys.parse_number(key) for key, _ in rows]


def test_a_slice_that_is_trimmed_in_part_is_compared_before_the_rest_is_evicted(
    store: StateStore,
) -> None:
    holds(store, 2, 4, 6, 8, data=b"abcdefgh")
    stored_cold(store, 0, 2, b"ab")
    stored_cold(store, 2, 8, b"abcdefgX")
    trimmed(store, 5)
    assert sum(step.differing for step in evict_all(store)) == 1
    assert ends(store) == [4, 6, 8]


def test_a_partly_trimmed_slice_that_matches_is_evicted_whole(store: StateStore) -> None:
    holds(store, 2, 4, 6, 8, data=b"abcdefgh")
    stored_cold(store, 2, 8, b"abcdefgh")
    trimmed(store, 5)
    assert ends(store) == [4, 6, 8]
    assert sum(step.evicted for step in evict_all(store)) == 6
    assert ends(store) == []


def test_trimmed_records_outside_of_the_next_slice_are_removed_at_once(store: StateStore) -> None:
    holds(store, 2, 4, 6, 8, data=b"abcdefgh")
    stored_cold(store, 0, 4, b"abcd")
    stored_cold(store, 4, 8, b"abcdefgh")
    trimmed(store, 4)
    assert ends(store) == [6, 8]


def test_the_rest_of_a_chunk_is_evicted_with_the_next_slice(store: StateStore) -> None:
    holds(store, 3, 7, data=b"abcdefgh")
    stored_cold(store, 0, 5, b"abcde")
    assert evict_all(store)[0].evicted == 3
    stored_cold(store, 5, 8, b"abcdefgh")
    holds(store, 3, 7, 8, data=b"abcdefgh")
    store.write([(keys.chunk_key(STREAM_ID, 3), None)])
    assert sum(step.evicted for step in evict_all(store)) == 5


# -- the states of an evictor ---------------------------------------------------------------------


async def nothing_waits() -> None:
    """Everything that was applied is stored."""


class Evicting:
    """An evictor with a budget, over a store whose flushed bytes a test sets."""

    def __init__(self, store: StateStore, *, keep_bytes: int, flushed_bytes: int) -> None:
        self.state = State(store)
        self.state.header.flushed_bytes = flushed_bytes
        self.evictor = Evictor(
            self.state,
            store,
            trio.Lock(),
            nothing_waits,
            keep_bytes=keep_bytes,
            run_blocking=in_thread,
        )

    async def rest(self) -> None:
        """Let it do everything that it does without a pause."""
        while not await self.evictor.round():
            pass


async def test_all_is_counted_before_anything_is_evicted_down_to_the_budget(
    store: StateStore,
) -> None:
    holds(store, 2, 4, 6, 8, data=b"abcdefgh")
    stored_cold(store, 0, 8, b"abcdefgh")
    within = Evicting(store, keep_bytes=8, flushed_bytes=8)
    await within.rest()
    assert (within.evictor.held_bytes, ends(store)) == (8, [2, 4, 6, 8])
    beyond = Evicting(store, keep_bytes=7, flushed_bytes=8)
    await beyond.rest()
    assert (beyond.evictor.held_bytes, ends(store)) == (0, [])


async def test_an_exhausted_evictor_makes_no_pass_until_more_is_flushed(
    store: StateStore,
) -> None:
    holds(store, 8, data=b"abcdefgh")
    stored_cold(store, 0, 5, b"abcde")
    evicting = Evicting(store, keep_bytes=0, flushed_bytes=5)
    await evicting.rest()
    assert evicting.evictor.held_bytes == 5, "the chunk shares records with what is not flushed"
    stored_cold(store, 5, 8, b"abcdefgh")
    await evicting.rest()
    assert ends(store) == [8]
    evicting.state.header.flushed_bytes = 8
    await evicting.rest()
    assert (evicting.evictor.held_bytes, ends(store)) == (0, [])


async def test_a_pass_in_vain_corrects_the_count_of_streams_that_are_gone(
    store: StateStore,
) -> None:
    holds(store, 8, data=b"abcdefgh")
    stored_cold(store, 0, 8, b"abcdefgh")
    evicting = Evicting(store, keep_bytes=1, flushed_bytes=8)
    for _ in range(2):
        await evicting.evictor.round()
    assert evicting.evictor.held_bytes == 8
    store.write([(keys.chunk_key(STREAM_ID, 8), None)])
    await evicting.rest()
    assert (evicting.evictor.held_bytes, evicting.evictor.evicted_bytes) == (0, 0)
