"""A store that hangs, is slow, or is unreachable: what readers and background work see, to the
second of a virtual clock."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from streamd.objectstore.errors import ColdUnavailable
from streamd.objectstore.fs import FsStore
from streamd.objectstore.packs import Pack, PackWriter
from streamd.streams.chunks import Chunk
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.cold_reader import ColdReader
from streamd.tiering.tier import PeriodicTask
from tests.support.packs import located
from tests.support.slow_line import SlowLine

TIMEOUT_S = 30.0
MAX_REQUESTS = 8


@pytest.fixture
def line() -> SlowLine:
    return SlowLine(TIMEOUT_S)


@pytest.fixture
def cold(tmp_path: Path, line: SlowLine) -> AsyncObjectStore:
    return AsyncObjectStore(
        FsStore(tmp_path),
        run_blocking=line.run,
        random=Random(1),
        max_requests=MAX_REQUESTS,
        timeout_s=TIMEOUT_S,
    )


def packs(count: int) -> list[Pack]:
    found = []
    for number in range(count):
        writer = PackWriter(0, 1, number)
        writer.add(5, Chunk(0, 0, [10], [], b"%010d" % number))
        found.append(writer.finish())
    return found


async def put_packs(cold: AsyncObjectStore, count: int) -> list[Pack]:
    found = packs(count)
    for pack in found:
        await cold.put(pack.name, pack.content)
    return found


class Readers:
    """Many concurrent reads of different slices. Returns how long each waited, and whether it
    failed."""

    def __init__(self, reader: ColdReader) -> None:
        self._reader = reader
        self.waited_s: list[float] = []
        self.failed = 0

    async def read(self, pack: Pack) -> None:
        begun_at = trio.current_time()
        try:
            await self._reader.chunks(located(pack))
        except ColdUnavailable:
            self.failed += 1
        self.waited_s.append(trio.current_time() - begun_at)

    async def read_all(self, wanted: list[Pack]) -> None:
        async with trio.open_nursery() as nursery:
            for pack in wanted:
                nursery.start_soon(self.read, pack)


async def test_no_reader_waits_longer_than_the_time_limit_for_a_hung_store(
    autojump_clock: MockClock, cold: AsyncObjectStore, line: SlowLine
) -> None:
    wanted = await put_packs(cold, 40)
    line.hangs, line.begun = True, 0
    readers = Readers(ColdReader(cold, cache_bytes=1))
    await readers.read_all(wanted)
    assert readers.failed == 40
    assert max(readers.waited_s) <= TIMEOUT_S
    assert line.begun <= 2 * MAX_REQUESTS


async def test_a_reader_that_joins_a_request_shares_its_time_limit(
    autojump_clock: MockClock, cold: AsyncObjectStore, line: SlowLine
) -> None:
    [pack] = await put_packs(cold, 1)
    line.hangs = True
    readers = Readers(ColdReader(cold, cache_bytes=1))
    await readers.read_all([pack] * 10)
    assert readers.failed == 10
    assert max(readers.waited_s) <= TIMEOUT_S


async def test_during_an_outage_one_reader_probes_and_the_others_fail_at_once(
    autojump_clock: MockClock, cold: AsyncObjectStore, line: SlowLine
) -> None:
    wanted = await put_packs(cold, 20)
    reader = ColdReader(cold, cache_bytes=1)
    line.hangs = True
    await Readers(reader).read_all(wanted[:1])
    line.begun = 0
    readers = Readers(reader)
    await readers.read_all(wanted)
    assert readers.failed == 20
    assert sorted(readers.waited_s)[:19] == [0.0] * 19
    assert line.begun == 1
    # The next reader finds that the store is back.
    line.hangs = False
    again = Readers(reader)
    await again.read_all(wanted[:1])
    await again.read_all(wanted)
    assert again.failed == 0


async def test_an_outage_and_its_end_are_logged_once_each(
    autojump_clock: MockClock, cold: AsyncObjectStore, line: SlowLine
) -> None:
    wanted = await put_packs(cold, 10)
    reader = ColdReader(cold, cache_bytes=1)

    async def make_round() -> float:
        await cold.get(wanted[0].name, 0, 1 + cold.health.retries)
        return 1.0

    rounds = PeriodicTask("archive", make_round)
    with capture_logs() as told:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rounds.run)
            await trio.sleep(5)
            line.hangs = True
            for _ in range(5):
                await Readers(reader).read_all(wanted)
                await trio.sleep(20)
            assert cold.health.away_s is not None
            line.hangs = False
            await trio.sleep(60)
            assert cold.health.away_s is None
            nursery.cancel_scope.cancel()
    assert [entry["event"] for entry in told] == [
        "the cold store does not answer",
        "a task of the cold store fails",
        "the cold store answers again",
        "a task of the cold store succeeds again",
    ]
    assert cold.health.outages == 1


async def test_one_lost_call_among_answered_ones_is_not_an_outage(
    autojump_clock: MockClock, cold: AsyncObjectStore, line: SlowLine
) -> None:
    [one, other] = await put_packs(cold, 2)
    reader = ColdReader(cold, cache_bytes=1)
    async with trio.open_nursery() as nursery:
        line.hangs = True
        nursery.start_soon(Readers(reader).read, one)
        await trio.sleep(1)
        line.hangs = False
        await cold.get(other.name, 0, 1)
    assert cold.health.away_s is None


@pytest.mark.parametrize("hangs", [False, True])
async def test_background_work_does_not_wait_for_readers(
    autojump_clock: MockClock, cold: AsyncObjectStore, line: SlowLine, hangs: bool
) -> None:
    wanted = await put_packs(cold, 100)
    line.delay_s, line.hangs = 0.3, hangs
    reader = ColdReader(cold, cache_bytes=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Readers(reader).read_all, wanted)
        await trio.sleep(0.1)
        line.hangs = False
        begun_at = trio.current_time()
        await cold.put("segment", b"x")
        assert trio.current_time() - begun_at == pytest.approx(line.delay_s)
