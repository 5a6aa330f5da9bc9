"""The Raft log on disk: hard state and entries, checksummed in a chain.

One `append` is one synced write. What is needed to notice a loss lies in small files beside the
database, where LevelDB cannot lose it: the `floor`, the last `vote`, and what is known to be
`lost`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from streamd.raft.messages import Entry, HardState
from streamd.storage.binding import plyvel
from streamd.storage.entry_cache import EntryCache, fitting
from streamd.storage.errors import RESTORE_HINT, LogBelowFloor, LogCorrupt, StateBehindLog
from streamd.storage.files import read_checked, remove_durably, write_checked
from streamd.storage.floor import Floor, read_floor, write_floor
from streamd.storage.leveldb import FailStop
from streamd.storage.log_rows import LogRows
from streamd.storage.salvage import (
    LogFiles,
    finish_salvage,
    move_aside,
    note_lost,
    open_log_database,
    salvage,
)

_RECENT_BYTES = 8 * 1024 * 1024
_KEYS_PER_DELETE = 10_000


class LogStore:
    """One group's log. Every call blocks; one thread at a time.

    `hard_state` is what is stored; a `LogReader` for the Raft core. `lost_below` names the
    highest entry known to have been here, once stored ones were found missing: until the leader
    has committed past it, this node must neither vote nor count as holding anything below.
    """

    def __init__(self, files: LogFiles, group_id: int, *, alone: bool) -> None:
        self._files = files
        self._alone = alone
        self._fail_stop = FailStop(files.directory)
        self._db = open_log_database(files.directory)
        self._rows = LogRows(self._db, group_id, f"the log in {files.directory}")
        self.hard_state = HardState()
        self.lost_below: Floor | None = None
        self._base = Floor()
        # What takes the base's place, and the first entry whose row is there: a cut in progress.
        self._coming_base: Floor | None = None
        self._first_kept = 1
        self._last = Floor()
        self._floor = Floor()
        self._recent = EntryCache(_RECENT_BYTES)

    @classmethod
    def open(
        cls, directory: Path, floor_file: Path, *, group_id: int = 0, alone: bool = True
    ) -> LogStore:
        """Open and verify the log, entry by entry.

        A node that is `alone` raises `LogCorrupt` or `LogBelowFloor` when the log is not what was
        written. One with peers keeps what it can prove, sets `lost_below`, and moves the damaged
        log aside. `StorageFailed` when it cannot be read at all.
        """
        files = LogFiles(directory, floor_file)
        finish_salvage(files)
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
            with store._fail_stop.guarding():
                store._load()
        except BaseException:
            store._db.close()
            raise
        return store

    @classmethod
    def reset_closed(
        cls, directory: Path, floor_file: Path, place: Floor, *, group_id: int = 0
    ) -> None:
        """`reset` a log that is not open, whatever is in it. Raises `StorageError`."""
        store = cls(LogFiles(directory, floor_file), group_id, alone=True)
        try:
            store.reset(place.index, place.term, place.chain)
        finally:
            store._db.close()

    # -- reading ------------------------------------------------------------------------------

    @property
    def first_index(self) -> int:
        return self._base.index + 1

    @property
    def last_index(self) -> int:
        return self._last.index

    def term(self, index: int) -> int:
        """The term at `index`, from `first_index - 1` to `last_index`."""
        assert self._base.index <= index <= self._last.index, index
        return self._base.term if index == self._base.index else self._recent.term(index)

    def holds(self, index: int, term: int) -> bool:
        """Whether that entry is in the log, or the last one removed from its beginning."""
        return self._base.index <= index <= self._last.index and self.term(index) == term

    def entries(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        """Entries from `lo` to before `hi`, at least one, as many as `max_bytes` allows.

        Raises `LogCorrupt`, `StorageFailed`.
        """
        assert self._first_kept <= lo < hi <= self._last.index + 1, (lo, hi)
        recent = self._recent.entries(lo, hi, max_bytes)
        if recent is not None:
            return recent
        with self._fail_stop.guarding():
            stored = self._rows.following(self._place(lo - 1), hi)
            return fitting((entry for entry, _ in stored), max_bytes)

    def size_behind(self, index: int) -> int:
        """About how many bytes the entries behind `index` have; those on disk as compressed there.

        Raises `StorageFailed`.
        """
        size, first = self._recent.size_behind(index)
        if first <= index + 1:
            return size
        with self._fail_stop.guarding():
            return size + self._rows.stored_size(index + 1, first)

    def place(self, index: int) -> Floor:
        """Term and checksum of an entry, from `first_index - 1` to `last_index`.

        Raises `LogCorrupt`, `StorageFailed`.
        """
        assert self._base.index <= index <= self._last.index, index
        with self._fail_stop.guarding():
            return self._place(index)

    # -- writing ------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry], hard_state: HardState | None) -> None:
        """Store entries and hard state in one synced write.

        Entries follow each other; the first may replace one that is there, which removes all
        behind it. Raises `StorageFailed`.
        """
        with self._fail_stop.guarding():
            if hard_state is not None and hard_state != self.hard_state:
                # First, so that this file is never the older of the two.
                write_checked(self._files.vote, hard_state)
            batch = self._db.write_batch(sync=True)
            if entries and entries[0].index <= self._last.index:
                self._remove_from(entries[0].index, batch)
            if hard_state is not None:
                self._rows.put_hard_state(batch, hard_state)
            last = self._last
            for entry in entries:
                last = self._rows.put_entry(batch, last, entry)
            batch.write()
        self._recent.remember(entries)
        self._last = last
        if hard_state is not None:
            self.hard_state = hard_state

    def compact(self, through_index: int) -> None:
        """Remove the entries up to and including `through_index`, with nobody reading beside.

        Raises `StorageFailed`.
        """
        self.begin_cut(through_index)
        if self.cut():
            self.remove_cut()

    def begin_cut(self, through_index: int) -> None:
        """Make durable that the log begins behind `through_index`; readers see that with `cut`.

        A crash in between leaves some of the entries, which the next start removes. Raises
        `StorageFailed`.
        """
        if through_index <= self._base.index:
            return
        with self._fail_stop.guarding():
            self.sync_floor()
            base = self._place(through_index)
            # Synced, or a power cut could take the base and leave the deletions behind it.
            batch = self._db.write_batch(sync=True)
            self._rows.put_base(batch, base)
            batch.write()
            self._coming_base = base

    def cut(self) -> bool:
        """Let the log begin where `begin_cut` said; then `remove_cut` is due, else it is not.

        To be called by the thread that reads beside the writer's, and does not block: where the
        log begins must not move between its look there and its reading.
        """
        if self._coming_base is None:
            return False
        self._base, self._coming_base = self._coming_base, None
        return True

    def remove_cut(self) -> None:
        """Remove the entries before the log's beginning. Raises `StorageFailed`."""
        with self._fail_stop.guarding():
            first, self._first_kept = self._first_kept, self._base.index + 1
            # Their indexes are known: looking for them would read all the entries' payloads.
            for lo in range(first, self._first_kept, _KEYS_PER_DELETE):
                self._delete(range(lo, min(lo + _KEYS_PER_DELETE, self._first_kept)))
        self._recent.forget_through(self._first_kept - 1)

    def reset(self, index: int, term: int, chain: int) -> None:
        """Make the log empty, to go on behind an entry that is only in the state.

        The floor goes first, then the base moves in one write with the removal of all behind it.
        A crash between the two leaves a log that is refused or salvaged, never one believed:
        whoever resets does so again at the next start. Raises `StorageFailed`.
        """
        base = Floor(index, term, chain)
        with self._fail_stop.guarding():
            write_floor(self._files.floor, base)
            batch = self._db.write_batch(sync=True)
            self._rows.put_base(batch, base)
            for stale in self._rows.indexes(index + 1):
                batch.delete(self._rows.key(stale))
            batch.write()
            self._base = self._last = self._floor = base
            self._coming_base, self._first_kept = None, index + 1
            self._recent = EntryCache(_RECENT_BYTES)
            self._delete_slices(0, index + 1)

    def note_regained(self) -> None:
        """The leader has committed past all that was lost: be a full member again, durably.

        Raises `StorageFailed`.
        """
        with self._fail_stop.guarding():
            remove_durably(self._files.lost)
        self.lost_below = None

    def sync_floor(self) -> None:
        """Note, durably, how far the log reaches. Raises `StorageFailed`."""
        if self._floor != self._last:
            with self._fail_stop.guarding():
                write_floor(self._files.floor, self._last)
                self._floor = self._last

    def check_applied(self, applied_index: int) -> None:
        """Raises `LogBelowFloor` when the state has seen entries that the log has lost."""
        if applied_index > self._last.index:
            raise LogBelowFloor(
                f"the log in {self._files.directory} ends at entry {self._last.index}, but "
                f"entries up to {applied_index} were applied. {RESTORE_HINT}"
            )

    def check_reaches(self, applied_index: int) -> None:
        """Raises `StateBehindLog` when entries that the state lacks were removed."""
        if applied_index < self._base.index:
            raise StateBehindLog(
                f"the state ends at entry {applied_index}, but the log in "
                f"{self._files.directory} begins behind entry {self._base.index}. {RESTORE_HINT}"
            )

    def fit_to_state(self, applied_index: int, applied_term: int) -> None:
        """See that the state, which ends at `applied_index`, and the log have no gap in between.

        A log that ends before the state has lost entries. With peers it begins anew behind the
        state, which holds only committed ones; alone it raises `LogBelowFloor`. Raises
        `StateBehindLog` when entries that the state lacks were removed, and `StorageFailed`.
        """
        self.check_reaches(applied_index)
        if self._alone:
            self.check_applied(applied_index)
        elif applied_index > self._last.index:
            with self._fail_stop.guarding():
                self.lost_below = note_lost(
                    self._files, applied_index, "it ends before the state", self._last
                )
            self.reset(applied_index, applied_term, chain=0)

    def set_aside(self, why: str) -> LogStore:
        """Begin with an empty log, durably; all that this one has counts as lost.

        This one is closed, and stays where a damaged one would. Raises `StorageError`.
        """
        files = self._files
        with self._fail_stop.guarding():
            note_lost(files, self._last.index, why, Floor())
            write_floor(files.floor, Floor())
            self._db.close()
            move_aside(files)
        return LogStore.open(files.directory, files.floor, alone=self._alone)

    def close(self) -> None:
        """Note the floor and close the database; after a failure, only close."""
        try:
            if not self._fail_stop.failed:
                self.sync_floor()
        finally:
            self._db.close()

    # -- inside -------------------------------------------------------------------------------

    def _load(self) -> None:
        self.lost_below = read_checked(self._files.lost, Floor)
        if self.lost_below is not None and self._alone:
            raise LogBelowFloor(
                f"the log in {self._files.directory} has lost entries up to "
                f"{self.lost_below.index}: acknowledged writes may be missing. {RESTORE_HINT}"
            )
        self._base = self._rows.base()
        self._floor = read_floor(self._files.floor)
        self._delete_slices(0, self._base.index + 1)
        self._first_kept = self._base.index + 1
        self._last = self._base
        for entry, place in self._rows.following(self._base):
            self._recent.remember([entry])
            self._last = place
            if place.index == self._floor.index and place != self._floor:
                raise LogCorrupt(
                    f"entry {entry.index} of the log in {self._files.directory} is not the one "
                    f"that was known to be there. {RESTORE_HINT}"
                )
        if self._last.index < self._floor.index:
            raise LogBelowFloor(
                f"the log in {self._files.directory} ends at entry {self._last.index}, but entry "
                f"{self._floor.index} had been stored: acknowledged writes are missing. "
                f"{RESTORE_HINT}"
            )
        self._load_hard_state()

    def _load_hard_state(self) -> None:
        """Take the newer of the two copies: a damaged log must not forget a vote or a term."""
        stored = self._rows.hard_state()
        kept = read_checked(self._files.vote, HardState)
        if kept is None and stored != HardState():
            write_checked(self._files.vote, stored)
        self.hard_state = stored if kept is None or stored.term > kept.term else kept

    def _place(self, index: int) -> Floor:
        base = self._base
        return base if index == base.index else self._rows.place(index)

    def _remove_from(self, index: int, batch: plyvel.WriteBatch) -> None:
        """Remove the log's end, entry `index` included, as part of `batch`.

        The floor goes down first, durably: were it left above the new end, a crash would make
        the node refuse a log that is whole.
        """
        previous = self._place(index - 1)
        if self._floor.index >= index:
            write_floor(self._files.floor, previous)
            self._floor = previous
        for stale in range(index, self._last.index + 1):
            batch.delete(self._rows.key(stale))
        self._last = previous
        self._recent.forget_from(index)

    def _delete_slices(self, lo: int, hi: int) -> None:
        """Delete entries from `lo` to before `hi`, a bounded batch at a time."""
        doomed: list[int] = []
        for index in self._rows.indexes(lo, hi):
            doomed.append(index)
            if len(doomed) == _KEYS_PER_DELETE:
                self._delete(doomed)
                doomed = []
        self._delete(doomed)

    def _delete(self, indexes: Sequence[int]) -> None:
        """Synced, though it could be done again: a torn batch with a later one behind it is
        damage (see `tears`)."""
        if not indexes:
            return
        batch = self._db.write_batch(sync=True)
        for index in indexes:
            batch.delete(self._rows.key(index))
        batch.write()
