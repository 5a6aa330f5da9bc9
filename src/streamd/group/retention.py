"""Decides which entries the log must keep for followers, Raft snapshots and the archive."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from streamd.raft.core import Core

log = structlog.get_logger("streamd.objectstore")

# The log keeps no entries for a follower that has been silent for this long.
SILENT_S = 5.0


class Retention:
    """Which entries may be compacted away.

    A follower that lags a little catches up by entries at a fraction of a Raft snapshot's cost.
    A follower that receives a Raft snapshot needs the entries after it: if they were gone when the
    transfer ends, it would need another snapshot, and so on without end.
    """

    def __init__(self, core: Core, tick_s: float) -> None:
        self._core = core
        self._silent_ticks = SILENT_S / tick_s
        self._snapshots: list[int] = []
        # How far the log is archived, if it is, and how many bytes may wait for the archive.
        self.archived_index: Callable[[], int] | None = None
        self.max_unarchived_bytes = 0

    @contextmanager
    def keeping_after(self, index: int) -> Iterator[None]:
        """Keep the entries after `index` inside: a Raft snapshot as of it is under way."""
        self._snapshots.append(index)
        try:
            yield
        finally:
            self._snapshots.remove(index)

    def archived_through(self) -> float:
        """The last archived entry; infinite without an archive."""
        return math.inf if self.archived_index is None else self.archived_index()

    def cut_through(self, index: int) -> None:
        """Warn if the log is compacted up to entry `index` before that entry is archived."""
        if index > self.archived_through():
            log.error(
                "the log is compacted before it is archived: the cold store was unavailable for "
                "too long; a restore will lack these entries unless another node archives them",
                cut_through=index,
                archived=self.archived_through(),
            )

    def unneeded_through(self) -> float:
        """The last entry that no follower needs; infinite if none needs any."""
        held = (
            peer.match_index if peer.state == "replicate" else peer.next_index - 1
            for peer in self._core.peers().values()
            if peer.state != "snapshot" and peer.ticks_since_heard < self._silent_ticks
        )
        return min(min(held, default=math.inf), min(self._snapshots, default=math.inf))
