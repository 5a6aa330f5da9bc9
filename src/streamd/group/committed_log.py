"""Committed entries, read back from this node's log."""

from __future__ import annotations

from streamd.process.threads import RunBlocking
from streamd.raft.core import Core
from streamd.raft.messages import Entry
from streamd.storage.log_storage import LogStorage


class EntriesGone(Exception):
    """The entries asked for were compacted away on this node."""


class CommittedLog:
    """Entries that never change. Reads run in the log's own thread, so that no compaction runs
    beside them; keep them small, because writes wait for them."""

    def __init__(
        self,
        log: LogStorage,
        core: Core,
        *,
        in_log_thread: RunBlocking,
    ) -> None:
        self._log = log
        self._core = core
        self._in_log_thread = in_log_thread

    @property
    def last_index(self) -> int:
        """The last entry applied here."""
        return self._core.applied_index

    @property
    def first_index(self) -> int:
        return self._log.first_index

    def size_after(self, index: int) -> int:
        """About how many bytes of entries after `index` the log still has.

        Raises `StorageFailed`.
        """
        return self._log.size_after(max(index, self._log.first_index - 1))

    async def after(self, index: int, max_bytes: int) -> list[Entry]:
        """Applied entries after `index`: as many as `max_bytes` allows, but at least one if there
        is any.

        Raises `EntriesGone`, `StorageError`.
        """
        last = self._core.applied_index
        if index >= last:
            return []
        return await self._in_log_thread(self._entries, index + 1, last + 1, max_bytes)

    def _entries(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        if lo < self._log.first_index:
            raise EntriesGone(f"the log begins at entry {self._log.first_index}, after {lo}")
        # A leader may commit, with the others, entries that its own disk does not have yet.
        hi = min(hi, self._log.last_index + 1)
        return self._log.entries(lo, hi, max_bytes) if lo < hi else []
