"""Blobs: bodies too large for one log entry, kept as numbered parts."""

from __future__ import annotations

from streamd.streams import keys

# Small enough that the appends that share an entry with a part hardly wait for it.
PART_BYTES = 256 * 1024


class Parts:
    """Parts that the store does not have yet. `size` is what the next flush will store, in
    bytes."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, int], bytes] = {}
        self._flushing: dict[tuple[int, int], bytes] = {}
        self.size = 0

    def put(self, blob_id: int, number: int, data: bytes) -> None:
        self._waiting[blob_id, number] = data
        self.size += len(data)

    def find(self, blob_id: int, number: int) -> bytes | None:
        """The part, or None if it is in the store or nowhere."""
        place = (blob_id, number)
        data = self._waiting.get(place)
        return self._flushing.get(place) if data is None else data

    def begin_flush(self) -> list[tuple[bytes, bytes]]:
        """Rows to store; call `end_flush` once the store has them."""
        self._flushing, self._waiting = self._waiting, {}
        self.size = 0
        return [(keys.part_key(*place), data) for place, data in self._flushing.items()]

    def end_flush(self) -> None:
        self._flushing = {}
