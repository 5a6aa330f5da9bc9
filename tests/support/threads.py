"""Threads of a node, stood in for by whatever runs its other blocking calls."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

import trio
from outcome import Outcome, acapture

from streamd.process.threads import OneThread, OpenThread, RunBlocking

T = TypeVar("T")
Args = TypeVarTuple("Args")


def in_order(run_blocking: RunBlocking) -> OpenThread:
    """Threads whose calls `run_blocking` makes, one at a time."""

    @asynccontextmanager
    async def open_thread() -> AsyncIterator[OneThread]:
        thread = _InOrder(run_blocking)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread.make_calls)
            yield thread
            nursery.cancel_scope.cancel()

    return open_thread


class _InOrder:
    def __init__(self, run_blocking: RunBlocking) -> None:
        self._run_blocking = run_blocking
        self._one = trio.CapacityLimiter(1)
        self._begun: deque[tuple[Callable[..., None], Callable[..., Any], tuple[Any, ...]]]
        self._begun = deque()
        self._something_begun = trio.lowlevel.ParkingLot()
        self._is_calling = False
        self._has_ended = False
        self._call_ended = trio.lowlevel.ParkingLot()

    async def __call__(
        self,
        call: Callable[[*Args], T],
        *args: *Args,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        return await self._run_blocking(call, *args, limiter=self._one)

    def begin(
        self, ended: Callable[[Outcome[T]], None], call: Callable[[*Args], T], *args: *Args
    ) -> None:
        self._begun.append((ended, call, args))
        self._something_begun.unpark()

    async def idle(self) -> None:
        while (self._begun or self._is_calling) and not self._has_ended:
            await self._call_ended.park()

    async def make_calls(self) -> None:
        """Make what is begun until cancelled. A call may end with its simulated process."""
        try:
            while True:
                while self._begun:
                    ended, call, args = self._begun.popleft()
                    self._is_calling = True
                    made = partial(self._run_blocking, call, *args, limiter=self._one)
                    ended(await acapture(made))
                    self._is_calling = False
                    self._call_ended.unpark_all()
                await self._something_begun.park()
        finally:
            self._has_ended = True
            self._call_ended.unpark_all()
