"""Waits for descriptors without a pass of Trio's loop for each time that one is readable.

A task that waits for a descriptor costs a pass each time, and a call of the system to wait again:
of a lone client's append, which waits for a socket and for the disk, that was a third. Here the
tasks say which call to make, and Trio's clock makes it. Trio asks its clock how long to sleep when
no task can run; `AttendingClock` sleeps in its place, makes calls meanwhile, and returns as soon as
Trio has something to do: a task can run, a deadline has come, or one of Trio's own descriptors is
ready.

    Trio's epoll ──▶ `_inner` ──▶ each descriptor       while some task can run, or by another clock
    `_outer`     ──▶ each descriptor, Trio's epoll      while Trio would sleep

Trio has no public way to ask for the last two. Its version is pinned exactly, and in the server
only this module looks inside.
"""

from __future__ import annotations

import math
import select
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import NamedTuple, NoReturn

import trio
from outcome import Error
from trio._core._io_epoll import EpollIOManager
from trio._core._run import GLOBAL_RUN_CONTEXT

# One wait tells of so many descriptors at most; the others follow.
_MOST = 16

# What is ready, as an epoll instance tells it.
_Ready = Sequence[tuple[int, int]]


async def attend(
    descriptor: int,
    call: Callable[[], None],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Make a call, which must not wait, whenever a descriptor is readable; until cancelled.

    The descriptor must stay open so long. The call is made by no task: it may wake tasks, start
    them and cancel scopes, but neither enter a scope nor ask for its task. It has started once
    nothing but the call can fail. Raises what the call raises, and `OSError` before.
    """
    try:
        attendance = _attendance.get()
    except LookupError:
        attendance = _Attendance()
        _attendance.set(attendance)
    await attendance.attend(descriptor, call, task_status)


class AttendingClock(trio.abc.Clock):
    """Real time, as that of Trio's own clock. For one run of Trio."""

    def __init__(self) -> None:
        self.attendance: _Attendance | None = None

    def start_clock(self) -> None:
        """Nothing is to be done."""

    def current_time(self) -> float:
        """Seconds, since some moment."""
        return perf_counter()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """How long Trio is to sleep, at most until `deadline`, after some time in its place."""
        if self.attendance is not None:
            return self.attendance.sleep_time(deadline)
        return deadline - perf_counter()


class _Attended(NamedTuple):
    """A call, and the task that asked for it."""

    call: Callable[[], None]
    task: trio.lowlevel.Task


class _Attendance:
    """What is attended to in one run of Trio."""

    def __init__(self) -> None:
        self._runner = GLOBAL_RUN_CONTEXT.runner
        manager = self._runner.io_manager
        assert isinstance(manager, EpollIOManager)
        self._trio = manager._epoll
        self._trio_descriptor = self._trio.fileno()
        self._attended: dict[int, _Attended] = {}
        self._inner, self._outer = select.epoll(), select.epoll()
        self._outer.register(self._trio_descriptor, select.EPOLLIN)
        trio.lowlevel.spawn_system_task(self._make_calls_beside_tasks)

    async def attend(
        self, descriptor: int, call: Callable[[], None], task_status: trio.TaskStatus[None]
    ) -> NoReturn:
        """As the function of that name."""
        assert descriptor not in self._attended, "one task attends to a descriptor"

        def abort(_: object) -> trio.lowlevel.Abort:
            self._attended.pop(descriptor, None)  # No call any more.
            return trio.lowlevel.Abort.SUCCEEDED

        with ExitStack() as undoing:
            self._attended[descriptor] = _Attended(call, trio.lowlevel.current_task())
            undoing.callback(self._attended.pop, descriptor, None)
            for epoll in self._inner, self._outer:
                epoll.register(descriptor, select.EPOLLIN)
                undoing.callback(epoll.unregister, descriptor)
            task_status.started()
            await trio.lowlevel.wait_task_rescheduled(abort)
        raise AssertionError("only an error or a cancellation ends this")

    async def _make_calls_beside_tasks(self) -> None:
        clock = self._runner.clock
        if isinstance(clock, AttendingClock):
            clock.attendance = self
        try:
            while True:
                await trio.lowlevel.wait_readable(self._inner.fileno())
                self._make_calls(self._inner.poll(0, _MOST))
        finally:
            if isinstance(clock, AttendingClock):
                clock.attendance = None
            self._inner.close()
            self._outer.close()

    def _make_calls(self, ready: _Ready) -> None:
        for descriptor, _ in ready:
            attended = self._attended.get(descriptor)
            if attended is None:
                continue  # Trio's, or that of a task that is about to end.
            try:
                attended.call()
            except Exception as error:
                del self._attended[descriptor]
                trio.lowlevel.reschedule(attended.task, Error(error))

    def sleep_time(self, deadline: float) -> float:
        """How long Trio is to sleep: until `deadline`, or no more since it has something to do."""
        if self._runner.waiting_for_idle:  # Tests wait so until nothing happens.
            return deadline - perf_counter()
        is_first = True
        timeout_s = deadline - perf_counter()
        while timeout_s > 0:
            ready = self._outer.poll(None if timeout_s == math.inf else timeout_s, _MOST)
            is_trios = self._trio_descriptor in dict(ready)
            if len(ready) > is_trios:
                if is_first:
                    # The task that waits for `_inner` does so while no other can run. From now on
                    # Trio's epoll must not tell of what `_outer` tells of, and may just have.
                    self._trio.modify(self._inner.fileno(), 0)
                    is_first = is_trios = False
                self._make_calls(ready)
            if not ready or is_trios or self._runner.runq:
                break
            timeout_s = self._runner.deadlines.next_deadline() - perf_counter()
        if not is_first:
            self._trio.modify(self._inner.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
        return 0


_attendance: trio.lowlevel.RunVar[_Attendance] = trio.lowlevel.RunVar("attendance")
