"""A group on its node's disk: storing the state, compacting the log, Raft snapshots."""

from __future__ import annotations

from collections.abc import Callable

from streamd.group.reads import READ_TIMEOUT_S
from streamd.group.state_flusher import StateFlusher
from streamd.group.view import GroupView
from streamd.group.writer import Writer
from streamd.raft.core import Core
from streamd.storage.raft_snapshots import SnapshotMeta, SnapshotSource


class GroupStorage:
    """The state and the log as stored.

    Invariants:

    - The state is flushed and replaced only under `write_lock`, and only by what the log led to.
    - The log keeps every entry that the stored state lacks.
    - A Raft snapshot replaces state and log together, and only if it has what this node has not.
    """

    def __init__(
        self,
        core: Core,
        flusher: StateFlusher,
        writer: Writer,
        view: GroupView,
        wake: Callable[[], None],
    ) -> None:
        self._core = core
        self._flusher = flusher
        self._writer = writer
        self._view = view
        self._wake = wake
        # While it is held, the state's store is neither written nor replaced.
        self.write_lock = flusher.exclusive
        self.log_growth = flusher.log_growth

    async def flush(self) -> None:
        """Store all changes made so far."""
        await self._flusher.flush()

    async def compact(self) -> int:
        """Store the state and compact the log up to it; returns the log's new first entry."""
        through = await self._flusher.compact()
        await self._view.wait_for(lambda: self._core.first_index > through, READ_TIMEOUT_S)
        return self._core.first_index

    # -- Raft snapshots -----------------------------------------------------------------------

    async def open_snapshot(self, snapshot_id: int, *, only_hot: bool = False) -> SnapshotSource:
        """A Raft snapshot of the stored state. Raises `SnapshotUnavailable`."""
        return await self._writer.open_snapshot(snapshot_id, only_hot=only_hot)

    def snapshot_ended(self, peer_id: int, index: int | None) -> None:
        """Note that a follower installed a Raft snapshot as of `index`; with None, that it did
        not."""
        if index is None:
            self._core.snapshot_failed(peer_id)
        else:
            self._core.snapshot_sent(peer_id, index)
        self._wake()

    @property
    def is_installing(self) -> bool:
        """Whether a Raft snapshot is replacing state and log."""
        return self._writer.is_installing

    async def install(self, meta: SnapshotMeta) -> bool:
        """Replace state and log with a received Raft snapshot; False if it is not needed."""
        if self.is_installing or not self._core.begin_restore(meta.index, meta.term):
            return False
        self._writer.install(meta)
        self._wake()
        while self.is_installing:
            await self._view.turn_taken.park()
        return True
