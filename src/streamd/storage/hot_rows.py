"""The rows of a state, except for records that the cold store has too.

Also left out is what concerns one node's own rows: which of them it has evicted.
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
    """A view that leaves out the chunks and parts that lie before the end of their id's slices.

    Slices of an id have no gap, so whatever ends before one of them is in the cold store.
    """

    def __init__(self, view: StateView) -> None:
        self._view = view
        # Of one id, the end of a slice: what ends before needs no look.
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
        # A chunk's key has the record after its last; a part is one record, and has its number.
        end = last if letter == keys.CHUNK else last + 1
        covered_id, covered_end = self._covered
        if covered_id != owner_id or end > covered_end:
            self._covered = (owner_id, self._slice_end(owner_id, end))
        return end <= self._covered[1]

    def _slice_end(self, owner_id: int, record: int) -> int:
        """Where the slice ends that `record` or what follows it ends in; 0 when there is none."""
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
