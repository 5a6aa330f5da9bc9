"""Trio as a simulation needs it: time jumps, and the schedule follows from the seed alone."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar
from uuid import UUID

import pytest
import structlog
import trio
from trio._core import _run

T = TypeVar("T")

_BEGIN_S = 1000.0
# Many times the length of a run.
MAX_S = 500.0
# How often the clock may be read while it stands still.
_MAX_LOOKS = 20_000_000
# How often Trio may find nothing to wait for: its own last steps are announced on a socket.
_MAX_IDLE = 100
# How often a run may get stuck while it ends.
_MAX_ENDS = 1000


class Stuck(Exception):
    """Every task waits for another one and none for time to pass, or time passes in vain."""


class VirtualClock(trio.abc.Clock):
    """Stands still while any task can run, then jumps to the next deadline.

    When a run does not come to its end, `on_stuck` is called, inside Trio's scheduler, which must
    not meet an exception there.
    """

    def __init__(self, on_stuck: Callable[[str], None]) -> None:
        self._on_stuck = on_stuck
        self._now_s = _BEGIN_S
        self._idle = 0
        self._looks = 0

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        self._looks += 1
        if self._looks > _MAX_LOOKS:
            self._looks = 0
            self._on_stuck("time stands still")
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        self._looks = 0
        if deadline == float("inf"):
            self._idle += 1
            if self._idle > _MAX_IDLE:
                self._idle = 0
                self._on_stuck("everyone waits for another one")
            return 0.01
        self._idle = 0
        if deadline - _BEGIN_S > MAX_S:
            self._on_stuck(f"not done after {MAX_S:g} s")
        self._now_s = max(self._now_s, deadline)
        return 0.0


class _Guard:
    """Ends a stuck run as an orderly failure: the next one must find Trio, and everything patched,
    as before."""

    def __init__(self) -> None:
        self._scope = trio.CancelScope()
        self._why: str | None = None
        self._calls = 0

    async def run(self, main: Callable[[], Awaitable[T]]) -> T:
        """Raises `Stuck`."""
        with self._scope:
            return await main()
        raise Stuck(self._why)

    def end(self, why: str) -> None:
        """Cancel everything, including shielded scopes."""
        self._why = self._why or why
        self._calls += 1
        if self._calls > _MAX_ENDS:
            raise Stuck(f"{self._why}, and someone goes on after being cancelled")
        self._scope.cancel()
        statuses: list[Any] = [self._scope._cancel_status]
        for status in statuses:
            status._scope.shield = False
            statuses += status._children


def run_virtually(seed: int, main: Callable[[], Awaitable[T]]) -> T:
    """Run `main` on a virtual clock; everything that happens follows from `seed`.

    Raises `Stuck` when it does not end.
    """
    ids = Random(seed)
    guard = _Guard()
    with pytest.MonkeyPatch.context() as patch, _logging():
        # Trio has these for Hypothesis; the version is pinned because they are not public.
        patch.setattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        patch.setattr(_run, "_r", Random(seed))
        patch.setattr("streamd.storage.data_dir.uuid4", lambda: UUID(int=ids.getrandbits(128)))
        return trio.run(guard.run, main, clock=VirtualClock(guard.end))


@contextmanager
def _logging() -> Iterator[None]:
    """Nothing is logged, or with SIM_LOG=1 everything, at its virtual time."""
    before = structlog.get_config()
    loud = bool(os.environ.get("SIM_LOG"))
    structlog.configure(
        processors=[_stamp, structlog.dev.ConsoleRenderer(colors=False)],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.INFO if loud else logging.CRITICAL
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        yield
    finally:
        structlog.configure(**before)


def _stamp(_: Any, __: str, event: Any) -> Any:
    event["event"] = f"{trio.current_time() - _BEGIN_S:9.4f} {event['event']}"
    return event
