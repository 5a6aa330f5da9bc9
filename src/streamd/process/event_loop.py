"""Keep the event loop on time: decide when Python collects garbage, and measure the pauses.

Python's collector looks for cycles whenever enough objects have been allocated, and a look through
all objects stops the event loop for 50 ms and more, as often as ten times in eight seconds of
appends. Reference counts free nearly everything here, so there is little to find. In a server:

- What the start left lives as long as the process and is never looked at again (`gc.freeze`).
- Young objects are looked through as Python does it, but less often: many at once are cheaper, and
  most are gone by then.
- All objects are looked through only by `keep_on_time`: when the loop rests, or, if it never does,
  so seldom that the pauses take a thousandth of the time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NoReturn

import trio

from streamd.process.history import INTERVAL_S
from streamd.process.metrics import Metrics

# How often the loop's lag is measured.
_INTERVAL_S = 0.1
_MINUTE_S = 60.0
# The loop rests if it worked for less than this part of the last interval.
_REST = 0.05
# Objects allocated and not freed before the young ones are looked through, and how often that is
# done before the middle-aged ones are looked through as well.
_YOUNG = 10_000
_MIDDLE = 20
# Python must not look through all objects by itself. The thresholds are C integers.
_NEVER = 1_000_000_000
# A busy loop is stopped for a look through all objects so seldom that the last one took this part
# of the time since.
_BUSY_SHARE = 0.001


@contextmanager
def seldom_collecting(metrics: Metrics) -> Iterator[None]:
    """Inside, Python looks through all objects only when `keep_on_time` lets it; pauses are
    measured in ``streamd_gc_pause_seconds``. Begin it when everything is imported."""
    thresholds = gc.get_threshold()
    started = 0.0

    def measure(phase: Literal["start", "stop"], info: dict[str, int]) -> None:
        nonlocal started
        if phase == "start":
            started = time.perf_counter()
        else:
            metrics.gc_pause.observe(time.perf_counter() - started)

    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
    gc.callbacks.append(measure)
    try:
        yield
    finally:
        gc.callbacks.remove(measure)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


async def keep_on_time(metrics: Metrics) -> None:
    """Measure the event loop's lag for ever, and look through all objects when there is time."""
    took_s = 0.0
    collected_at = trio.current_time()
    while True:
        due = trio.current_time() + _INTERVAL_S
        worked = time.thread_time()
        await trio.sleep_until(due)
        now = trio.current_time()
        metrics.loop_lag.observe(max(0.0, now - due))
        is_resting = time.thread_time() - worked < _REST * _INTERVAL_S
        is_affordable = took_s < _BUSY_SHARE * (now - collected_at)
        # How often the middle-aged ones were looked through since all were: what survived is old.
        if gc.get_count()[2] and (is_resting or is_affordable):
            begun = time.perf_counter()
            gc.collect()
            took_s, collected_at = time.perf_counter() - begun, now


async def note_history(metrics: Metrics, clock_ms: Callable[[], int]) -> NoReturn:
    """Note every few seconds what the console's charts show. `clock_ms` is wall time."""
    while True:
        metrics.last_hour.note(metrics, clock_ms(), trio.current_time())
        await trio.sleep(INTERVAL_S)


async def note_each_minute(metrics: Metrics) -> NoReturn:
    """Note once a minute how long synced writes took, so that the last hour can be shown."""
    while True:
        await trio.sleep(_MINUTE_S)
        metrics.recent_fsyncs.note()
