"""An ordered key-value store in memory, with the contract of the one on disk."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence


class RowsInMemory:
    """Rows in key order (`tables.KeyValue`)."""

    def __init__(self, rows: dict[bytes, bytes] | None = None) -> None:
        self.rows: dict[bytes, bytes] = dict(rows or {})
        self._order = sorted(self.rows)

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.rows.get(key) for key in keys]

    def scan(
        self, start: bytes, stop: bytes, *, limit: int, max_bytes: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        size = 0
        for key in self._order[bisect_left(self._order, start) : bisect_left(self._order, stop)]:
            found.append((key, self.rows[key]))
            size += len(self.rows[key])
            if len(found) >= limit or (max_bytes is not None and size >= max_bytes):
                break
        return found

    def write(self, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Put the rows with a value, and remove those without."""
        for key, value in items:
            if value is not None:
                if key not in self.rows:
                    insort(self._order, key)
                self.rows[key] = value
            elif self.rows.pop(key, None) is not None:
                del self._order[bisect_left(self._order, key)]
