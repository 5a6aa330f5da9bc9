"""The part of the log in memory: its newest entries, and the terms of all."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from threading import Lock

from streamd.raft.messages import Entry


class EntryCache:
    """The log's memory, written by the log's thread and read by the event loop beside it.

    Without the lock, removing an entry would shift the others under a reader's index.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._entries: deque[Entry] = deque()
        self._size = 0
        # Where each run of entries of one term starts.
        self._run_starts: list[int] = []
        self._run_terms: list[int] = []

    def term(self, index: int) -> int:
        """The term of a stored entry."""
        with self._lock:
            run = len(self._run_starts) - 1
            while self._run_starts[run] > index:
                run -= 1
            return self._run_terms[run]

    def entries(self, lo: int, hi: int, max_bytes: int) -> list[Entry] | None:
        """Entries in [`lo`, `hi`), at least one, as many as `max_bytes` allows; None
        if they are not in memory."""
        with self._lock:
            if not self._entries or lo < self._entries[0].index:
                return None
            skip = lo - self._entries[0].index
            return fitting((self._entries[skip + i] for i in range(hi - lo)), max_bytes)

    def size_after(self, index: int) -> tuple[int, int]:
        """The size in bytes of the entries in memory after `index`, and the index of the first
        of them, which is `index + 1` when all are in memory."""
        with self._lock:
            if not self._entries:
                return 0, index + 1
            skip = max(index + 1 - self._entries[0].index, 0)
            after = islice(self._entries, skip, None)
            return sum(len(entry.payload) for entry in after), self._entries[0].index + skip

    def remember(self, entries: Iterable[Entry]) -> None:
        """Add entries that were stored after the last ones."""
        with self._lock:
            for entry in entries:
                if not self._run_terms or self._run_terms[-1] != entry.term:
                    self._run_starts.append(entry.index)
                    self._run_terms.append(entry.term)
                self._entries.append(entry)
                self._size += len(entry.payload)
            while self._size > self._max_bytes and len(self._entries) > 1:
                self._size -= len(self._entries.popleft().payload)

    def forget_from(self, index: int) -> None:
        """Forget the end of the log, from entry `index` on."""
        with self._lock:
            while self._run_starts and self._run_starts[-1] >= index:
                self._run_starts.pop()
                self._run_terms.pop()
            while self._entries and self._entries[-1].index >= index:
                self._size -= len(self._entries.pop().payload)

    def forget_through(self, index: int) -> None:
        """Forget the beginning of the log, through entry `index`."""
        with self._lock:
            while len(self._run_starts) > 1 and self._run_starts[1] <= index + 1:
                del self._run_starts[0], self._run_terms[0]
            while self._entries and self._entries[0].index <= index:
                self._size -= len(self._entries.popleft().payload)


def fitting(entries: Iterable[Entry], max_bytes: int) -> list[Entry]:
    """As many entries as have payloads that fit, but at least one."""
    found: list[Entry] = []
    size = 0
    for entry in entries:
        size += len(entry.payload)
        if found and size > max_bytes:
            break
        found.append(entry)
    return found
