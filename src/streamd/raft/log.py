"""The log as the core sees it: a stored part that is read, and recent entries in memory.

An entry stays in memory until it is both stored and handed out to apply, so normally it is never
read back from the disk:

      first            handed out     stored        to store      last
        │ on disk, read by  │ in memory    │ being       │ not yet     │
        │ the LogReader     │ as well      │ written     │ handed out  │
        └───────────────────┴──────────────┴─────────────┴─────────────┘
                            ▲ offset

Memory is bounded by the uncommitted and unstored entries, which the leader limits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

from streamd.raft.interface import LogReader, RaftViolation
from streamd.raft.messages import Entry

MAX_TERM_RUNS = 64


class Log:
    """Terms and entries by index, and how far the log is stored, committed and handed out."""

    def __init__(self, reader: LogReader, applied_index: int) -> None:
        self._reader = reader
        self.last_index = reader.last_index
        self.last_term = reader.term(self.last_index) if self.last_index else 0
        self.stable_index = self.last_index
        self.commit_index = applied_index
        self.handed_index = applied_index
        self._recent: list[Entry] = []
        self._offset = self.last_index + 1
        # The first entry that was not handed out to store.
        self.to_store = self.last_index + 1
        # For every write under way, the last index that it will make durable.
        self._writes: deque[int] = deque()
        # Terms of stored entries by their first index, as far as known without reading.
        self._run_starts = [self.last_index]
        self._run_terms = [self.last_term]

    @property
    def first_index(self) -> int:
        return self._reader.first_index

    def term(self, index: int) -> int:
        """The term at `index`, up to `last_index`; 0 for index 0, and for entries so old that
        their term is no longer known."""
        if index == self.last_index:
            return self.last_term
        if index >= self._offset:
            return self._recent[index - self._offset].term
        run = bisect_right(self._run_starts, index) - 1
        if run >= 0:
            return self._run_terms[run]
        return self._reader.term(index) if index and index >= self.first_index - 1 else 0

    def has(self, index: int, term: int) -> bool:
        return index <= self.last_index and self.term(index) == term

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends like this is at least as complete as this one (thesis 3.6.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def last_not_after_term(self, index: int, term: int) -> tuple[int, int]:
        """The last entry at or below `index` whose term is not above `term`: (index, term).

        Nothing above it can be in a log that has an entry of `term` at `index`. Falls back to
        the entry before the first one kept.
        """
        lowest = self.first_index - 1
        places = range(lowest, min(index, self.last_index) + 1)
        # Terms never decrease along the log.
        found = max(lowest, lowest + bisect_right(places, term, key=self.term) - 1)
        return found, self.term(found)

    # -- growing and shrinking ------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries that directly follow the last one."""
        assert not entries or entries[0].index == self.last_index + 1, (entries[0], self.last_index)
        for entry in entries:
            if entry.term != self.last_term:
                assert entry.term > self.last_term, "terms never decrease along the log"
                self._begin_run(entry)
                self.last_term = entry.term
        self._recent += entries
        self.last_index += len(entries)

    def _begin_run(self, entry: Entry) -> None:
        self._run_starts.append(entry.index)
        self._run_terms.append(entry.term)
        if len(self._run_starts) > MAX_TERM_RUNS:
            del self._run_starts[0], self._run_terms[0]

    def truncate(self, from_index: int) -> None:
        """Remove the entries from `from_index` on, stored or not.

        Writes under way no longer confirm the removed entries, whatever replaces them.
        Raises `RaftViolation` when one of them is committed.
        """
        if from_index <= self.commit_index:
            raise RaftViolation(
                f"a leader's log differs at index {from_index}, though everything up to"
                f" {self.commit_index} is committed"
            )
        kept = from_index - 1
        term = self.term(kept)
        del self._recent[max(0, from_index - self._offset) :]
        self._offset = min(self._offset, from_index)
        self.to_store = min(self.to_store, from_index)
        self.stable_index = min(self.stable_index, kept)
        self._writes = deque(min(index, kept) for index in self._writes)
        runs = bisect_left(self._run_starts, from_index)
        del self._run_starts[runs:], self._run_terms[runs:]
        if not self._run_starts:
            self._run_starts, self._run_terms = [kept], [term]
        self.last_index, self.last_term = kept, term

    def reset(self, index: int, term: int) -> None:
        """Continue after a snapshot that ends at `index`; all entries so far are dropped.

        The reader has already done so, and no entries are being written.
        """
        assert not self._writes, "the log is replaced only when nothing is being written to it"
        assert (self._reader.first_index, self._reader.last_index) == (index + 1, index)
        self.last_index = self.stable_index = self.commit_index = self.handed_index = index
        self.last_term = term
        self._recent = []
        self._offset = self.to_store = index + 1
        self._run_starts, self._run_terms = [index], [term]

    # -- storing --------------------------------------------------------------------------

    def begin_store(self) -> list[Entry]:
        """Entries not yet handed out to store; call `end_store` for each write that is not
        empty."""
        if self.to_store > self.last_index:
            return []
        entries = self._recent[self.to_store - self._offset :]
        self.to_store = self.last_index + 1
        self._writes.append(self.last_index)
        return entries

    def end_store(self) -> None:
        """The oldest write under way has reached the disk."""
        index = self._writes.popleft()
        if index > self.stable_index:
            self.stable_index = index
            if self.handed_index >= self._offset:
                self._let_go()

    # -- committing -----------------------------------------------------------------------

    def commit_to(self, index: int) -> None:
        """Raises `RaftViolation` when the log ends before an entry that the leader knows it to
        have."""
        if index > self.last_index:
            raise RaftViolation(
                f"the leader knows this log to reach index {index}, but it ends at"
                f" {self.last_index}: the disk has lost what it had confirmed. Remove this node"
                " from the cluster, and add it under an id never used before, without its data"
            )
        self.commit_index = max(self.commit_index, index)

    def take_committed(self, max_bytes: int) -> list[Entry]:
        """Committed entries that are also stored here and not yet handed out, in order.

        If an entry were applied before it is on this node's disk, a crash could leave its effects
        in the stored state without the entry in the log.
        """
        lo = self.handed_index + 1
        hi = min(self.commit_index, self.stable_index) + 1
        if lo >= hi:
            return []
        entries = self.entries(lo, hi, max_bytes)
        assert entries[0].index == lo, "no committed entry is skipped or applied twice"
        self.handed_index = entries[-1].index
        self._let_go()
        return entries

    def entries(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        """Entries from `lo` up to, not including, `hi`: at least one, and maybe fewer than asked.

        Bounded by `max_bytes` of payload, and by where memory begins.
        """
        if lo < self._offset:
            return self._reader.entries(lo, min(hi, self._offset), max_bytes)
        start = lo - self._offset
        stop = start + 1
        size = len(self._recent[start].payload)
        while stop < hi - self._offset:
            size += len(self._recent[stop].payload)
            if size > max_bytes:
                break
            stop += 1
        return self._recent[start:stop]

    def _let_go(self) -> None:
        count = min(self.stable_index, self.handed_index) + 1 - self._offset
        if count > 0:
            del self._recent[:count]
            self._offset += count
