"""What is due next, of many things whose times change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamd.streams.subscriptions.due_times import DueTimes

CHANGES = st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 20)), max_size=60)


@given(CHANGES, st.integers(0, 20), st.integers(1, 7))
def test_the_earliest_times_are_due_first(
    changes: list[tuple[int, int | None]], until_ms: int, limit: int
) -> None:
    times = DueTimes()
    expected: dict[int, int] = {}
    for number, at_ms in changes:
        times.set(number, at_ms)
        expected.pop(number, None)
        if at_ms is not None:
            expected[number] = at_ms
    order = sorted((at_ms, number) for number, at_ms in expected.items())
    assert times.next_ms == (order[0][0] if order else None)
    due = [number for at_ms, number in order if at_ms <= until_ms][:limit]
    assert times.take(until_ms, limit) == due
    assert not {*times.take(until_ms, limit)} & {*due}, "they were taken"
    for number in due:
        times.put_back(number)
        times.put_back(number)
    times.put_back(99)
    assert times.take(until_ms, limit) == due
    times.restart()
    assert times.take(until_ms, 100) == [number for at_ms, number in order if at_ms <= until_ms]


def test_a_number_that_was_taken_is_due_at_another_time() -> None:
    times = DueTimes()
    times.set(1, 5)
    assert times.take(10, 10) == [1]
    times.set(1, 5)
    assert times.next_ms is None
    times.set(1, 6)
    assert times.take(10, 10) == [1]


def test_replaced_times_do_not_pile_up() -> None:
    times = DueTimes()
    for at_ms in range(100_000):
        times.set(1, at_ms)
        times.set(2, at_ms)
    assert len(times._heap) < 1_100
    assert times.take(10**6, 10) == [1, 2]
