"""Threads of a node, stood in for by whatever runs its other blocking calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar, TypeVarTuple

import trio

from streamd.blocking import OpenThread, RunBlocking

T = TypeVar("T")
Args = TypeVarTuple("Args")


def in_order(run_blocking: RunBlocking) -> OpenThread:
    """Threads whose calls `run_blocking` makes, one at a time."""

    @asynccontextmanager
    async def open_thread() -> AsyncIterator[RunBlocking]:
        one = trio.CapacityLimiter(1)

        async def run(
            call: Callable[[*Args], T],
            *args: *Args,
            limiter: trio.CapacityLimiter | None = None,
        ) -> T:
            return await run_blocking(call, *args, limiter=one)

        yield run

    return open_thread
