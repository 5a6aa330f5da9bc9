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
# Longer than any run takes.
_END_S = _BEGIN_S + 1000.0


class Deadlock(Exception):
    """Every task waits for another one and none for time to pass, or time passes in vain."""


class VirtualClock(trio.abc.Clock):
    """Stands still while any task can run, then jumps to the next deadline."""

    def __init__(self) -> None:
        self._now_s = _BEGIN_S
        self._stuck = 0

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        if deadline == float("inf"):
            # Trio's own last steps are announced on a socket; anything else would be for ever.
            self._stuck += 1
            if self._stuck > 100:
                raise Deadlock
            return 0.01
        self._stuck = 0
        self._now_s = max(self._now_s, deadline)
        if self._now_s > _END_S:
            raise Deadlock
        return 0.0


def run_virtually(seed: int, main: Callable[[], Awaitable[T]]) -> T:
    """Run `main` on a virtual clock; everything that happens follows from `seed`."""
    ids = Random(seed)
    with pytest.MonkeyPatch.context() as patch, _logging():
        # Trio has these for Hypothesis; the version is pinned because they are not public.
        patch.setattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        patch.setattr(_run, "_r", Random(seed))
        patch.setattr("streamd.storage.data_dir.uuid4", lambda: UUID(int=ids.getrandbits(128)))
        return trio.run(main, clock=VirtualClock())


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
