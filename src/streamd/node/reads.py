"""Reads streams: recent records from memory, others from the store in a thread, and from the cold
store what is only there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from streamd.process.threads import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.chunks import AnyChunk, Limit, OffsetMismatch, Slice, Window, joined
from streamd.streams.model import Bucket, Stream
from streamd.streams.offsets import Position
from streamd.streams.queries.listing import (
    BucketPage,
    BucketQuery,
    ListQuery,
    Page,
    list_buckets,
    list_streams,
)
from streamd.streams.queries.reading import (
    StoredRead,
    find_record,
    finder,
    gather,
    home,
    read_from_store,
)
from streamd.streams.state import State, load_rows
from streamd.streams.tables import Table
from streamd.tiering.cold_reader import ColdReader

# Pages of buckets read at once: a client that lists in a loop must not take every thread.
_LISTINGS_AT_ONCE = 2

V = TypeVar("V")


class OffsetGone(Exception):
    """A position lies before a stream's snapshot; `earliest` is the first that can be read."""

    def __init__(self, earliest: Position) -> None:
        super().__init__(earliest.token().decode())
        self.earliest = earliest


class Reads:
    """The state as readers see it. Results are as of the moment of the return."""

    def __init__(
        self, state: State, store: StateStore, cold: ColdReader, run_blocking: RunBlocking
    ) -> None:
        self._state = state
        self._store = store
        self._cold = cold
        self._run_blocking = run_blocking
        self._listings = trio.CapacityLimiter(_LISTINGS_AT_ONCE)

    async def stream(self, key: bytes) -> Stream | None:
        """A stream's metadata, deleted and expired ones included; None if there is no such stream.

        The value is the machine's own and changes as the stream does: do not keep it across an
        await that matters, and never write to it.
        """
        if self.has(key):
            return self.known(key)
        return await self._row(lambda: self._state.streams, keys.STREAM, key)

    async def streams(self, wanted: Sequence[bytes]) -> list[Stream | None]:
        """The metadata of several streams, as `stream`, all as of the moment of the return."""
        while missing := [key for key in wanted if not self.has(key)]:
            flushes, table = self._state.flushes, self._state.streams
            rows = await self._run_blocking(load_rows, self._store, missing)
            if flushes == self._state.flushes:
                for key in missing:
                    table.install(key, rows[key])
                break
        return [self._state.streams.get(key) for key in wanted]

    def has(self, key: bytes) -> bool:
        """Whether memory knows of a stream, or that there is none."""
        return key in self._state.streams

    def known(self, key: bytes) -> Stream | None:
        """As `stream`, of a key that memory `has`."""
        return self._state.streams.get(key)

    async def bucket(self, name: bytes) -> Bucket | None:
        """A bucket, or None. As with `stream`, the value is the machine's."""
        return await self._row(lambda: self._state.buckets, keys.BUCKET, name)

    async def _row(self, table: Callable[[], Table[V]], prefix: bytes, key: bytes) -> V | None:
        # Looked up after each wait: an installed Raft snapshot brings new tables, and a value of an
        # old one would never change again.
        while key not in table():
            flushes = self._state.flushes
            rows = await self._run_blocking(load_rows, self._store, [key], prefix)
            # A flush in between may have evicted a newer row than the one just read.
            if flushes == self._state.flushes:
                return table().install(key, rows[key])
        return table().get(key)

    async def page(self, query: ListQuery, log_ms: int) -> Page:
        """A page of a bucket's streams, as the store has them.

        At a log time that the store has not reached, a stream would look expired if its renewal is
        not stored yet.
        """
        return await self._run_blocking(
            list_streams, self._store, query, log_ms, limiter=self._listings
        )

    async def bucket_page(self, query: BucketQuery) -> BucketPage:
        """A page of buckets, as the store has them."""
        return await self._run_blocking(list_buckets, self._store, query, limiter=self._listings)

    async def boundary(self, stream: Stream, record: int) -> Position:
        """Where a record of `stream` begins; the tail if the record does not exist yet.

        Raises as `read` does.
        """
        if record >= stream.records:
            return stream.tail
        try:
            chunk, _ = await self.chunk_at(stream, record)
        except OffsetMismatch:
            chunk = None
        if record < stream.earliest.record:
            raise OffsetGone(stream.earliest)
        if chunk is None:
            raise OffsetMismatch
        skipped = record - chunk.start_record
        return Position(record, chunk.start_byte + chunk.bytes_before(skipped))

    async def read(self, stream: Stream, window: Window) -> Slice:
        """The records of `stream` in `window`.

        Empty only at the tail. A position inside a record reads from its beginning. Raises
        `OffsetMismatch` when the position contradicts the stream, or the stream was removed
        meanwhile; `OffsetGone` when it was trimmed; a `ColdError` when the records are only in the
        cold store and cannot be read there.
        """
        flushes = self._state.flushes
        while True:
            recent = self.read_now(stream, window)
            if recent is not None:
                return recent
            stored = await self._run_blocking(read_from_store, self._store, stream, window)
            # Only if `stream` is certainly still the state's own. If a Raft snapshot replaced it
            # with a larger one, or it was loaded from the store again, these chunks would leave a
            # gap.
            if flushes == self._state.flushes:
                self._keep(stream, stored)
            found = stored.slice
            if stored.cold:
                chunks = await self._cold.chunks(stored.cold)
                found = gather(stream, window, finder(stored.stream_id, chunks))
            if found is not None:
                return self._prolonged(stream, found, window)
            if self.read_now(stream, window) is None:
                raise OffsetMismatch

    def read_now(self, stream: Stream, window: Window) -> Slice | None:
        """Read without waiting; None if the records are not in memory."""
        if window.at.record < stream.earliest.record:
            raise OffsetGone(stream.earliest)
        return gather(stream, window, self._state.tails.find)

    async def read_pinned(self, stream: Stream, window: Window) -> Slice:
        """Read from an earlier, pinned state of the stream, like `read`.

        `stream` is a copy whose ids are pinned: records trimmed since can still be read. Nothing of
        it is kept in memory. Raises `OffsetMismatch`, and as `read` a `ColdError`.
        """
        recent = gather(stream, window, self._state.tails.find)
        if recent is not None:
            return recent
        stored = await self._run_blocking(read_from_store, self._store, stream, window)
        found = stored.slice
        if stored.cold:
            chunks = await self._cold.chunks(stored.cold)
            found = gather(stream, window, finder(stored.stream_id, chunks))
        if found is not None:
            return found
        # A flush may have moved it from memory to the store between the two lookups.
        recent = gather(stream, window, self._state.tails.find)
        if recent is None:
            raise OffsetMismatch
        return recent

    async def chunk_at(self, stream: Stream, record: int) -> tuple[AnyChunk, Limit]:
        """A chunk with `record`, and how far the stream reads in it. It holds only whole appends.

        Raises `OffsetMismatch` if there is none, and as `read` a `ColdError`.
        """
        stream_id, limit = home(stream, record)
        for _ in range(2):
            recent = self._state.tails.find(stream_id, record)
            if recent is not None:
                return recent, limit
            store = self._store
            stored, cold = await self._run_blocking(find_record, store, stream_id, record)
            found = stored or (await self._cold.chunks(cold) if cold else [])
            if found:
                return found[0], limit
            # A flush may have moved it from memory to the store between the two lookups.
        raise OffsetMismatch

    async def bytes_before(self, stream: Stream, record: int, most: int) -> bytes:
        """Up to `most` bytes that end where `record` begins. Fewer if the others are only in the
        cold store, or lie further back than the chunk with the record before."""
        if record <= stream.earliest.record:
            return b""
        stream_id, limit = home(stream, record - 1)
        chunk: AnyChunk | None = self._state.tails.find(stream_id, record - 1)
        if chunk is None:
            stored, _ = await self._run_blocking(find_record, self._store, stream_id, record - 1)
            if not stored:
                return b""
            chunk = stored[0]
        stop = chunk.bytes_before(record - chunk.start_record)
        stop = min(stop, limit.byte - chunk.start_byte)
        return b"".join(chunk.buffers(max(0, stop - most), stop))

    def _keep(self, stream: Stream, stored: StoredRead) -> None:
        """Keep chunks that reach to the stream's end: its next reader will want them too."""
        if not stored.chunks or stored.stream_id != stream.stream_id:
            return
        if stored.chunks[-1].end_record == stream.records:
            self._state.tails.install(stream.stream_id, list(stored.chunks))

    def _prolonged(self, stream: Stream, found: Slice, window: Window) -> Slice:
        """What was found in the store, and what follows it in memory: a short stream is one piece.

        Some clients take the first piece for everything.
        """
        rest = window.after(found)
        if rest is None:
            return found
        recent = gather(stream, rest, self._state.tails.find)
        if recent is None or recent.size > rest.max_bytes:
            return found
        return joined((found, recent))
