"""Cursors, which keep a cache from answering live reads for ever (protocol section 8.1).

A cursor is the number of a 20-second interval. Clients echo it, so that all requests within one
interval are the same to a cache, and those of the next interval are not.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

INTERVAL_MS = 20_000
EPOCH_MS = 1_728_432_000_000  # 9 October 2024, 00:00:00 UTC
_MAX_JITTER_S = 3600


def current_cursor(now_ms: int) -> int:
    """The interval that `now_ms` (since the Unix epoch) lies in."""
    return max(0, (now_ms - EPOCH_MS) // INTERVAL_MS)


class Cursors:
    """The cursors of responses. `clock_ms` is wall time in ms since the epoch."""

    def __init__(self, clock_ms: Callable[[], int], random: Random) -> None:
        self._clock_ms = clock_ms
        self._random = random

    def next(self, echoed: int | None) -> int:
        """The current interval. If a client `echoed` that or a later one, a random one up to an
        hour after the echoed one, so that its cursors never repeat."""
        current = current_cursor(self._clock_ms())
        if echoed is None or echoed < current:
            return current
        jitter_ms = self._random.randint(1, _MAX_JITTER_S) * 1000
        following = echoed + -(-jitter_ms // INTERVAL_MS)
        assert following > echoed, "a cursor never repeats"
        return following
