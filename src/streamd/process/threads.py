"""The only ways for blocking work to leave the event loop.

A call by `in_thread` costs about 50 µs of processor time; one by `own_thread` less than half of it,
which every write to the log pays.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from queue import SimpleQueue
from sys import byteorder
from typing import Any, Protocol, TypeVar, TypeVarTuple, cast

import outcome
import trio

from streamd.process.attending import attend

T = TypeVar("T")
Args = TypeVarTuple("Args")

# From Python 3.12 on, a decoder follows ten thousand levels before it refuses to, which takes 3 MiB
# of stack. A thread has 2 MiB if the stack is unlimited, and 128 KiB with musl: a body of 10 KiB,
# `[[[[…`, ended the process. Memory is allocated only as it is touched.
_STACK_BYTES = 16 * 1024 * 1024
threading.stack_size(_STACK_BYTES)
_M_ARENA_MAX = -8


class RunBlocking(Protocol):
    """Runs a blocking call elsewhere and waits for it.

    The call is never abandoned: a cancelled caller still waits for it, because nothing may build on
    a write whose end was not seen. `limiter` bounds how many such calls run at once; a limiter of
    one token also keeps them in order.
    """

    async def __call__(
        self,
        call: Callable[[*Args], T],
        /,
        *args: *Args,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T: ...


class OneThread(RunBlocking, Protocol):
    """`RunBlocking` in one thread, a call at a time; a `limiter` is not looked at."""

    def begin(
        self, ended: Callable[[outcome.Outcome[T]], None], call: Callable[[*Args], T], *args: *Args
    ) -> None:
        """Make a call after those that were begun before it; then call `ended`, which must neither
        wait nor raise.

        A task that waits for the call costs two passes of Trio's loop. `ended` is called by no task
        (`attending.attend`).
        """
        ...

    async def idle(self) -> None:
        """Wait until the calls that were begun have ended, and `ended` was called for each."""
        ...


_Ended = Callable[[outcome.Outcome[Any]], None]

# What an eventfd is increased by.
_ONE = (1).to_bytes(8, byteorder)

OpenThread = Callable[[], AbstractAsyncContextManager[OneThread]]


# `RunBlocking` on Trio's worker threads.
in_thread: RunBlocking = trio.to_thread.run_sync
# As `in_thread`, but a cancelled caller abandons the call, which ends by itself; the limiter still
# counts it. For calls that may be repeated and that wait for another machine.
in_thread_or_left = cast("RunBlocking", partial(trio.to_thread.run_sync, abandon_on_cancel=True))


@asynccontextmanager
async def own_thread() -> AsyncIterator[OneThread]:
    """`OneThread` in a thread of its own, in the order in which the calls were made.

    The context ends after the calls that were begun in it; what their ends would set off is left
    out.
    """
    thread = _OwnThread()
    async with trio.open_nursery() as nursery:
        try:
            # A task that waits for a call cannot be cancelled, so no call is made before its end
            # can be reported: that needs descriptors, of which there may be too few.
            await nursery.start(thread.report_ends)
            yield thread
        finally:
            thread.close()


class _OwnThread:
    """The thread signals the end of a call through a descriptor that is attended to like a socket:
    Trio's own way takes a lock, a callback and another task."""

    def __init__(self) -> None:
        self._turn = trio.Lock()
        self._calls: SimpleQueue[tuple[_Ended, Callable[..., Any], tuple[Any, ...]] | None]
        self._calls = SimpleQueue()
        self._results: SimpleQueue[tuple[_Ended, outcome.Outcome[Any]]] = SimpleQueue()
        self._ended = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Calls that nobody abandons may be waited for after a cancellation.
        self._reporting = trio.CancelScope(shield=True)
        self._thread = threading.Thread(target=self._run, name="streamd-log", daemon=True)
        self._thread.start()

    async def __call__(
        self,
        call: Callable[[*Args], T],
        *args: *Args,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        async with self._turn:
            wake = partial(trio.lowlevel.reschedule, trio.lowlevel.current_task())
            self.begin(wake, call, *args)
            result: T = await trio.lowlevel.wait_task_rescheduled(_never_abort)
        return result

    def begin(
        self, ended: Callable[[outcome.Outcome[T]], None], call: Callable[[*Args], T], *args: *Args
    ) -> None:
        self._calls.put((ended, call, args))

    async def idle(self) -> None:
        await self(_nothing)

    async def report_ends(self, task_status: trio.TaskStatus[None]) -> None:
        """Call what the ends of calls set off, until `close`. Raises `OSError`."""
        try:
            with self._reporting:
                await attend(self._ended, self._report, task_status)
        finally:
            os.close(self._ended)

    def _report(self) -> None:
        # Each result was put before the descriptor was increased.
        for _ in range(os.eventfd_read(self._ended)):
            ended, result = self._results.get_nowait()
            ended(result)

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join()
        self._reporting.cancel()

    def _run(self) -> None:
        while (begun := self._calls.get()) is not None:
            ended, call, args = begun
            self._results.put((ended, outcome.capture(call, *args)))
            # `writev`, because tests make `write` fail.
            os.writev(self._ended, [_ONE])


def _nothing() -> None:
    pass


def _never_abort(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


def share_one_heap() -> None:
    """Let all threads allocate from one heap if the C library is glibc; else do nothing.

    By default each thread gets a heap of its own. Bytes that one thread allocates and another
    frees, such as everything written to disk here, then accumulate as holes in heaps that no thread
    fills: passing a snapshot of 128 MiB through leaked some 10 MiB.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
