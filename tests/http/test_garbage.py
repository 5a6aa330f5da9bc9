"""What the garbage collector has to do in a server: nothing for a request, and all of it when the
event loop rests."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing

from streamd.process.event_loop import keep_on_time, seldom_collecting
from streamd.process.histograms import Histogram
from streamd.process.metrics import Metrics
from tests.http.serving import RawClient, serving, until
from tests.http.test_reactor import APPEND, CREATE, READ, exchange

TAIL = b"GET /v1/stream/s?offset=now&live=sse HTTP/1.1\r\nHost: x\r\n\r\n"
# Cycles that a run leaves once, whatever its length.
_ONCE = 100
_REPEATED = 200


@contextmanager
def by_hand() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("request_", "status"),
    [(APPEND, 204), (READ, 200), (READ.replace(b"/s ", b"/none "), 404)],
    ids=["append", "read", "missing"],
)
async def test_a_request_leaves_no_cycle_of_objects(
    request_: bytes, status: int, tmp_path: Path
) -> None:
    async with serving(tmp_path) as server, server.connect() as client:
        await exchange(client, CREATE, 201)
        await exchange(client, request_, status)
        with by_hand():
            for _ in range(_REPEATED):
                await exchange(client, request_, status)
            assert gc.collect() < _ONCE


async def test_a_connection_leaves_no_cycle_of_objects(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        async with server.connect() as client:
            await exchange(client, CREATE, 201)
        with by_hand():
            for _ in range(_REPEATED):
                async with server.connect() as client:
                    await exchange(client, APPEND, 204)
            assert gc.collect() < _ONCE


async def test_events_for_live_readers_leave_no_cycle_of_objects(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as writer, server.connect() as reader:
        await exchange(writer, CREATE, 201)
        await reader.send(TAIL)
        await reader.read_head()
        with by_hand():
            for _ in range(_REPEATED):
                await next_event(writer, reader)
            assert gc.collect() < _ONCE


async def next_event(writer: RawClient, reader: RawClient) -> None:
    await exchange(writer, APPEND, 204)
    await reader.read_through(b"event: control")


def observed(histogram: Histogram) -> int:
    return sum(histogram.counts)


def looks_through_all() -> int:
    """How often the collector has looked through all objects."""
    return int(gc.get_stats()[2]["collections"])


class Cycle:
    """An object that only the garbage collector can free."""

    def __init__(self) -> None:
        self.itself = self


def make_garbage_old() -> None:
    """As much as makes Python look through its middle-aged objects."""
    for _ in range(25):
        kept = [Cycle() for _ in range(10_000)]
        del kept


async def test_python_never_looks_through_all_objects_by_itself() -> None:
    metrics = Metrics()
    before = gc.get_threshold()
    with seldom_collecting(metrics):
        of_all = looks_through_all()
        make_garbage_old()
        assert looks_through_all() == of_all
        assert observed(metrics.gc_pause) > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


async def test_a_resting_loop_looks_through_all_objects(mock_clock: trio.testing.MockClock) -> None:
    metrics = Metrics()
    with seldom_collecting(metrics):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_on_time, metrics)
            make_garbage_old()
            of_all = looks_through_all()
            mock_clock.autojump_threshold = 0
            await until(lambda: looks_through_all() > of_all)
            # With nothing allocated since there is nothing to look for.
            of_all = looks_through_all()
            await trio.sleep(60)
            assert looks_through_all() == of_all
            nursery.cancel_scope.cancel()
    assert observed(metrics.loop_lag) > 500


@pytest.mark.long
async def test_a_busy_loop_is_stopped_for_a_thousandth_of_its_time(
    mock_clock: trio.testing.MockClock,
) -> None:
    metrics = Metrics()
    looks: list[tuple[float, float]] = []
    started = 0.0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal started
        if phase == "start":
            started = time.perf_counter()
        elif info["generation"] == 2:
            looks.append((trio.current_time(), time.perf_counter() - started))

    async def work() -> None:
        while True:
            until = time.thread_time() + 0.006
            while time.thread_time() < until:
                pass
            await trio.sleep(0.04)

    with seldom_collecting(metrics):
        gc.callbacks.append(note)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            nursery.start_soon(keep_on_time, metrics)
            mock_clock.autojump_threshold = 0
            for _ in range(2):
                make_garbage_old()
                looks_before = len(looks)
                await until(lambda: len(looks) > looks_before, patience_s=600)  # noqa: B023
            nursery.cancel_scope.cancel()
        gc.callbacks.remove(note)
    for (at, took), (following, _) in pairwise(looks):
        assert following - at >= 1000 * took * 0.5


async def test_the_lag_of_a_loop_that_works_too_long_is_seen() -> None:
    metrics = Metrics()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_on_time, metrics)
        await trio.testing.wait_all_tasks_blocked()
        end = time.monotonic() + 0.35
        while time.monotonic() < end:
            pass
        await until(lambda: observed(metrics.loop_lag) > 0)
        nursery.cancel_scope.cancel()
    late = [
        bound
        for bound, count in zip(metrics.loop_lag.bounds, metrics.loop_lag.counts, strict=False)
        if count
    ]
    assert max(late) >= 0.2
