"""Cursors: what keeps a cache in front of live reads from serving itself (protocol section 8.1).

A cursor is the number of a 20-second interval. A client echoes it, which makes requests within
one interval the same to a cache and those of the next a different one.
"""

from __future__ import annotations

from random import Random

INTERVAL_MS = 20_000
EPOCH_MS = 1_728_432_000_000  # 9 October 2024, 00:00:00 UTC
_MAX_JITTER_S = 3600


def current_cursor(now_ms: int) -> int:
    """The interval that `now_ms` (since the Unix epoch) lies in."""
    return max(0, (now_ms - EPOCH_MS) // INTERVAL_MS)


def next_cursor(now_ms: int, echoed: int | None, random: Random) -> int:
    """A cursor for a response: the current interval, but always beyond an echoed one."""
    current = current_cursor(now_ms)
    if echoed is None or echoed < current:
        return current
    jitter_ms = random.randint(1, _MAX_JITTER_S) * 1000
    return echoed + max(1, -(-jitter_ms // INTERVAL_MS))
