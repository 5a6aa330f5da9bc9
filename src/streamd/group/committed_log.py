"""Committed entries read back from this node's log, beside the group's own work."""

from __future__ import annotations

import trio

from streamd.blocking import RunBlocking
from streamd.raft.core import Core
from streamd.raft.messages import Entry
from streamd.storage.log_storage import LogStorage


class EntriesGone(Exception):
    """The entries asked for were cut from this node's log."""


class CommittedLog:
    """Entries that will never change. Read on the log's own thread, so that the log is not cut
    under a reader's feet; a read should be small, as writes wait for it."""

    def __init__(
        self,
        log: LogStorage,
        core: Core,
        *,
        run_blocking: RunBlocking,
        writer: trio.CapacityLimiter,
    ) -> None:
        self._log = log
        self._core = core
        self._run_blocking = run_blocking
        self._writer = writer

    @property
    def last_index(self) -> int:
        """The last entry that was applied here."""
        return self._core.applied_index

    @property
    def first_index(self) -> int:
        return self._log.first_index

    def size_behind(self, index: int) -> int:
        """About how many bytes of the log lie behind entry `index`, of those that are still here.

        Raises `StorageFailed`.
        """
        return self._log.size_after(max(index, self._log.first_index - 1))

    async def behind(self, index: int, max_bytes: int) -> list[Entry]:
        """Applied entries behind entry `index`, none when there are none, else as many as
        `max_bytes` allows, but at least one.

        Raises `EntriesGone`, `StorageError`.
        """
        last = self._core.applied_index
        if index >= last:
            return []
        return await self._run_blocking(
            self._entries, index + 1, last + 1, max_bytes, limiter=self._writer
        )

    def _entries(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        if lo < self._log.first_index:
            raise EntriesGone(f"the log begins at entry {self._log.first_index}, behind {lo}")
        # A leader may commit, with the others, what its own disk does not have yet.
        hi = min(hi, self._log.last_index + 1)
        return self._log.entries(lo, hi, max_bytes) if lo < hi else []
