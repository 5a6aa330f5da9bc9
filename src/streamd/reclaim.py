"""Removal of what streams and blobs leave behind, a little at a time, on this node alone.

The machine only notes the id of a removed stream or blob, or up to which record a stream was
trimmed. Nothing new can come to read the rows that a note speaks of, so taking them away needs
no agreement with other nodes; what is still being sent out from before is pinned.
"""

from __future__ import annotations

from collections.abc import Set

import trio

from streamd.blocking import RunBlocking
from streamd.pins import Pins
from streamd.storage.state_store import StateStore
from streamd.streams import keys

RECLAIM_INTERVAL_S = 5.0
_NOTES_PER_SLICE = 64
_KEYS_PER_SLICE = 2_000
_LAST_RECORD = (1 << 64) - 1
_ROWS_OF_AN_ID = (keys.CHUNK, keys.PRODUCER, keys.BLOB_PART)


async def reclaim_forever(store: StateStore, run_blocking: RunBlocking, pins: Pins) -> None:
    """Remove the rows that notes speak of, and then the notes."""
    while True:
        for letter in (keys.GARBAGE, keys.TRIM):
            start: bytes | None = letter
            while start is not None:
                start = await run_blocking(reclaim_some, store, start, pins.held())
        await trio.sleep(RECLAIM_INTERVAL_S)


def reclaim_some(store: StateStore, start: bytes, pinned: Set[int]) -> bytes | None:
    """Remove one slice of rows; returns the note to go on with, or None behind the last one."""
    stop = bytes([start[0] + 1])
    notes = store.scan(start, stop, limit=_NOTES_PER_SLICE)
    budget = _KEYS_PER_SLICE
    for note, _ in notes:
        stream_id, ranges = _noted(note)
        if stream_id in pinned:
            continue
        for first, last in ranges:
            budget -= store.delete_range(first, last, max_keys=budget)
            if budget <= 0:
                return note
        # Slices go by a command, on all nodes alike, and who leads finds them by their note.
        if not noted_slices(store, note, 0, 1)[1]:
            store.write([(note, None)])
    return notes[-1][0] + b"\0" if len(notes) == _NOTES_PER_SLICE else None


def noted_slices(store: StateStore, note: bytes, after: int, limit: int) -> tuple[int, list[int]]:
    """The id that a note is about, and the end records of slices that may go, from the first
    behind the record `after` on, at most `limit`. Blocks."""
    if note[:1] == keys.TRIM:
        stream_id, last = keys.place_in(note[1:])
    else:
        stream_id, last = keys.id_in(note), _LAST_RECORD
    first, stop = keys.slice_key(stream_id, after + 1), keys.slice_key(stream_id, last) + b"\0"
    rows = store.scan(first, stop, limit=limit)
    return stream_id, [keys.end_record_in(row) for row, _ in rows]


def _noted(note: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
    """The id that a note is about, and the ranges of rows that may go."""
    if note[:1] == keys.TRIM:
        stream_id, chunks = keys.trimmed_chunks(note)
        return stream_id, [chunks]
    stream_id = keys.id_in(note)
    return stream_id, [keys.id_range(letter, stream_id) for letter in _ROWS_OF_AN_ID]
