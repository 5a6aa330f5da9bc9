"""Rows that list the streams of subscriptions, while the store does not have them yet.

They are for listing alone: what they say is checked against the streams. So a reader may take the
unstored rows first and then scan the store, in which some of them may have arrived by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streamd.streams import keys

# The rows of one letter and one subscription: the stream's key, and whether there is a row.
_Changed = dict[tuple[bytes, int], dict[bytes, bool]]


class LinkRows:
    """The rows `LINKED` and `PENDING` that were put or removed since they were last stored."""

    def __init__(self) -> None:
        self._changed: _Changed = {}
        self._flushing: _Changed = {}
        self.count = 0  # How many rows are unstored.

    def put(self, letter: bytes, number: int, key: bytes, *, exists: bool) -> None:
        """Put a row about a subscription and a stream, or remove it."""
        rows = self._changed.setdefault((letter, number), {})
        self.count += key not in rows
        rows[key] = exists

    def unstored(self, letter: bytes, number: int) -> Mapping[bytes, bool]:
        """The streams about which the store may not have the last word yet, and whether there is a
        row for each."""
        place = letter, number
        return {**self._flushing.get(place, {}), **self._changed.get(place, {})}

    def begin_flush(self) -> Iterator[tuple[bytes, bytes | None]]:
        """The rows to store, as of now."""
        self._flushing, self._changed, self.count = self._changed, {}, 0
        for (letter, number), rows in self._flushing.items():
            for key, exists in rows.items():
                yield keys.of_subscription(letter, number, key), b"" if exists else None

    def end_flush(self) -> None:
        """The store has the rows."""
        self._flushing = {}
