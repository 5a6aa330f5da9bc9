"""The Raft log on disk: hard state and entries, checksummed in a chain.

One `append` is one synced write. The engine keeps the rows; the evidence beside them tells when
the engine has lost some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from threading import RLock

from streamd.raft.chain import ChainPosition
from streamd.raft.messages import Entry, HardState
from streamd.storage.entry_cache import EntryCache, fitting
from streamd.storage.errors import LogBelowFloor, LogCorrupt, StateLagsLog
from streamd.storage.fail_stop import FailStop
from streamd.storage.files import is_there
from streamd.storage.log_engine import OpenEngine, open_engine, proved
from streamd.storage.salvage import LogFiles, finish_salvage, move_aside, salvage

_RECENT_BYTES = 8 * 1024 * 1024
_KEYS_PER_DELETE = 10_000
# The files may take half as much again as the entries, and this much, before space is given back:
# that costs up to one write of all entries.
_WASTE_BYTES = 32 * 1024 * 1024
# How much is given back at once: a few hundred milliseconds of a thread's work.
_FREED_BYTES = 64 * 1024 * 1024


class LogStore:
    """The `LogStorage` of a node: an engine's rows, proved by their chain and the evidence."""

    def __init__(self, files: LogFiles, group_id: int, *, alone: bool) -> None:
        self._files = files
        self._evidence = files.evidence
        self._alone = alone
        self._group_id = group_id
        self._fail_stop = FailStop(files.directory)
        self._engine = files.open_engine(files.directory, group_id)
        self.hard_state = HardState()
        self.lost_below: ChainPosition | None = None
        self._base = ChainPosition()
        # The base that replaces the present one, and the first entry that still has a row: a cut in
        # progress.
        self._coming_base: ChainPosition | None = None
        self._first_kept = 1
        # The last entry whose row was removed, also those after the base when the log was reset.
        self._removed_through = 0
        self._last = ChainPosition()
        self._floor = ChainPosition()
        # Held while the floor is noted and while the log's end moves down: a floor noted above the
        # new end would make the next start refuse the log.
        self._noting = RLock()
        self._recent = EntryCache(_RECENT_BYTES)

    @classmethod
    def open(
        cls,
        directory: Path,
        floor_file: Path,
        *,
        group_id: int = 0,
        alone: bool = True,
        open_engine: OpenEngine = open_engine,
    ) -> LogStore:
        """See `log_storage.open_log`."""
        files = LogFiles(directory, floor_file, open_engine)
        finish_salvage(files)
        with FailStop(directory):
            if not is_there(directory):
                files.evidence.begin()
        try:
            return cls._open_whole(files, group_id, alone)
        except (LogCorrupt, LogBelowFloor) as damage:
            if alone:
                raise
            salvage(files, group_id, damage)
            return cls._open_whole(files, group_id, alone)

    @classmethod
    def _open_whole(cls, files: LogFiles, group_id: int, alone: bool) -> LogStore:
        store = cls(files, group_id, alone=alone)
        try:
            with store._fail_stop:
                store._load()
        except BaseException:
            store._engine.close()
            raise
        return store

    @classmethod
    def reset_closed(
        cls, directory: Path, floor_file: Path, position: ChainPosition, *, group_id: int = 0
    ) -> None:
        """`reset` a log that is not open, whatever it holds. Raises `StorageError`."""
        store = cls(LogFiles(directory, floor_file), group_id, alone=True)
        try:
            store.reset(position)
        finally:
            store._engine.close()

    # -- reading ------------------------------------------------------------------------------

    @property
    def first_index(self) -> int:
        return self._base.index + 1

    @property
    def last_index(self) -> int:
        return self._last.index

    def term(self, index: int) -> int:
        assert self._base.index <= index <= self._last.index, index
        return self._base.term if index == self._base.index else self._recent.term(index)

    def holds(self, index: int, term: int) -> bool:
        return self._base.index <= index <= self._last.index and self.term(index) == term

    def entries(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        assert self._first_kept <= lo < hi <= self._last.index + 1, (lo, hi)
        recent = self._recent.entries(lo, hi, max_bytes)
        if recent is not None:
            return recent
        with self._fail_stop:
            stored = proved(self._engine, self._group_id, self._position(lo - 1), hi)
            return fitting((entry for entry, _ in stored), max_bytes)

    def size_after(self, index: int) -> int:
        size, first = self._recent.size_after(index)
        if first <= index + 1:
            return size
        with self._fail_stop:
            return size + self._engine.stored_size(index + 1, first)

    def position(self, index: int) -> ChainPosition:
        assert self._base.index <= index <= self._last.index, index
        with self._fail_stop:
            return self._position(index)

    # -- writing ------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry], hard_state: HardState | None) -> None:
        """The vote reaches its own file before the log does: see `test_order`."""
        with self._fail_stop:
            if hard_state is not None and hard_state != self.hard_state:
                assert hard_state.term >= self.hard_state.term, "a node never returns to a term"
                # First, so that this file is never the older of the two.
                self._evidence.note_vote(hard_state)
            replaced = range(0)
            if entries and entries[0].index <= self._last.index:
                replaced = self._lower_end(entries[0].index)
            stored = []
            last = self._last
            for entry in entries:
                assert entry.term >= last.term, "terms never decrease along the log"
                last = last.next(self._group_id, entry)
                stored.append((entry, last))
            self._engine.write(stored, hard_state, replaced=replaced)
        self._recent.remember(entries)
        self._last = last
        if hard_state is not None:
            self.hard_state = hard_state

    @property
    def is_filling(self) -> bool:
        return self._engine.is_filling

    @property
    def stalled_s(self) -> float:
        return self._engine.stalled_s

    def settle(self) -> None:
        with self._fail_stop:
            self._engine.settle()

    def begin_cut(self, through_index: int) -> None:
        if through_index <= self._base.index:
            return
        assert through_index <= self._last.index, (through_index, self._last)
        self.sync_floor()
        with self._fail_stop:
            base = self._position(through_index)
            # Synced: a power cut could otherwise lose the base and keep the deletions that follow
            # it.
            self._engine.begin_after(base)
            self._coming_base = base

    def cut(self) -> bool:
        if self._coming_base is None:
            return False
        self._base, self._coming_base = self._coming_base, None
        return True

    def remove_cut(self) -> None:
        with self._fail_stop:
            first, self._first_kept = self._first_kept, self._base.index + 1
            # Their indexes are known: a search for them would read the payloads of all entries.
            self._delete(iter(range(first, self._first_kept)))
        self._removed_through = max(self._removed_through, self._first_kept - 1)
        self._recent.forget_through(self._first_kept - 1)

    def free_some(self) -> bool:
        with self._fail_stop:
            first, end = self._first_kept, max(self._removed_through + 1, self._first_kept)
            held = self._engine.stored_size(first, self._last.index + 1)
            wasted = self._engine.stored_size(0, first)
            if self._engine.disk_bytes() <= held + held // 2 + _WASTE_BYTES:
                return False
            self._engine.free(end, _FREED_BYTES)
            return self._engine.stored_size(0, first) < wasted

    def reset(self, position: ChainPosition) -> None:
        """The floor goes first, then one write moves the base and removes all entries after it.

        A crash between the two leaves a log that is refused or salvaged, never one that is
        believed: an installation or restore resets it again at the next start.
        """
        with self._fail_stop, self._noting:
            self._evidence.note_floor(position)
            self._removed_through = max(self._removed_through, self._last.index)
            self._engine.restart_after(position)
            self._base = self._last = self._floor = position
            self._coming_base, self._first_kept = None, position.index + 1
            self._recent = EntryCache(_RECENT_BYTES)
            self._delete(self._engine.indexes(0, position.index + 1))

    def note_regained(self) -> None:
        with self._fail_stop:
            self._evidence.forget_lost()
        self.lost_below = None

    def sync_floor(self) -> None:
        with self._fail_stop, self._noting:
            last = self._last
            if self._floor != last:
                self._evidence.note_floor(last)
                self._floor = last

    def check_reaches(self, applied_index: int) -> None:
        if applied_index < self._base.index:
            raise StateLagsLog(
                f"the state ends at entry {applied_index}, but the log in "
                f"{self._files.directory} begins after entry {self._base.index}"
            )

    def fit_to_state(self, applied_index: int, applied_term: int) -> None:
        """The loss is noted before the log is emptied: see `test_order`."""
        self.check_reaches(applied_index)
        if self.holds(applied_index, applied_term):
            return
        lags = applied_index > self._last.index
        if self._alone and not lags:
            return  # Nobody replaces the entries of a single node.
        if self._alone:
            raise LogBelowFloor(
                f"the log in {self._files.directory} ends at entry {self._last.index}, but "
                f"entries up to {applied_index} were applied"
            )
        with self._fail_stop:
            self.lost_below = self._evidence.note_lost(
                max(applied_index, self._last.index),
                "it ends before the state does" if lags else "it does not match the state",
                self._last,
            )
        self.reset(ChainPosition(applied_index, applied_term))

    def set_aside(self, why: str) -> LogStore:
        """The loss is noted before the log moves."""
        with self._fail_stop:
            self._evidence.note_lost(self._last.index, why, ChainPosition())
            self._evidence.note_floor(ChainPosition())
            self._engine.close()
            move_aside(self._files)
        return LogStore.open(
            self._files.directory,
            self._evidence.floor_file,
            group_id=self._group_id,
            alone=self._alone,
            open_engine=self._files.open_engine,
        )

    def close(self) -> None:
        try:
            if not self._fail_stop.failed:
                self.sync_floor()
        finally:
            self._engine.close()

    # -- inside -------------------------------------------------------------------------------

    def _load(self) -> None:
        self.lost_below = self._evidence.lost()
        if self.lost_below is not None and self._alone:
            raise LogBelowFloor(
                f"the log in {self._files.directory} has lost entries up to "
                f"{self.lost_below.index}: acknowledged writes may be missing"
            )
        self._base = self._engine.base()
        self._floor = self._evidence.floor()
        self._delete(self._engine.indexes(0, self._base.index + 1))
        self._first_kept = self._base.index + 1
        self._last = self._base
        for entry, position in proved(self._engine, self._group_id, self._base):
            self._recent.remember([entry])
            self._last = position
            if position.index == self._floor.index and position != self._floor:
                raise LogCorrupt(
                    f"entry {entry.index} of the log in {self._files.directory} does not "
                    "match the entry that was stored there"
                )
        if self._last.index < self._floor.index:
            raise LogBelowFloor(
                f"the log in {self._files.directory} ends at entry {self._last.index}, but entry "
                f"{self._floor.index} had been stored: acknowledged writes are missing"
            )
        self._load_hard_state()

    def _load_hard_state(self) -> None:
        """Take the newer of the two copies: damage to the log must not make it forget a vote or
        term."""
        stored, noted = self._engine.hard_state(), self._evidence.vote()
        if noted is None:
            self._evidence.note_vote(stored)
        self.hard_state = stored if noted is None or stored.term > noted.term else noted

    def _position(self, index: int) -> ChainPosition:
        if index == self._base.index:
            return self._base
        position = self._engine.position(index)
        if position is None:
            raise LogCorrupt(f"entry {index} of the log in {self._files.directory} is missing")
        return position

    def _lower_end(self, index: int) -> range:
        """Make `index - 1` the log's end; returns the entries that the next write replaces.

        The floor goes down first, durably: if it stayed above the new end, a crash would make the
        node refuse a log that is whole.
        """
        previous = self._position(index - 1)
        replaced = range(index, self._last.index + 1)
        with self._noting:
            if self._floor.index >= index:
                self._evidence.note_floor(previous)
                self._floor = previous
            self._last = previous
        self._recent.forget_from(index)
        return replaced

    def _delete(self, indexes: Iterator[int]) -> None:
        """Delete entries, a bounded batch at a time."""
        while batch := list(islice(indexes, _KEYS_PER_DELETE)):
            self._engine.remove(batch)
