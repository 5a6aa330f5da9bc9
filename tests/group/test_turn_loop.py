"""When a group takes its turns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from streamd.group.turn_loop import TurnLoop


class Taken(TurnLoop):
    """Counts the turns; `again` wakes during the next one."""

    def __init__(self) -> None:
        super().__init__(self._count)
        self.count = 0
        self.again = False

    def _count(self, _nursery: trio.Nursery) -> None:
        self.count += 1
        if self.again:
            self.again = False
            self.wake()


@asynccontextmanager
async def running() -> AsyncIterator[Taken]:
    turns = Taken()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run, nursery)
        await trio.testing.wait_all_tasks_blocked()
        assert turns.count == 1, "the first turn needs no wake"
        turns.count = 0
        yield turns
        nursery.cancel_scope.cancel()


async def test_many_wakes_cause_one_turn_in_the_task() -> None:
    async with running() as turns:
        for _ in range(3):
            turns.wake()
        assert turns.count == 0
        await trio.testing.wait_all_tasks_blocked()
        assert turns.count == 1


async def test_what_wakes_during_a_turn_gets_another_one() -> None:
    async with running() as turns:
        turns.again = True
        turns.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert turns.count == 2


async def test_a_turn_taken_now_is_left_to_the_task_if_that_is_about_to_take_one() -> None:
    async with running() as turns:
        turns.now()
        assert turns.count == 1
        turns.wake()
        turns.now()
        assert turns.count == 1
        await trio.testing.wait_all_tasks_blocked()
        assert turns.count == 2


async def test_a_block_takes_one_turn_at_its_end_and_none_if_nothing_happened() -> None:
    async with running() as turns:
        with turns:
            turns.wake()
            turns.wake()
            assert turns.count == 0
        assert turns.count == 1
        with turns:
            pass
        await trio.testing.wait_all_tasks_blocked()
        assert turns.count == 1


async def test_a_block_leaves_a_turn_to_the_task_that_was_woken_before() -> None:
    async with running() as turns:
        turns.wake()
        with turns:
            turns.wake()
        assert turns.count == 0
        await trio.testing.wait_all_tasks_blocked()
        assert turns.count == 1


async def test_a_block_that_fails_still_takes_its_turn() -> None:
    def fail(turns: TurnLoop) -> None:
        with turns:
            turns.wake()
            raise ZeroDivisionError

    async with running() as turns:
        with pytest.raises(ZeroDivisionError):
            fail(turns)
        assert turns.count == 1


async def test_what_happens_after_a_block_wakes_the_task_again() -> None:
    async with running() as turns:
        with turns:
            turns.wake()
        turns.again = True
        turns.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert turns.count == 3


async def test_no_turn_is_taken_outside_a_run() -> None:
    turns = Taken()
    turns.now()
    turns.wake()
    with turns:
        turns.wake()
    assert turns.count == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run, nursery)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    turns.now()
    assert turns.count == 1


async def test_a_turn_that_fails_ends_the_run_at_once_also_in_another_task() -> None:
    count = 0
    failing = trio.Event()
    stored_half = False

    def fail(_nursery: trio.Nursery) -> None:
        nonlocal count
        count += 1
        if count > 1:
            failing.set()
            raise ZeroDivisionError

    async def store() -> None:
        nonlocal stored_half
        await failing.wait()
        await trio.lowlevel.checkpoint()
        stored_half = True

    async def run() -> None:
        with pytest.RaisesGroup(ZeroDivisionError):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(turns.run, nursery)
                nursery.start_soon(store)

    turns = TurnLoop(fail)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        with turns:
            turns.wake()
        turns.wake()
        turns.now()
        assert count == 2, "none follows the one that failed"
    assert not stored_half
