"""Reads while the state changes under them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar, TypeVarTuple, cast

import trio

from streamd.node.reads import Reads
from streamd.storage.state_store import StateStore
from streamd.streams.chunks import Window
from streamd.streams.offsets import START
from streamd.tiering.cold_reader import ColdReader
from tests.streams.driver import Driver, key
from tests.streams.memory_store import MemoryStore

T = TypeVar("T")
Args = TypeVarTuple("Args")


async def test_a_read_under_way_when_the_state_is_replaced_sees_the_new_state() -> None:
    store = MemoryStore()
    driver = Driver(store)
    driver.create(body=b"zero")
    driver.flush()
    driver.reopen()
    # After each read of the store, before its result arrives.
    meanwhile: Iterator[Callable[[], object]] = iter(
        [driver.state.load, lambda: driver.append(b"one")]
    )

    async def run_blocking(
        call: Callable[[*Args], T],
        *args: *Args,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        rows = call(*args)
        next(meanwhile)()
        return rows

    reads = Reads(driver.state, cast("StateStore", store), ColdReader(None), run_blocking)
    stream = await reads.stream(key("s"))
    assert stream is driver.stream()
    assert stream.size == len(b"zeroone")


async def test_rows_read_while_the_state_is_replaced_are_not_cached_for_the_new_state() -> None:
    store = MemoryStore()
    driver = Driver(store)
    driver.create(body=b"zero")
    driver.flush()
    driver.reopen()

    def replace() -> None:
        """As a Raft snapshot with another append does."""
        ahead = Driver(store)
        ahead.append(b"one")
        ahead.flush()
        driver.state.load()

    meanwhile = iter([replace])

    async def run_blocking(
        call: Callable[[*Args], T],
        *args: *Args,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        found = call(*args)
        next(meanwhile)()
        return found

    before = driver.stream()
    reads = Reads(driver.state, cast("StateStore", store), ColdReader(None), run_blocking)
    assert b"".join((await reads.read(before, Window(START, 100))).parts) == b"zero"
    driver.append(b"two")
    driver.flush()
    assert driver.content() == b"zeroonetwo"
