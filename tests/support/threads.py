"""Threads of a node, stood in for by whatever runs its other blocking calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar, TypeVarTuple

import trio

from streamd.process.threads import OneThread, OpenThread, RunBlocking

T = TypeVar("T")
Args = TypeVarTuple("Args")


def in_order(run_blocking: RunBlocking) -> OpenThread:
    """Threads whose calls `run_blocking` makes, one at a time."""

    @asynccontextmanager
    async def open_thread() -> AsyncIterator[OneThread]:
        yield _InOrder(run_blocking)

    return open_thread


class _InOrder:
    """A call begins when its end is waited for."""

    def __init__(self, run_blocking: RunBlocking) -> None:
        self._run_blocking = run_blocking
        self._one = trio.CapacityLimiter(1)

    async def __call__(
        self,
        call: Callable[[*Args], T],
        *args: *Args,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        return await self.begin(call, *args)()

    def begin(self, call: Callable[[*Args], T], *args: *Args) -> Callable[[], Awaitable[T]]:
        return partial(self._run_blocking, call, *args, limiter=self._one)
