"""Ends idle producers of streams that have many, while this node leads."""

from __future__ import annotations

from heapq import nsmallest

import msgspec
import trio

from streamd.group.faces import Faces
from streamd.process.threads import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.commands import EndProducers
from streamd.streams.model import ProducerState
from streamd.streams.producers import MAX_PRODUCERS, is_idle

# How many are ended at a time, so that a stream is not looked at for each new producer.
_MOST_AT_ONCE = MAX_PRODUCERS // 10
_ROWS_AT_ONCE = 4_096
# How long a stream is left alone after it was looked at.
_PAUSE_S = 5.0

_PRODUCER = msgspec.msgpack.Decoder(ProducerState)


class Ending:
    """Proposes to end the producers that have been idle longest, of one crowded stream at a time.

    The machine ends those that are still idle. Streams are noted again by the next new producer, so
    nothing is lost if a proposal fails.
    """

    def __init__(self, group: Faces, store: StateStore, run_blocking: RunBlocking) -> None:
        self._group = group
        self._store = store
        self._run_blocking = run_blocking
        # Streams that were looked at, until when they are left alone.
        self._resting: dict[bytes, float] = {}

    async def step(self, now_ms: int) -> None:
        """Look at one stream, if any is crowded. Raises `Unavailable`, `OutcomeUnknown`."""
        state, now = self._group.reads.state, trio.current_time()
        self._resting = {key: until for key, until in self._resting.items() if until > now}
        key = next((one for one in state.crowded if one not in self._resting), None)
        if key is None:
            return
        state.crowded.discard(key)
        self._resting[key] = now + _PAUSE_S
        stream = state.streams.get(key)
        if stream is None:
            return
        idlest = await self._run_blocking(_idlest, self._store, stream.stream_id, now_ms)
        if idlest:
            await self._group.writes.propose(EndProducers(key, idlest))


def _idlest(store: StateStore, stream_id: int, now_ms: int) -> list[str]:
    """The producers of a stream that have been idle longest, of those that may be ended. Blocks."""
    start, stop = keys.id_range(keys.PRODUCER, stream_id)
    found: list[tuple[int, str]] = []
    while rows := store.scan(start, stop, limit=_ROWS_AT_ONCE):
        for row, raw in rows:
            known = _PRODUCER.decode(raw)
            if is_idle(known, now_ms):
                found.append((known.touched_ms, keys.producer_in(row)))
        found = nsmallest(_MOST_AT_ONCE, found)
        start = rows[-1][0] + b"\0"
    return [producer_id for _, producer_id in found]
