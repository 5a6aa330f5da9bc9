"""The only ways for blocking work to leave the event loop.

A call by `in_thread` costs about 50 µs of processor time; one by `own_thread` less than half of it,
which every write to the log pays.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from queue import SimpleQueue
from sys import byteorder
from typing import Any, Protocol, TypeVar, TypeVarTuple

import outcome
import trio

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
        *args: *Args,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T: ...


class OneThread(RunBlocking, Protocol):
    """`RunBlocking` in one thread, a call at a time; a `limiter` is not looked at."""

    def begin(self, call: Callable[[*Args], T], *args: *Args) -> Callable[[], Awaitable[T]]:
        """Begin a call at once if no other is under way. Returns what waits for its end, which must
        be called before the next call can begin.

        A task that is woken for the call would begin it a pass of Trio's loop later.
        """
        ...


# What an eventfd is increased by.
_ONE = (1).to_bytes(8, byteorder)

OpenThread = Callable[[], AbstractAsyncContextManager[OneThread]]


async def in_thread(
    call: Callable[[*Args], T],
    *args: *Args,
    limiter: trio.CapacityLimiter | None = None,
) -> T:
    """`RunBlocking` on Trio's worker threads."""
    return await trio.to_thread.run_sync(call, *args, limiter=limiter)


async def in_thread_or_left(
    call: Callable[[*Args], T],
    *args: *Args,
    limiter: trio.CapacityLimiter | None = None,
) -> T:
    """Run a call in a thread; a cancelled caller abandons it, and the call ends by itself. For
    calls that may be repeated and that wait for another machine. The limiter still counts the
    call."""
    return await trio.to_thread.run_sync(call, *args, limiter=limiter, abandon_on_cancel=True)


@asynccontextmanager
async def own_thread() -> AsyncIterator[OneThread]:
    """`OneThread` in a thread of its own, in the order in which the calls were made.

    All calls must have ended when the context does.
    """
    thread = _OwnThread()
    try:
        yield thread
    finally:
        thread.close()


class _OwnThread:
    """The thread signals the end of a call through a descriptor, on which a task waits as on a
    socket: Trio's own way takes a lock, a callback and another task."""

    def __init__(self) -> None:
        self._free = trio.Semaphore(1)
        self._calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._outcomes: SimpleQueue[outcome.Outcome[Any]] = SimpleQueue()
        self._ended = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="streamd-log", daemon=True)
        self._thread.start()

    async def __call__(
        self,
        call: Callable[[*Args], T],
        *args: *Args,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        return await self.begin(call, *args)()

    def begin(self, call: Callable[[*Args], T], *args: *Args) -> Callable[[], Awaitable[T]]:
        try:
            self._free.acquire_nowait()
        except trio.WouldBlock:
            return partial(self._in_turn, lambda: call(*args))
        self._calls.put(lambda: call(*args))
        return self._end

    async def _in_turn(self, call: Callable[[], Any]) -> Any:
        await self._free.acquire()
        self._calls.put(call)
        return await self._end()

    async def _end(self) -> Any:
        """Wait for the call under way."""
        try:
            # Wait for the descriptor, not for the outcome, which is put a moment earlier.
            with trio.CancelScope(shield=True):
                await trio.lowlevel.wait_readable(self._ended)
            os.eventfd_read(self._ended)
            result = self._outcomes.get_nowait()
        finally:
            self._free.release()
        return result.unwrap()

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join()
        os.close(self._ended)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            self._outcomes.put(outcome.capture(call))
            # `writev`, because tests make `write` fail.
            os.writev(self._ended, [_ONE])


def share_one_heap() -> None:
    """Let all threads allocate from one heap if the C library is glibc; else do nothing.

    By default each thread gets a heap of its own. Bytes that one thread allocates and another
    frees, such as everything written to disk here, then accumulate as holes in heaps that no thread
    fills: passing a snapshot of 128 MiB through leaked some 10 MiB.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
