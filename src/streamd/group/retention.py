"""For whom the log is kept longer than its own length would tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from streamd.raft.core import Core

log = structlog.get_logger("streamd.objectstore")

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
        # How far the log is archived, where it is to be, and how much may wait for that.
        self.archived_index: Callable[[], int] | None = None
        self.max_unarchived_bytes = 0

    @contextmanager
    def keeping_behind(self, index: int) -> Iterator[None]:
        """Inside, what follows entry `index` is needed: a snapshot as of there is on its way."""
        self._snapshots.append(index)
        try:
            yield
        finally:
            self._snapshots.remove(index)

    def unarchived_behind(self) -> float:
        """Entries up to this index are archived; infinite when none are to be."""
        return math.inf if self.archived_index is None else self.archived_index()

    def cut_through(self, index: int) -> None:
        """Hear that the log is cut up to entry `index`, archived or not."""
        if index > self.unarchived_behind():
            log.error(
                "the log is cut before it is archived: the cold store has been away for too long; "
                "there will be a gap in what can be restored, unless another node has the entries",
                cut_through=index,
                archived=self.unarchived_behind(),
            )

    def needed_behind(self) -> float:
        """Entries up to this index are needed by nobody; infinite when none are."""
        held = (
            peer.match_index if peer.state == "replicate" else peer.next_index - 1
            for peer in self._core.peers().values()
            if peer.state != "snapshot" and peer.ticks_since_heard < self._silent_ticks
        )
        return min(min(held, default=math.inf), min(self._snapshots, default=math.inf))
