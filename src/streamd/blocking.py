"""The only way for blocking work to leave the event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar, TypeVarTuple

import trio

T = TypeVar("T")
Args = TypeVarTuple("Args")

# From Python 3.12 on, a decoder follows ten thousand levels before it refuses to, which takes 3 MiB
# of stack. A thread has 2 MiB if the stack is unlimited, and 128 KiB with musl: a body of 10 KiB,
# `[[[[…`, ended the process. Memory is allocated only as it is touched.
_STACK_BYTES = 16 * 1024 * 1024
threading.stack_size(_STACK_BYTES)


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
    """As `in_thread`, but a cancelled caller leaves the call to end by itself: for calls that may
    be repeated, and that wait for another machine. The limiter still counts the call."""
    return await trio.to_thread.run_sync(call, *args, limiter=limiter, abandon_on_cancel=True)
