"""Places for deliveries: receivers that keep theirs cost the others nothing."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from streamd.node.delivery.delivery_queue import DeliveryQueue


def taken(queue: DeliveryQueue) -> list[int]:
    found = []
    while (number := queue.take()) is not None:
        found.append(number)
    return found


def test_hosts_take_turns() -> None:
    queue = DeliveryQueue(64)
    for number in range(1, 7):
        queue.add(number, "many", has_failed=False)
    queue.add(7, "one", has_failed=False)
    assert taken(queue)[:2] == [1, 7]


def test_a_host_that_keeps_its_places_leaves_the_others() -> None:
    queue = DeliveryQueue(64)
    for number in range(100):
        queue.add(number, "hangs", has_failed=False)
    assert taken(queue) == list(range(8))
    queue.add(200, "answers", has_failed=False)
    assert taken(queue) == [200]
    queue.leave(3)
    assert taken(queue) == [8]


def test_failing_receivers_leave_half_of_the_places() -> None:
    queue = DeliveryQueue(16)
    for number in range(100):
        queue.add(number, f"host{number}", has_failed=True)
    assert len(taken(queue)) == 8
    for number in range(100, 200):
        queue.add(number, f"host{number}", has_failed=False)
    assert taken(queue) == list(range(100, 108))
    assert queue.placed == 16


def test_retries_come_to_their_turn_beside_ever_new_deliveries() -> None:
    queue = DeliveryQueue(8)
    for number in range(8):
        queue.add(number, f"host{number}", has_failed=False)
    assert taken(queue) == list(range(8))
    queue.add(1_000, "failed", has_failed=True)
    for number in range(8, 16):
        queue.add(number, f"host{number}", has_failed=False)
        queue.leave(number - 8)
        if taken(queue) == [1_000]:
            return
    raise AssertionError("the retry got none of eight places")


def test_a_subscription_waits_once_and_not_while_it_has_a_place() -> None:
    queue = DeliveryQueue(8)
    for _ in range(2):
        queue.add(1, "a", has_failed=False)
        queue.add(1, "a", has_failed=True)
    assert len(queue) == 1
    assert taken(queue) == [1]
    queue.add(1, "a", has_failed=False)
    assert len(queue) == 0
    queue.leave(1)
    queue.add(1, "a", has_failed=False)
    assert taken(queue) == [1]


def test_what_waits_is_forgotten_and_what_has_a_place_is_not() -> None:
    queue = DeliveryQueue(8)
    queue.add(1, "a", has_failed=False)
    assert taken(queue) == [1]
    queue.add(2, "b", has_failed=False)
    queue.clear()
    assert (len(queue), queue.placed, queue.take()) == (0, 1, None)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 4), st.booleans(), st.booleans())))
def test_places_are_never_exceeded_and_everything_comes_to_its_turn(
    steps: list[tuple[int, int, bool, bool]],
) -> None:
    queue = DeliveryQueue(16)
    placed: dict[int, tuple[str, bool]] = {}
    waiting: dict[int, tuple[str, bool]] = {}

    def take() -> None:
        while (number := queue.take()) is not None:
            placed[number] = waiting.pop(number)
            of_host = Counter(host for host, _ in placed.values())
            assert len(placed) <= 16
            assert max(of_host.values()) <= 2
            assert sum(has_failed for _, has_failed in placed.values()) <= 8

    for number, host, has_failed, is_left in steps:
        if number not in waiting and number not in placed:
            waiting[number] = f"host{host}", has_failed
        queue.add(number, f"host{host}", has_failed=has_failed)
        take()
        if is_left and placed:
            gone = next(iter(placed))
            del placed[gone]
            queue.leave(gone)
        assert (len(queue), queue.placed) == (len(waiting), len(placed))
    while placed:
        for number in list(placed):
            del placed[number]
            queue.leave(number)
        take()
    assert not waiting
