"""Reading streams: from memory where the records are recent, else from the store in a thread."""

from __future__ import annotations

from streamd.blocking import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams.chunks import OffsetMismatch, Slice
from streamd.streams.model import Stream
from streamd.streams.offsets import Position
from streamd.streams.state import State, StoredRead, load_rows, read_from_store


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
        the stream, also when the stream was removed meanwhile.
        """
        while True:
            recent = self._state.read_recent(stream, at, max_bytes)
            if recent is not None:
                return recent
            stored = await self._run_blocking(read_from_store, self._store, stream, at, max_bytes)
            self._keep(stream, stored)
            if stored.slice is not None:
                return self._prolonged(stream, stored.slice, max_bytes)
            if self._state.read_recent(stream, at, max_bytes) is None:
                raise OffsetMismatch

    def _keep(self, stream: Stream, stored: StoredRead) -> None:
        """Keep chunks that reach to the stream's end: its next reader will want them too."""
        if not stored.chunks or stored.stream_id != stream.stream_id:
            return
        if stored.chunks[-1].end_record == stream.records:
            self._state.tails.install(stream.stream_id, list(stored.chunks))

    def _prolonged(self, stream: Stream, found: Slice, max_bytes: int) -> Slice:
        """What was found in the store, and what follows it in memory: a short stream is one piece.

        Some clients take the first piece for everything.
        """
        left = max_bytes - found.size
        recent = self._state.read_recent(stream, found.end, left) if left > 0 else None
        if recent is None or recent.size > left:
            return found
        return Slice([*found.parts, *recent.parts], recent.end, found.size + recent.size)
