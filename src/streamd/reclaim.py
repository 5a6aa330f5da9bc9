"""Removal of what deleted streams leave behind, a little at a time, on this node alone.

The machine only notes the id of a removed stream; ids are never used again, so nothing can read
the rows below it, and taking them away needs no agreement with other nodes.
"""

from __future__ import annotations

import trio

from streamd.blocking import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams import keys

RECLAIM_INTERVAL_S = 5.0
_IDS_PER_ROUND = 64
_KEYS_PER_SLICE = 2_000


async def reclaim_forever(store: StateStore, run_blocking: RunBlocking) -> None:
    """Remove the rows of removed streams, and then the note that asked for it."""
    while True:
        while await run_blocking(_reclaim_some, store):
            pass
        await trio.sleep(RECLAIM_INTERVAL_S)


def _reclaim_some(store: StateStore) -> bool:
    """Remove one slice of rows. Returns whether there may be more."""
    start = keys.GARBAGE
    notes = store.scan(start, bytes([start[0] + 1]), limit=_IDS_PER_ROUND)
    budget = _KEYS_PER_SLICE
    for note, _ in notes:
        stream_id = keys.id_in(note)
        for letter in (keys.CHUNK, keys.PRODUCER):
            removed = store.delete_range(*keys.id_range(letter, stream_id), max_keys=budget)
            budget -= removed
            if budget <= 0:
                return True
        store.write([(note, None)])
    return len(notes) == _IDS_PER_ROUND
