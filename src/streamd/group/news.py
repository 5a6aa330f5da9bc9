"""When a leader tells the followers of commits by messages that say nothing else."""

from __future__ import annotations

from collections.abc import Callable

import trio

from streamd.raft.core import Core

# How long a follower may wait for the news of a commit: its own live readers wait for it, but no
# write does, and no read, which asks the leader.
INTERVAL_S = 0.01


class News:
    """At most one announcement in each interval: the first at once, others at its end.

    While clients write, the next entries tell of the commit within a millisecond. A message of its
    own would cost each follower a wake and a turn, and the leader a send before it answers.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._announced = trio.lowlevel.ParkingLot()
        self._must_wait = False

    def may_be_told(self) -> bool:
        """Whether to announce now what there is to announce; then the next interval begins."""
        if self._must_wait:
            return False
        if self._core.has_news:
            self._must_wait = True
            self._announced.unpark()
        return True

    async def run(self, wake: Callable[[], None]) -> None:
        """Call `wake` when an interval has ended and there are news; run until cancelled."""
        while True:
            await self._announced.park()
            await trio.sleep(INTERVAL_S)
            self._must_wait = False
            if self._core.has_news:
                wake()
