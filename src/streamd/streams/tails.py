"""The recent records of streams, in memory: live readers and most reads are served from here."""

from __future__ import annotations

from collections.abc import Iterable

from streamd.streams.chunks import AnyChunk, Chunk, OpenChunk
from streamd.streams.offsets import Position

# A chunk is closed at this size: large enough that a catch-up read touches few of them.
SEAL_BYTES = 256 * 1024
# Below this size, the last chunk is stored again together with what follows it. Otherwise a stream
# that gets a small append a minute would become a chunk per append.
MERGE_BYTES = 16 * 1024


class Tail:
    """The last chunks of one stream id, contiguous up to its end."""

    __slots__ = ("chunks", "open", "size")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.open: OpenChunk | None = None
        self.size = 0

    def find(self, record: int) -> AnyChunk | None:
        """The chunk that holds `record`, or None if it is not in memory."""
        if self.open is not None and record >= self.open.start_record:
            return self.open if record < self.open.end_record else None
        chunks = self.chunks
        if not chunks or record < chunks[0].start_record:
            return None
        low, high = 0, len(chunks)
        while low < high:
            middle = (low + high) // 2
            if chunks[middle].end_record <= record:
                low = middle + 1
            else:
                high = middle
        return chunks[low] if low < len(chunks) else None


class Tails:
    """The tails of all streams in use, bounded in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._tails: dict[int, Tail] = {}
        self._open: dict[int, Tail] = {}
        self._unstored: dict[int, list[tuple[Chunk, Chunk | None]]] = {}
        self._flushing = False
        self.size = 0

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._tails

    def find(self, stream_id: int, record: int) -> AnyChunk | None:
        """The chunk that holds `record`, or None if it is not in memory."""
        tail = self._tails.get(stream_id)
        return None if tail is None else tail.find(record)

    def append(
        self, stream_id: int, at: Position, appends: Iterable[tuple[bytes, list[int]]]
    ) -> None:
        """Add appends, each with its data and the lengths of its records, at the stream's end
        `at`."""
        tail = self._opened(stream_id, at)
        chunk = tail.open
        for data, lengths in appends:
            if chunk is None:
                chunk = self._opened(stream_id, at).open
                assert chunk is not None
            chunk.add(data, lengths)
            tail.size += len(data)
            self.size += len(data)
            if chunk.size >= SEAL_BYTES:
                at = chunk.end
                self._seal(stream_id, tail)
                chunk = None

    def _opened(self, stream_id: int, at: Position) -> Tail:
        """The tail of a stream, with a chunk for what comes `at` its end."""
        tail = self._open.get(stream_id)
        if tail is None:
            tail = self._tails.pop(stream_id, None) or Tail()
            self._tails[stream_id] = self._open[stream_id] = tail
            tail.open = OpenChunk(at)
        chunk = tail.open
        assert chunk is not None
        # Computed without the properties, because this runs for each run of appends.
        assert chunk.start_byte + chunk.size == at.byte, "a stream's records have no gap"
        return tail

    def install(self, stream_id: int, chunks: list[Chunk]) -> None:
        """Take chunks read from the store that reach to the stream's end."""
        if stream_id in self._tails or not chunks:
            return
        tail = self._tails[stream_id] = Tail()
        tail.chunks = chunks
        tail.size = sum(chunk.size for chunk in chunks)
        self.size += tail.size
        if not self._flushing:
            self._evict()

    def drop(self, stream_id: int) -> None:
        """Forget a stream that no longer exists, with its unstored records."""
        tail = self._tails.pop(stream_id, None)
        self._open.pop(stream_id, None)
        self._unstored.pop(stream_id, None)
        if tail is not None:
            self.size -= tail.size

    def _seal(self, stream_id: int, tail: Tail) -> None:
        assert tail.open is not None
        chunk = tail.open.sealed()
        tail.open = None
        del self._open[stream_id]
        replaced: Chunk | None = None
        if tail.chunks and tail.chunks[-1].size + chunk.size <= MERGE_BYTES:
            replaced = tail.chunks.pop()
            chunk = replaced.merged(chunk)
        tail.chunks.append(chunk)
        self._unstored.setdefault(stream_id, []).append((chunk, replaced))

    def begin_flush(self) -> list[tuple[int, Chunk, Chunk | None]]:
        """Chunks to store, each with the one that it replaces: (stream id, chunk, replaced)."""
        for stream_id, tail in list(self._open.items()):
            self._seal(stream_id, tail)
        unstored, self._unstored = self._unstored, {}
        self._flushing = bool(unstored)
        return [(stream_id, *pair) for stream_id, pairs in unstored.items() for pair in pairs]

    def end_flush(self) -> None:
        self._flushing = False
        self._evict()

    def _evict(self) -> None:
        """Make room, beginning with the stream not written for longest; unstored records stay."""
        for stream_id, tail in list(self._tails.items()):
            if self.size <= self._limit_bytes:
                return
            keep = len(self._unstored.get(stream_id, ()))
            dropped = tail.chunks[: len(tail.chunks) - keep]
            del tail.chunks[: len(dropped)]
            size = sum(chunk.size for chunk in dropped)
            tail.size -= size
            self.size -= size
            assert tail.size >= 0, "a tail's size is that of its chunks"
            if not keep and stream_id not in self._open:
                del self._tails[stream_id]
