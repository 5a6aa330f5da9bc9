"""For whom the log is kept longer than its own length would tell."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from streamd.raft.core import Core

# The log is not kept for a follower that has said nothing for so long.
SILENT_S = 5.0


class Retention:
    """What followers still need of the log.

    One that is a little behind is served by entries at a fraction of what a snapshot costs. And
    one that gets a snapshot needs what follows it: without that, a snapshot which takes longer
    than the log is long would be followed by another one, for ever.
    """

    def __init__(self, core: Core, tick_s: float) -> None:
        self._core = core
        self._silent_ticks = SILENT_S / tick_s
        self._snapshots: list[int] = []

    @contextmanager
    def keeping_behind(self, index: int) -> Iterator[None]:
        """Inside, what follows entry `index` is needed: a snapshot as of there is on its way."""
        self._snapshots.append(index)
        try:
            yield
        finally:
            self._snapshots.remove(index)

    def needed_behind(self) -> float:
        """Entries up to this index are needed by nobody; infinite when none are."""
        held = (
            peer.match_index if peer.state == "replicate" else peer.next_index - 1
            for peer in self._core.peers().values()
            if peer.state != "snapshot" and peer.ticks_since_heard < self._silent_ticks
        )
        return min(min(held, default=math.inf), min(self._snapshots, default=math.inf))
