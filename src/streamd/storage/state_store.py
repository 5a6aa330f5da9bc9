"""The machine's state on disk: an ordered key-value store, written without syncs.

What a crash loses of it the Raft log replays, because every batch holds the index of the last
entry in it. Reads may come from several threads, beside a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from streamd.storage.leveldb import FailStop, open_database

_WRITE_BUFFER_BYTES = 16 * 1024 * 1024
_BLOCK_CACHE_BYTES = 32 * 1024 * 1024
_BLOOM_BITS = 10


class StateStore:
    """Every call blocks, and raises `StorageFailed` or `LogCorrupt` when the disk does not do."""

    def __init__(self, directory: Path) -> None:
        self._fail_stop = FailStop(directory)
        self._db = open_database(
            directory,
            write_buffer_size=_WRITE_BUFFER_BYTES,
            lru_cache_size=_BLOCK_CACHE_BYTES,
            bloom_filter_bits=_BLOOM_BITS,
        )

    def get(self, key: bytes) -> bytes | None:
        with self._fail_stop.guarding():
            return self._db.get(key, verify_checksums=True)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        get = self._db.get
        with self._fail_stop.guarding():
            return [get(key, verify_checksums=True) for key in keys]

    def scan(
        self, start: bytes, stop: bytes, *, limit: int, max_bytes: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Rows from `start` to before `stop`, in order, at most `limit`.

        With `max_bytes` it ends with the row that reaches that many bytes of values.
        """
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        with (
            self._fail_stop.guarding(),
            self._db.iterator(start=start, stop=stop, verify_checksums=True) as found,
        ):
            for row in found:
                rows.append(row)
                size += len(row[1])
                if len(rows) >= limit or (max_bytes is not None and size >= max_bytes):
                    break
        return rows

    def write(self, items: Iterable[tuple[bytes, bytes | None]], *, sync: bool = False) -> None:
        """Put rows, or delete those with value None, all of them or none.

        With `sync`, everything written so far is on disk afterwards.
        """
        with self._fail_stop.guarding():
            batch = self._db.write_batch(sync=sync)
            for key, value in items:
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
            batch.write()

    def delete_range(self, start: bytes, stop: bytes, *, max_keys: int) -> int:
        """Delete up to `max_keys` rows from `start` to before `stop`; returns how many."""
        with self._fail_stop.guarding():
            batch = self._db.write_batch()
            deleted = 0
            with self._db.iterator(start=start, stop=stop, include_value=False) as keys:
                for key in keys:
                    batch.delete(key)
                    deleted += 1
                    if deleted >= max_keys:
                        break
            batch.write()
            return deleted

    def close(self) -> None:
        self._db.close()
