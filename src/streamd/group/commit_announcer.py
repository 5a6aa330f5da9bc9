"""When a leader tells the followers of commits by messages that say nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from streamd.raft.core import Core

# How long a follower may wait for the news of a commit: its own live readers wait for it, but no
# write does, and no read, which asks the leader.
INTERVAL_S = 0.01


class CommitAnnouncer:
    """At most one announcement in each interval. What is held back follows once no other commit
    has come for as long.

    While clients write, the next entries tell of the commit within a millisecond. A message of its
    own would cost each follower a wake and a turn, and the leader a send before it answers.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._next_at = -math.inf
        self._held_back = trio.lowlevel.ParkingLot()
        # Ends when the news held back are due.
        self._wait: trio.CancelScope | None = None

    def is_due(self) -> bool:
        """Whether to announce commits in this turn; if there are any, the next interval begins."""
        if not self._core.has_news:
            return True
        now = trio.current_time()
        if now >= self._next_at:
            self._next_at = now + INTERVAL_S
            return True
        self._hold_back(now + INTERVAL_S)
        return False

    def _hold_back(self, due: float) -> None:
        """Under load this moves the end of one wait again and again, but not each time: a wait that
        ends costs as much as ten appends, and one that is moved as much as a part of one."""
        if self._wait is None:
            self._wait = trio.CancelScope(deadline=due)
            self._held_back.unpark()
        elif due - self._wait.deadline > INTERVAL_S / 2:
            self._wait.deadline = due

    async def run(self, wake: Callable[[], None]) -> None:
        """Call `wake` when news held back are due; run until cancelled."""
        while True:
            while self._wait is None:
                await self._held_back.park()
            with self._wait:
                await trio.sleep_forever()
            self._wait = None
            wake()
