"""Descriptors that are attended to, with a pass of Trio's loop only if it has something to do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio
import trio.testing
from trio._core._run import SystemClock

from streamd.process.attending import AttendingClock, attend


class Signal:
    """An eventfd, and how often it was attended to."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.calls = 0
        self.then: Callable[[], object] = lambda: None

    def raise_(self) -> None:
        os.eventfd_write(self.descriptor, 1)

    def take(self) -> None:
        os.eventfd_read(self.descriptor)
        self.calls += 1
        self.then()

    async def attend(self) -> None:
        await attend(self.descriptor, self.take)


@contextmanager
def signals(count: int) -> Iterator[list[Signal]]:
    made = [Signal() for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            os.close(one.descriptor)


class Passes(trio.abc.Instrument):
    """Counts how often Trio looks for what is ready."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


@contextmanager
def counted_passes() -> Iterator[Passes]:
    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    try:
        yield passes
    finally:
        trio.lowlevel.remove_instrument(passes)


@pytest.fixture(params=["attending", "Trio's own"])
def clock(request: pytest.FixtureRequest) -> trio.abc.Clock:
    """The server's clock, and one that attends to nothing: Trio does."""
    return AttendingClock() if request.param == "attending" else SystemClock()


class Fault(Exception):
    pass


def _fail() -> None:
    raise Fault


async def test_calls_that_lead_to_each_other_take_no_pass_of_trio_each(
    clock: trio.abc.Clock,
) -> None:
    with signals(2) as (one, other):
        done = trio.Event()

        def again() -> None:
            done.set() if one.calls == 100 else other.raise_()

        one.then, other.then = again, one.raise_
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.attend)
            nursery.start_soon(other.attend)
            await trio.testing.wait_all_tasks_blocked()
            with counted_passes() as passes:
                one.raise_()
                await done.wait()
            nursery.cancel_scope.cancel()
        assert (one.calls, other.calls) == (100, 99)
        assert passes.count < 10 or not isinstance(clock, AttendingClock)


@pytest.mark.parametrize("wakes_by", ["task", "deadline", "thread", "descriptor", "cancellation"])
async def test_what_trio_has_to_do_is_done_although_a_descriptor_is_always_ready(
    wakes_by: str, clock: trio.abc.Clock
) -> None:
    with signals(2) as (busy, other):
        begun, woken = trio.Event(), trio.Event()

        def raise_again(then: Callable[[], object] = lambda: None) -> None:
            busy.raise_()
            then()
            # Releases of the interpreter's lock that last no time starve other threads.
            time.sleep(0.0001)

        busy.then = partial(raise_again, begun.set)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy.attend)
            busy.raise_()
            await begun.wait()
            busy.then = raise_again
            if wakes_by == "task":
                busy.then = partial(raise_again, woken.set)
                await woken.wait()
            elif wakes_by == "deadline":
                await trio.sleep(0.01)
            elif wakes_by == "thread":
                await trio.to_thread.run_sync(partial(trio.from_thread.run_sync, woken.set))
                assert woken.is_set()
            elif wakes_by == "descriptor":
                nursery.start_soon(trio.to_thread.run_sync, other.raise_)
                await trio.lowlevel.wait_readable(other.descriptor)
            else:
                busy.then = partial(raise_again, nursery.cancel_scope.cancel)
                await trio.sleep_forever()
            nursery.cancel_scope.cancel()


async def test_a_call_may_cancel_its_own_task(clock: trio.abc.Clock) -> None:
    with signals(1) as [one], trio.CancelScope() as scope:
        one.then = scope.cancel
        one.raise_()
        await one.attend()
    assert scope.cancelled_caught
    assert one.calls == 1


async def test_each_task_gets_what_its_own_call_raises(clock: trio.abc.Clock) -> None:
    raised: list[Signal] = []

    async def fail(one: Signal) -> None:
        with pytest.raises(Fault):
            await one.attend()
        raised.append(one)

    with signals(3) as (one, other, whole):
        one.then = other.then = _fail
        async with trio.open_nursery() as nursery:
            for failing in one, other:
                nursery.start_soon(fail, failing)
                await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(whole.attend)
            await trio.testing.wait_all_tasks_blocked()
            for expected in other, one:
                expected.raise_()
                await trio.testing.wait_all_tasks_blocked()
                assert raised[-1] is expected
            whole.raise_()
            await trio.testing.wait_all_tasks_blocked()
            assert whole.calls == 1
            nursery.cancel_scope.cancel()


async def test_no_call_is_made_for_a_cancelled_task(clock: trio.abc.Clock) -> None:
    with signals(2) as (one, other):
        scope = trio.CancelScope()

        async def attend_within() -> None:
            with scope:
                await other.attend()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.attend)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(attend_within)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            other.raise_()
            await trio.testing.wait_all_tasks_blocked()
            assert other.calls == 0
            nursery.cancel_scope.cancel()


async def test_another_clock_jumps_as_before(autojump_clock: trio.testing.MockClock) -> None:
    with signals(1) as [one]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.attend)
            one.raise_()
            before = trio.current_time()
            await trio.sleep(1000)
            assert trio.current_time() - before == 1000
            assert one.calls == 1
            nursery.cancel_scope.cancel()
