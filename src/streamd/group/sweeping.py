"""Proposes what nobody asks for: renewals by reads, expiry, idle uploads and producers, and what
older buckets count. All of it only while this node leads."""

from __future__ import annotations

from heapq import nsmallest
from typing import Protocol

import msgspec
import trio

from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.group.reads import GroupReads
from streamd.group.view import GroupView
from streamd.group.writes import GroupWrites
from streamd.process.threads import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.commands import DropUploads, EndProducers, Sweep
from streamd.streams.model import Bucket, ProducerState, Stream
from streamd.streams.producers import MAX_PRODUCERS, is_idle
from streamd.streams.state import due_for_sweep, idle_uploads

SWEEP_INTERVAL_S = 0.5
SWEEP_BATCH = 256
# How long an upload may get nothing new. Its server adds what it has every few seconds, so this
# only ends uploads whose server is gone.
UPLOAD_IDLE_MS = 120_000
_MAX_ABANDONED = 10_000
# How many producers are ended at a time, so that a stream is not looked at for each new producer.
_MOST_AT_ONCE = MAX_PRODUCERS // 10
_ROWS_AT_ONCE = 4_096
# How long a stream is left alone after it was looked at.
_PAUSE_S = 5.0
_COUNTED_AT_ONCE = 256

_PRODUCER = msgspec.msgpack.Decoder(ProducerState)
_BUCKET = msgspec.msgpack.Decoder(Bucket)
_STREAM = msgspec.msgpack.Decoder(Stream)


class Faces(Protocol):
    """A group, without the rest of `Group`, which could not import what imports it."""

    writes: GroupWrites
    reads: GroupReads
    view: GroupView

    def now_ms(self) -> int:
        """Current log time: the wall clock, but never before an entry already stamped."""


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


class Counting:
    """Lets buckets count the streams that are older than the first quota: passes over all streams
    until every bucket has counted its own, once in a term."""

    def __init__(self, group: Faces, store: StateStore, run_blocking: RunBlocking) -> None:
        self._group = group
        self._store = store
        self._run_blocking = run_blocking
        self._term = 0
        self._next: bytes | None = None
        # Whether another pass may find something.
        self._continues = False

    async def step(self) -> bool:
        """Propose to count some streams. Returns whether there may be more.

        Raises `Unavailable`, `OutcomeUnknown`.
        """
        group = self._group
        if not group.reads.state.header.counts:
            return False
        term = group.view.term
        if self._term != term:
            self._term, self._next, self._continues = term, None, True
        if not self._continues:
            return False
        if self._next is None:
            # Streams made after this are counted when they are made.
            await group.reads.stored()
            if not await self._run_blocking(_is_any_uncounted, self._store):
                self._continues = False
                return False
            self._next, self._continues = keys.STREAM, False
        uncounted, self._next = await self._run_blocking(_uncounted, self._store, self._next)
        if uncounted:
            self._continues = True
            await group.writes.propose(Sweep(uncounted))
        return self._next is not None or self._continues


def _is_any_uncounted(store: StateStore) -> bool:
    """Whether a bucket has a stream that it does not count. Blocks."""
    start, stop = keys.BUCKET, keys.end_of(keys.BUCKET)
    while rows := store.scan(start, stop, limit=_COUNTED_AT_ONCE):
        buckets = [_BUCKET.decode(raw) for _, raw in rows]
        if any(bucket.counted != bucket.streams for bucket in buckets):
            return True
        start = rows[-1][0] + b"\0"
    return False


def _uncounted(store: StateStore, start: bytes) -> tuple[list[bytes], bytes | None]:
    """The uncounted streams in some rows from `start` on, and where the next rows begin; None at
    the end. Blocks."""
    rows = store.scan(start, keys.end_of(keys.STREAM), limit=_COUNTED_AT_ONCE)
    found = [
        row[1:]
        for row, raw in rows
        if _STREAM.decode(raw).kept_from is None and keys.is_stream_key(row[1:])
    ]
    return found, rows[-1][0] + b"\0" if rows else None


class Sweeper:
    """Proposes these things twice a second, among them what `GroupWrites` notes until then."""

    def __init__(self, group: Faces, store: StateStore, run_blocking: RunBlocking) -> None:
        self._group = group
        self._store = store
        self._run_blocking = run_blocking
        self._touches = group.writes.touches
        self._counting = Counting(group, store, run_blocking)
        self._ending = Ending(group, store, run_blocking)

    async def run(self) -> None:
        """Run until cancelled. Raises `StorageError`."""
        more = False
        while True:
            if not more:
                await trio.sleep(SWEEP_INTERVAL_S)
            try:
                more = await self._sweep()
            except (Unavailable, OutcomeUnknown):
                more = False  # The next sweep finds these streams again.

    async def _sweep(self) -> bool:
        """Propose what is due; returns whether there may be more streams to check now.

        Streams may expire as fast as clients create them; one batch per sweep would not keep pace.
        """
        await self._drop_abandoned()
        if not self._group.view.leads:
            if self._touches.noted:
                await self._pass_touches_on()
            return False
        due, idle = await self._run_blocking(_due, self._store, self._group.now_ms())
        if due or self._touches.noted:
            await self._group.writes.propose(Sweep(due))
        if idle:
            await self._group.writes.propose(DropUploads(idle, UPLOAD_IDLE_MS))
        await self._ending.step(self._group.now_ms())
        more = await self._counting.step()
        if len(due) < SWEEP_BATCH:
            return more
        # Until then the store would return the same streams again.
        await self._group.reads.stored()
        return True

    async def _pass_touches_on(self) -> None:
        touch = self._touches.take()
        try:
            await self._group.writes.propose(touch)
        except (Unavailable, OutcomeUnknown):
            self._touches.put_back(touch)
            raise

    async def _drop_abandoned(self) -> None:
        # Uploads beyond this many are left to time out.
        writes = self._group.writes
        dropped, writes.abandoned_uploads = writes.abandoned_uploads[:_MAX_ABANDONED], []
        if dropped:
            try:
                await writes.propose(DropUploads(dropped))
            except BaseException:
                writes.abandoned_uploads += dropped
                raise


def _due(store: StateStore, now_ms: int) -> tuple[list[bytes], list[int]]:
    """Streams that may have expired, and uploads that were abandoned. Blocks."""
    return (
        due_for_sweep(store, now_ms, SWEEP_BATCH),
        idle_uploads(store, now_ms - UPLOAD_IDLE_MS, SWEEP_BATCH),
    )
