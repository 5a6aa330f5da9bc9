"""The machine's state on disk: an ordered key-value store.

What a crash loses of it the Raft log replays, because every batch holds the index of the last
entry in it. Batches are few and synced. Unsynced batches would not merely be lost at the end: when
LevelDB starts a new file of its own log it does not sync the previous one, so a power cut can lose
earlier batches and keep a later one with its higher index, and replay would skip what is missing.
Several threads may read beside a write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Lock

from streamd.storage.binding import plyvel
from streamd.storage.leveldb import LevelDBFailStop, open_database

# Data on its way through fills the buffer twice over; flushes sort and merge well before LevelDB.
_WRITE_BUFFER_BYTES = 4 * 1024 * 1024
_BLOCK_CACHE_BYTES = 32 * 1024 * 1024
_BLOOM_BITS = 10
_BEHIND_ALL = b"\xff"


class ViewGone(Exception):
    """The state that the view shows was replaced as a whole, or its store was closed."""


def open_state_database(directory: Path) -> plyvel.DB:
    """Raises `LogCorrupt` or `StorageFailed`."""
    return open_database(
        directory,
        write_buffer_size=_WRITE_BUFFER_BYTES,
        lru_cache_size=_BLOCK_CACHE_BYTES,
        bloom_filter_bits=_BLOOM_BITS,
    )


class StateStore:
    """Every call blocks, and raises `StorageFailed` or `LogCorrupt` when the disk fails."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fail_stop = LevelDBFailStop(directory)
        self._calls = 0
        self._swapping = False
        self._views: set[StateView] = set()
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._db = open_state_database(directory)

    def get(self, key: bytes) -> bytes | None:
        with self._calling() as db:
            return db.get(key, verify_checksums=True)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._calling() as db:
            return [db.get(key, verify_checksums=True) for key in keys]

    def scan(
        self, start: bytes, stop: bytes, *, limit: int, max_bytes: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Rows with keys in [`start`, `stop`), in order, at most `limit`.

        With `max_bytes`, the row that reaches that many bytes of values is the last.
        """
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        with (
            self._calling() as db,
            db.iterator(start=start, stop=stop, verify_checksums=True) as found,
        ):
            for row in found:
                rows.append(row)
                size += len(row[1])
                if len(rows) >= limit or (max_bytes is not None and size >= max_bytes):
                    break
        return rows

    def write(self, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Put rows, delete those with value None: all of them or none; synced."""
        with self._calling() as db:
            batch = db.write_batch(sync=True)
            for key, value in items:
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
            batch.write()

    def delete_range(self, start: bytes, stop: bytes, *, max_keys: int) -> int:
        """Delete up to `max_keys` rows with keys in [`start`, `stop`); returns how many."""
        with self._calling() as db:
            batch = db.write_batch(sync=True)
            deleted = 0
            with db.iterator(start=start, stop=stop, include_value=False) as keys:
                for key in keys:
                    batch.delete(key)
                    deleted += 1
                    if deleted >= max_keys:
                        break
            batch.write()
            return deleted

    def size_between(self, start: bytes, stop: bytes) -> int:
        """About how many bytes on disk the rows between two keys take, deleted ones included and
        the newest ones not."""
        with self._calling() as db:
            return db.approximate_size(start, stop)

    def compact(self, start: bytes, stop: bytes) -> bool:
        """Free the disk space that deleted rows between two keys take.

        Returns False, and does nothing, while a view still shows rows deleted since it was opened.
        """
        with self._calling() as db:
            if self._views:
                return False
            db.compact_range(start=start, stop=stop)
            return True

    def remove_unused(self) -> bool:
        """Remove files that a compaction replaced while they were being read.

        LevelDB looks for such files only when it has written a new one, which an idle node never
        does. Returns False, and does nothing, while a reader is active.
        """
        with self._calling() as db:
            with self._lock:
                if self._calls > 1:
                    return False
            # There are no such keys: this only starts a new log file.
            db.compact_range(start=_BEHIND_ALL, stop=_BEHIND_ALL)
            return True

    def last(self, start: bytes, stop: bytes) -> tuple[bytes, bytes] | None:
        """The last row with a key in [`start`, `stop`); None if there is none."""
        with (
            self._calling() as db,
            db.iterator(start=start, stop=stop, reverse=True, verify_checksums=True) as found,
        ):
            return next(iter(found), None)

    def view(self) -> StateView:
        """The state as of now; later changes do not show. Close it: it keeps old rows on disk."""
        with self._calling() as db:
            view = StateView(self, db)
        self._views.add(view)
        return view

    def swap(self, replace: Callable[[], None]) -> None:
        """Let `replace` put another database into the directory, and continue with that one.

        Waits for calls under way; later ones wait until it is done. Views of the old state become
        invalid. After an error the store is unusable.
        """
        with self._lock, self._fail_stop:
            self._swapping = True  # otherwise overlapping readers could block it for ever
            try:
                self._changed.wait_for(lambda: not self._calls)
                self._db.close()
                replace()
                self._db = open_state_database(self._directory)
            finally:
                self._swapping = False
                self._changed.notify_all()

    def close(self) -> None:
        with self._lock:
            self._changed.wait_for(lambda: not self._calls)
            self._db.close()

    @contextmanager
    def _calling(self, db: plyvel.DB | None = None) -> Iterator[plyvel.DB]:
        """Use the database, and keep it open for the length of the call.

        With `db`, raises `ViewGone` unless that is still the database in use.
        """
        with self._lock:
            self._changed.wait_for(lambda: not self._swapping)
            if db is not None and (db is not self._db or db.closed):
                raise ViewGone(f"the state in {self._directory} was replaced")
            self._calls += 1
            used = self._db
        try:
            with self._fail_stop:
                yield used
        finally:
            with self._lock:
                self._calls -= 1
                if not self._calls:
                    self._changed.notify_all()


class StateView:
    """A store's rows as of one moment."""

    def __init__(self, store: StateStore, db: plyvel.DB) -> None:
        self._store = store
        self._db = db
        self._snapshot = db.snapshot()

    def get(self, key: bytes) -> bytes | None:
        """Raises `ViewGone`."""
        with self._store._calling(self._db):
            return self._snapshot.get(key, verify_checksums=True)

    @contextmanager
    def rows(self, start: bytes) -> Iterator[Iterator[tuple[bytes, bytes]]]:
        """The rows from `start` on, in order; the store cannot be swapped inside.

        Raises `ViewGone`.
        """
        with (
            self._store._calling(self._db),
            self._snapshot.iterator(start=start, verify_checksums=True, fill_cache=False) as rows,
        ):
            yield iter(rows)

    def close(self) -> None:
        """Release the old rows; a repetition does nothing."""
        with self._store._lock:
            self._snapshot.close()
            self._store._views.discard(self)
