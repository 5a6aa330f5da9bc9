"""Work that a cancelled caller waits for, so that a file and the rows never part."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio


async def finish(work: Callable[[], Awaitable[None]]) -> None:
    """Do the work to its end; if the caller is cancelled meanwhile, that comes after it.

    A shield alone does not do it: asyncio's `Task.cancel` passes through those of anyio. It would
    end the wait for a thread, and the caller would go on while the thread still writes. So the
    work has a task of its own, which nobody outside can cancel.
    """
    failures: list[Exception] = []

    async def shielded() -> None:
        with anyio.CancelScope(shield=True):
            try:
                await work()
            except Exception as failure:
                failures.append(failure)

    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shielded)
    if failures:
        raise failures[0]
