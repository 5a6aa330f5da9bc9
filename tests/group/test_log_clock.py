"""Log time never goes back, and never stands still."""

from __future__ import annotations

import pytest
import trio.testing

from streamd.group.log_clock import LogClock

HOUR_MS = 3_600_000


class Wall:
    """A wall clock that runs with Trio's, and can be set."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return int(trio.current_time() * 1000) + self.ahead_ms


async def test_log_time_is_the_wall_clock(autojump_clock: trio.testing.MockClock) -> None:
    wall = Wall()
    clock = LogClock(wall)
    stamped = 0
    for _ in range(100):
        await trio.sleep(0.7)
        stamped = clock.now_ms(stamped)
        assert stamped == wall()
    wall.ahead_ms += HOUR_MS
    assert clock.now_ms(stamped) == wall()


async def test_log_time_stands_still_with_the_clock(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = LogClock(lambda: 1_000)
    for _ in range(10):
        await trio.sleep(1)
        assert clock.now_ms(1_000) == 1_000


async def test_a_clock_that_lags_catches_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    wall = Wall()
    clock = LogClock(wall)
    began = stamped = wall() + HOUR_MS
    assert clock.now_ms(stamped) == stamped
    for _ in range(59):
        await trio.sleep(60)
        now = clock.now_ms(stamped)
        assert now - stamped == pytest.approx(30_000, abs=2)
        stamped = now
    await trio.sleep(3_600 + 60)
    # Two hours of the clock are one of the log: the hour that it was ahead.
    assert clock.now_ms(stamped) == pytest.approx(began + HOUR_MS, abs=60)
    assert wall() == pytest.approx(began + HOUR_MS, abs=60)
    await trio.sleep(60)
    assert clock.now_ms(stamped) == wall()


async def test_log_time_advances_without_entries(autojump_clock: trio.testing.MockClock) -> None:
    clock = LogClock(Wall())
    stamped = HOUR_MS * 1000
    seen = [clock.now_ms(stamped)]
    for _ in range(10):
        await trio.sleep(1)
        seen.append(clock.now_ms(stamped))
    expected = [stamped + 500 * number for number in range(11)]
    assert seen == [pytest.approx(one, abs=2) for one in expected]


async def test_log_time_advances_however_often_it_is_stamped(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = LogClock(Wall())
    began = stamped = clock.now_ms(HOUR_MS * 1000)
    for _ in range(10_000):
        await trio.sleep(0.0003)
        stamped = clock.now_ms(stamped)
    assert stamped - began == pytest.approx(1_500, abs=2)


async def test_a_stamp_of_another_leader_is_never_undercut(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = LogClock(Wall())
    await trio.sleep(5)
    for stamped in (100, 10_000, 9_000_000, 9_000_001):
        assert clock.now_ms(stamped) >= stamped
