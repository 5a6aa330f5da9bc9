"""Whether a follower lags its leader, and so makes its clients wait.

The commit index in a heartbeat would not tell: it never exceeds what the follower is known to
hold, so a follower that lags far would believe that it has everything.
"""

from __future__ import annotations


class LagTracker:
    """`value` is True while this node keeps applying the leader's entries within an election
    timeout.

    The end of the leader's log at some moment is compared with what is applied one timeout later;
    under load there is always a little more to apply.
    """

    def __init__(self, patience_ticks: int) -> None:
        self._patience_ticks = patience_ticks
        self._told_index = 0
        self._goal_index = 0
        self._ticks_left = 0
        self.value = False

    def heard(self, last_index: int) -> None:
        """A leader's log reaches `last_index`."""
        self._told_index = last_index

    def tick(self, applied_index: int) -> None:
        """Let one tick pass; this node has applied up to `applied_index`."""
        if not self._goal_index:
            self._aim()
        elif applied_index >= self._goal_index:
            self.value = True
            self._aim()
        elif self._ticks_left > 1:
            self._ticks_left -= 1
        else:
            self.value = False
            self._aim()

    def _aim(self) -> None:
        self._goal_index = self._told_index
        self._ticks_left = self._patience_ticks
