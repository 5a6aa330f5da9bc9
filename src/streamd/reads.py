"""Reading streams: from memory where the records are recent, else from the store in a thread."""

from __future__ import annotations

from streamd.blocking import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams.chunks import OffsetMismatch, Slice
from streamd.streams.model import Stream
from streamd.streams.offsets import Position
from streamd.streams.state import (
    RecordSlice,
    State,
    StoredRead,
    load_rows,
    read_from_store,
    records_from_store,
)


class OffsetGone(Exception):
    """A position lies before a stream's snapshot; `earliest` is the first that can be read."""

    def __init__(self, earliest: Position) -> None:
        super().__init__(earliest.token().decode())
        self.earliest = earliest


class Reads:
    """The state as readers see it. What is returned is as of the moment of the return."""

    def __init__(self, state: State, store: StateStore, run_blocking: RunBlocking) -> None:
        self._state = state
        self._store = store
        self._run_blocking = run_blocking

    async def stream(self, key: bytes) -> Stream | None:
        """A stream's metadata, deleted and expired ones included; None when there is none.

        The value is the machine's own and changes as the stream does: do not keep it across
        an await that matters, and never write to it.
        """
        streams = self._state.streams
        while key not in streams:
            flushes = self._state.flushes
            rows = await self._run_blocking(load_rows, self._store, [key])
            # A flush in between may have let go of a newer row than the one just read.
            if flushes == self._state.flushes:
                return streams.install(key, rows[key])
        return streams.get(key)

    async def read(self, stream: Stream, at: Position, max_bytes: int) -> Slice:
        """Records of `stream` from `at` on, at most about `max_bytes` but at least one.

        Empty only at the tail. Raises `OffsetMismatch` when `at` is not a record boundary of
        the stream, also when the stream was removed meanwhile; `OffsetGone` when it was trimmed.
        """
        while True:
            if stream.snapshot is not None and at.record < stream.snapshot.record:
                raise OffsetGone(stream.earliest)
            recent = self._state.read_recent(stream, at, max_bytes)
            if recent is not None:
                return recent
            stored = await self._run_blocking(read_from_store, self._store, stream, at, max_bytes)
            self._keep(stream, stored)
            if stored.slice is not None:
                return stored.slice
            if self._state.read_recent(stream, at, max_bytes) is None:
                if at.record < stream.earliest.record:
                    raise OffsetGone(stream.earliest)
                raise OffsetMismatch

    async def records(self, stream: Stream, at: Position, max_bytes: int) -> RecordSlice:
        """As `read`, with the records' lengths, for streams as they once were.

        `stream` is a copy whose ids are pinned: what was trimmed since can still be read.
        Nothing of it is kept in memory. Raises `OffsetMismatch`.
        """
        found = self._state.read_recent_records(stream, at, max_bytes)
        if found is None:
            store = self._store
            found = await self._run_blocking(records_from_store, store, stream, at, max_bytes)
        if found is None:
            # A flush may have moved it from memory to the store between the two looks.
            found = self._state.read_recent_records(stream, at, max_bytes)
        if found is None:
            raise OffsetMismatch
        return found

    def _keep(self, stream: Stream, stored: StoredRead) -> None:
        """Keep chunks that reach to the stream's end: its next reader will want them too."""
        if not stored.chunks or stored.stream_id != stream.stream_id:
            return
        if stored.chunks[-1].end_record == stream.records:
            self._state.tails.install(stream.stream_id, list(stored.chunks))
