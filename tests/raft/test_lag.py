"""When a follower counts as lagging."""

from __future__ import annotations

from streamd.raft.state import LagTracker

PATIENCE = 4


def ticks(lag: LagTracker, applied_index: int, count: int) -> list[bool]:
    said = []
    for _ in range(count):
        lag.tick(applied_index)
        said.append(lag.value)
    return said


def test_a_follower_that_hears_no_leader_counts_as_lagging() -> None:
    assert ticks(LagTracker(PATIENCE), 100, 10) == [False] * 10


def test_a_follower_that_applied_the_leaders_last_known_commit_does_not_lag() -> None:
    lag = LagTracker(PATIENCE)
    lag.heard(10)
    assert ticks(lag, 10, 3) == [False, True, True]


def test_a_follower_an_election_timeout_late_lags() -> None:
    lag = LagTracker(PATIENCE)
    lag.heard(10)
    ticks(lag, 10, 2)
    lag.heard(20)
    assert ticks(lag, 10, 1 + PATIENCE) == [True] * PATIENCE + [False]
    assert ticks(lag, 20, 1) == [True]


def test_a_follower_that_always_has_more_to_apply_under_load_does_not_lag() -> None:
    lag = LagTracker(PATIENCE)
    for last_index in range(10, 1000, 10):
        lag.heard(last_index)
        lag.tick(last_index - 10)
    assert lag.value


def test_a_slow_follower_of_a_growing_log_lags() -> None:
    lag = LagTracker(PATIENCE)
    said = []
    for tick in range(100):
        lag.heard(100 * tick)
        said += ticks(lag, tick, 1)
    assert not any(said)
