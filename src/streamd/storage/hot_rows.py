"""The rows of a state, except for records that the cold store has too.

It also leaves out what describes one node's own rows: which of them it has evicted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from streamd.storage.state_store import StateView
from streamd.streams import keys


class View(Protocol):
    """A state's rows as of one moment."""

    def get(self, key: bytes) -> bytes | None: ...

    @contextmanager
    def rows(self, start: bytes) -> Iterator[Iterator[tuple[bytes, bytes]]]: ...

    def close(self) -> None: ...


class HotRows:
    """A view that leaves out the chunks and parts that end within their id's slices.

    Slices of an id have no gaps, so whatever ends before the end of one is in the cold store.
    """

    def __init__(self, view: StateView) -> None:
        self._view = view
        # The end of one slice of one id: rows that end before it need no lookup.
        self._covered = (0, 0)

    def get(self, key: bytes) -> bytes | None:
        return self._view.get(key)

    @contextmanager
    def rows(self, start: bytes) -> Iterator[Iterator[tuple[bytes, bytes]]]:
        with self._view.rows(start) as rows:
            yield (row for row in rows if not self._is_cold(row[0]))

    def close(self) -> None:
        self._view.close()

    def _is_cold(self, key: bytes) -> bool:
        letter = key[:1]
        if letter == keys.DROPPED:
            return True
        if letter not in (keys.CHUNK, keys.BLOB_PART):
            return False
        owner_id, last = _ids(key)
        # A chunk's key holds the number after its last record; a part is one record and holds its
        # own.
        end = last if letter == keys.CHUNK else last + 1
        covered_id, covered_end = self._covered
        if covered_id != owner_id or end > covered_end:
            self._covered = (owner_id, self._slice_end(owner_id, end))
        return end <= self._covered[1]

    def _slice_end(self, owner_id: int, record: int) -> int:
        """The end of the slice in which `record`, or what follows it, ends; 0 if there is none."""
        with self._view.rows(keys.slice_key(owner_id, record)) as rows:
            for key, _ in rows:
                found_id, end = _ids(key) if key[:1] == keys.SLICE else (0, 0)
                if found_id == owner_id:
                    return end
                break
        return 0


def _ids(key: bytes) -> tuple[int, int]:
    """The two numbers after the letter of a key."""
    owner_id, last = keys.place_in(key[1:])
    return int(owner_id), int(last)
