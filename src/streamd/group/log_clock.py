"""Log time as the leader stamps it into entries."""

from __future__ import annotations

from collections.abc import Callable

import trio


class LogClock:
    """The wall clock, in ms since the epoch, which never goes back.

    If it lags what was stamped already, by an earlier leader or before it was set back, log
    time goes on at half its speed until the clock has caught up. If it stood still, no lease and no
    window would end for as long as that lead is: a leader whose clock is an hour ahead would stop
    its successors' time for an hour.
    """

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        # Since when the clock lags, by Trio's clock, and the stamp that showed it.
        self._lagging: tuple[float, int] | None = None

    def now_ms(self, stamped_ms: int) -> int:
        """The time now, `stamped_ms` at the earliest."""
        wall_ms = self._wall_ms()
        if self._lagging is None and wall_ms >= stamped_ms:
            return wall_ms
        now_s = trio.current_time()
        since_s, since_ms = self._lagging or (now_s, stamped_ms)
        slowed_ms = since_ms + int((now_s - since_s) * 1000 / 2)
        # Not for an equal one: the fractions of many calls would be lost, and time stand still.
        if stamped_ms > slowed_ms:
            since_s, since_ms = now_s, stamped_ms
            slowed_ms = stamped_ms
        self._lagging = None if wall_ms >= slowed_ms else (since_s, since_ms)
        return max(wall_ms, slowed_ms)
