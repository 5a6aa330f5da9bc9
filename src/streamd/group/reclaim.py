"""Removes rows of deleted streams and blobs, a little at a time, on this node alone.

The machine only notes the id of a removed stream, blob or subscription, or the record up to which a
stream was trimmed. No new reader can reach the rows that a note names, so removing them needs no
agreement with other nodes; a reader that still sends them pins them (`Pins`). Slices in the cold
store belong to all nodes: the leader removes them through the log (`DropSlices`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set

import msgspec
import trio

from streamd.process.threads import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.model import ColdSlice

RECLAIM_INTERVAL_S = 5.0
_NOTES_PER_SLICE = 64
_KEYS_PER_SLICE = 2_000
# Deleted rows of one id that take more than this on disk are compacted at once; LevelDB removes
# smaller ones as other rows are written.
_COMPACT_BYTES = 16 * 1024 * 1024
_Range = tuple[bytes, bytes]
_SLICE = msgspec.msgpack.Decoder(ColdSlice)

_ROWS_OF_AN_ID = (
    keys.CHUNK,
    keys.PRODUCER,
    keys.BLOB_PART,
    keys.DROPPED,
    keys.NAMED,
    keys.LINKED,
    keys.PENDING,
)


class Pin:
    """Keeps the rows of some ids until it is released."""

    def __init__(self, pins: Pins, ids: frozenset[int]) -> None:
        self._pins = pins
        self._ids = ids

    def release(self) -> None:
        """Release the rows; a second call does nothing."""
        ids, self._ids = self._ids, frozenset()
        self._pins._release(ids)


class Pins:
    """All ids of a group that are pinned on this node, with counts.

    Rows become garbage only when a command is applied, which notes their id; reclaim reads these
    notes. So a reader that finds an id, and pins it without awaiting in between, may read all rows
    under it until the release.
    """

    def __init__(self) -> None:
        self._held: Counter[int] = Counter()

    def hold(self, ids: Iterable[int]) -> Pin:
        """Pin ids of streams and blobs; the caller must release the pin whatever happens."""
        wanted = frozenset(ids)
        self._held.update(wanted)
        return Pin(self, wanted)

    def held(self) -> frozenset[int]:
        """The ids that are pinned now."""
        return frozenset(self._held)

    def _release(self, ids: Iterable[int]) -> None:
        for each in ids:
            self._held[each] -= 1
            if not self._held[each]:
                del self._held[each]


async def reclaim_forever(store: StateStore, run_blocking: RunBlocking, pins: Pins) -> None:
    """Remove the rows that notes name, and then the notes."""
    while True:
        for letter in (keys.GARBAGE, keys.TRIM):
            start: bytes | None = letter
            while start is not None:
                start = await run_blocking(reclaim_some, store, start, pins.held())
        await trio.sleep(RECLAIM_INTERVAL_S)


def reclaim_some(store: StateStore, start: bytes, pinned: Set[int]) -> bytes | None:
    """Remove some rows; returns the note to continue with, or None
    after the last one."""
    stop = keys.end_of(start)
    notes = store.scan(start, stop, limit=_NOTES_PER_SLICE)
    budget = _KEYS_PER_SLICE
    for note, _ in notes:
        stream_id, ranges, slices = _noted(store, note)
        if stream_id in pinned:
            continue
        for first, last in ranges:
            budget -= store.delete_range(first, last, max_keys=budget)
            if budget <= 0:
                return note
            if store.size_between(first, last) >= _COMPACT_BYTES:
                store.compact(first, last)
        # The leader needs the note too, to drop the slices on all nodes.
        if not store.scan(*slices, limit=1):
            store.write([(note, None)])
    return notes[-1][0] + b"\0" if len(notes) == _NOTES_PER_SLICE else None


def _noted(store: StateStore, note: bytes) -> tuple[int, list[_Range], _Range]:
    """The id that a note is about, the ranges of rows that may go, and the range of the slices
    that keep the note in place."""
    if note[:1] == keys.TRIM:
        stream_id, (first, last) = keys.trimmed_chunks(note)
        slices = keys.trimmed_slices(note)
        # A partly trimmed slice can be compared with the rows here only as a whole.
        after = store.scan(slices[1], keys.id_range(keys.SLICE, stream_id)[1], limit=1)
        for _, value in after:
            last = min(last, keys.chunk_key(stream_id, _SLICE.decode(value).start_record + 1))
        return stream_id, [(first, last)], slices
    stream_id = keys.parse_id(note)
    ranges = [keys.id_range(letter, stream_id) for letter in _ROWS_OF_AN_ID]
    return stream_id, ranges, keys.id_range(keys.SLICE, stream_id)
