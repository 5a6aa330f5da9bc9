"""Work that goes on while nobody waits for it, on asyncio or Trio.

A caller whose wait is cancelled may come back. What it waited for, such as a connection that is
being made or an answer that has half arrived, would be lost if its own task did the work: so the
work has a task that no caller owns. It ends by itself, by `cancel`, or with the event loop.
"""

from __future__ import annotations

import sys
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Generic, TypeVar

import anyio

T = TypeVar("T")

Job = Callable[[], Awaitable[Any]]

# asyncio keeps no task alive by itself.
_asyncio_tasks: set[Any] = set()


class Background(Generic[T]):
    """A job that was begun. Its waits may be cancelled and repeated."""

    def __init__(self, job: Callable[[], Awaitable[T]]) -> None:
        self._scope = anyio.CancelScope()
        self._over = anyio.Event()
        self._result: T | None = None
        self._failure: BaseException | None = None
        spawn = _spawn_in_trio if _is_trio() else _spawn_in_asyncio
        spawn(lambda: self._run(job))

    async def _run(self, job: Callable[[], Awaitable[T]]) -> None:
        try:
            with self._scope:
                self._result = await job()
            if self._scope.cancelled_caught:
                self._failure = anyio.ClosedResourceError()
        except Exception as failure:
            self._failure = failure
        except BaseException as failure:  # The event loop ends.
            self._failure = failure
            raise
        finally:
            self._over.set()

    async def wait(self) -> None:
        """Wait until the job has ended."""
        await self._over.wait()

    def result(self) -> T:
        """What the job returned, or raised, once it has ended."""
        if self._failure is not None:
            raise self._failure
        return self._result  # type: ignore[return-value]

    async def cancel(self) -> None:
        """End the job, and wait until it has ended."""
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._over.wait()


class Loop:
    """The event loop that this is made in, for calls from outside it."""

    def __init__(self) -> None:
        self._call: Callable[..., object]
        if _is_trio():
            from trio.lowlevel import current_trio_token

            self._call, self._spawn = current_trio_token().run_sync_soon, _spawn_in_trio
        else:
            self._call, self._spawn = get_running_loop().call_soon_threadsafe, _spawn_in_asyncio

    def begin(self, job: Job) -> None:
        """Do a job there whose outcome nobody needs. Any thread may call this, and so may the
        garbage collector; nothing happens if the loop has ended."""

        async def quietly() -> None:
            with suppress(Exception):
                await job()

        with suppress(RuntimeError):
            self._call(self._spawn, quietly)


def _is_trio() -> bool:
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_task()


def _spawn_in_trio(job: Job) -> None:
    from trio.lowlevel import spawn_system_task

    spawn_system_task(job, context=copy_context())


def _spawn_in_asyncio(job: Job) -> None:
    task = get_running_loop().create_task(_coroutine(job))
    _asyncio_tasks.add(task)
    task.add_done_callback(_asyncio_tasks.discard)


async def _coroutine(job: Job) -> None:
    await job()
