"""Lets buckets count the streams that are older than the first quota, while this node leads."""

from __future__ import annotations

import msgspec

from streamd.group.faces import Faces
from streamd.process.threads import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.commands import Sweep
from streamd.streams.model import Bucket, Stream

_ROWS_AT_ONCE = 256

_BUCKET = msgspec.msgpack.Decoder(Bucket)
_STREAM = msgspec.msgpack.Decoder(Stream)


class Counting:
    """Passes over all streams until every bucket has counted its own; once in a term."""

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
    while rows := store.scan(start, stop, limit=_ROWS_AT_ONCE):
        buckets = [_BUCKET.decode(raw) for _, raw in rows]
        if any(bucket.counted != bucket.streams for bucket in buckets):
            return True
        start = rows[-1][0] + b"\0"
    return False


def _uncounted(store: StateStore, start: bytes) -> tuple[list[bytes], bytes | None]:
    """The uncounted streams in some rows from `start` on, and where the next rows begin; None at
    the end. Blocks."""
    rows = store.scan(start, keys.end_of(keys.STREAM), limit=_ROWS_AT_ONCE)
    found = [
        row[1:]
        for row, raw in rows
        if _STREAM.decode(raw).kept_from is None and keys.is_stream_key(row[1:])
    ]
    return found, rows[-1][0] + b"\0" if rows else None
