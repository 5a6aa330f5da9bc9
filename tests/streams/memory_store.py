"""A store in memory, of which a test counts the reads."""

from __future__ import annotations

from streamd.streams.queries.rows_in_memory import RowsInMemory


class MemoryStore(RowsInMemory):
    """`gets` counts the rows looked up one by one."""

    def __init__(self, rows: dict[bytes, bytes] | None = None) -> None:
        super().__init__(rows)
        self.gets = 0

    def get(self, key: bytes) -> bytes | None:
        self.gets += 1
        return super().get(key)

    def copy(self) -> MemoryStore:
        return MemoryStore(self.rows)
