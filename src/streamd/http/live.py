"""Live readers: which reader waits on which stream, and how changes reach it.

A change is encoded once and written straight to the sockets of all readers at its start, without
waking a task for each. A reader's own task takes over when its socket would block, when the reader
lags, and when the stream ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import trio

from streamd.http.cursors import current_cursor
from streamd.http.messages import Channel
from streamd.http.sse import control_event, data_event, whole_characters
from streamd.metrics import Metrics
from streamd.streams.commands import Change
from streamd.streams.offsets import Position

# A group's id, and a stream's id within that group.
LiveStream = tuple[int, int]

# Takes the least cursor that a reader may get, and the bytes held back from it so far. Returns the
# event of a change, and the bytes held back after it.
Encode = Callable[[int, bytes], tuple[bytes, bytes]]

# A larger change is not encoded for all: each reader reads it by itself, a piece at a time.
MAX_DIRECT_BYTES = 64 * 1024


class Reader:
    """A live reader, parked at the tail `at` of a stream until the stream changes."""

    __slots__ = ("_scope", "at", "news", "stream")

    def __init__(self, stream: LiveStream, at: Position) -> None:
        self.stream = stream
        self.at = at
        self.news = False
        self._scope: trio.CancelScope | None = None

    def deliver(self, change: Change, encode: Encode) -> bool:
        """Deliver a change. Returns whether the reader stays parked."""
        if self.knows(change):
            return True
        self.wake()
        return False

    def knows(self, change: Change) -> bool:
        """Whether the reader has read this change already.

        Changes are published a little after they were made; a reader may park in between.
        """
        return self.at == change.stream.tail and not change.stream.closed

    def wake(self) -> None:
        self.news = True
        if self._scope is not None:
            self._scope.cancel()

    async def park(self, channel: Channel, deadline: float) -> bool:
        """Wait for a change until `deadline`. Returns False if the client disconnects first."""
        assert self._scope is None, "one task parks a reader"
        self.news = False
        with trio.CancelScope(deadline=deadline) as self._scope:
            await channel.wait_disconnected()
        gone = not self._scope.cancelled_caught
        self._scope = None
        return not gone


class SseReader(Reader):
    """A reader to which the hub itself writes events.

    `cursor` is the least cursor that it may get, by what it echoed; `held` are bytes before `at`
    that it has not been sent (`sse.whole_characters`); `finished` says that the close of the stream
    was sent.
    """

    __slots__ = ("channel", "cursor", "finished", "held")

    def __init__(
        self, stream: LiveStream, channel: Channel, at: Position, cursor: int, held: bytes
    ) -> None:
        super().__init__(stream, at)
        self.channel = channel
        self.cursor = cursor
        self.held = held
        self.finished = False

    def deliver(self, change: Change, encode: Encode) -> bool:
        """Write the change's event, if the reader is at its start."""
        if self.at != change.start:
            return super().deliver(change, encode)
        event, self.held = encode(self.cursor, self.held)
        sent = self.channel.try_send(event)
        assert self.at <= change.stream.tail, "events never go back"
        self.at = change.stream.tail
        self.finished = change.stream.closed
        if sent and not self.finished:
            return True
        # Its own task must write the rest now, not at the next heartbeat.
        self.wake()
        return False


class Hub:
    """All parked readers by stream. `clock_ms` is wall time in ms since the epoch.

    `reading_now` counts the live responses under way, by mode, parked or not.
    """

    def __init__(self, clock_ms: Callable[[], int], max_readers: int) -> None:
        self._clock_ms = clock_ms
        self._max_readers = max_readers
        self._readers: dict[LiveStream, set[Reader]] = {}
        self.reading_now = {"long-poll": 0, "sse": 0}
        self.draining = False

    @property
    def full(self) -> bool:
        """Whether another live reader would be one too many."""
        return sum(self.reading_now.values()) >= self._max_readers

    def export(self, metrics: Metrics) -> None:
        """Export the number of live responses under way."""
        metrics.gauge_by(
            "mode", "live_readers", "Live responses under way.", lambda: self.reading_now
        )

    @contextmanager
    def reading(self, mode: str) -> Iterator[None]:
        """Count a live response while it is under way."""
        self.reading_now[mode] += 1
        try:
            yield
        finally:
            self.reading_now[mode] -= 1
            assert self.reading_now[mode] >= 0, "a response ends once"

    def add(self, reader: Reader) -> None:
        """Publish changes to `reader` too. It must `park` without awaiting in between, or it would
        miss the changes made in that time."""
        self._readers.setdefault(reader.stream, set()).add(reader)

    def remove(self, reader: Reader) -> None:
        readers = self._readers.get(reader.stream)
        if readers is not None:
            readers.discard(reader)
            if not readers:
                del self._readers[reader.stream]

    @property
    def present(self) -> bool:
        """Whether any reader is parked."""
        return bool(self._readers)

    def publish(self, group_id: int, changes: dict[int, Change]) -> None:
        """Deliver changes, by stream id, to the readers of these streams."""
        for stream_id, change in changes.items():
            readers = self._readers.get((group_id, stream_id))
            if readers is None:
                continue
            if change.ended or change.size > MAX_DIRECT_BYTES:
                leaving = [r for r in readers if change.ended or not r.knows(change)]
                for reader in leaving:
                    reader.wake()
            else:
                encode = self._encoder(change)
                leaving = [reader for reader in readers if not reader.deliver(change, encode)]
            for reader in leaving:
                self.remove(reader)

    def start_over(self, group_id: int) -> None:
        """Wake all readers of a group's streams to read again."""
        self._wake_readers([stream for stream in self._readers if stream[0] == group_id])

    def _wake_readers(self, streams: Iterable[LiveStream]) -> None:
        for stream in streams:
            for reader in list(self._readers[stream]):
                reader.wake()
                self.remove(reader)

    def _encoder(self, change: Change) -> Encode:
        """Encodes the event of `change`, once for all readers that get the same bytes."""
        stream = change.stream
        current = current_cursor(self._clock_ms())
        by_held: dict[bytes, tuple[bytes, bytes]] = {}
        by_cursor: dict[tuple[int, bytes], bytes] = {}

        def encode(least: int, held: bytes) -> tuple[bytes, bytes]:
            if held not in by_held:
                by_held[held] = _data_event(change, held)
            data, kept = by_held[held]
            cursor = max(current, least)
            event = by_cursor.get((cursor, held))
            if event is None:
                event = by_cursor[cursor, held] = data + control_event(
                    stream.tail, cursor, up_to_date=True, closed=stream.closed
                )
            return event, kept

        return encode

    def drain(self) -> None:
        """Wake all readers and end them: the node is stopping."""
        self.draining = True
        self._wake_readers(list(self._readers))


def _data_event(change: Change, held: bytes) -> tuple[bytes, bytes]:
    """The data event of a change after the bytes `held` back, and the bytes held back next."""
    stream = change.stream
    parts, kept = whole_characters(stream.content_type, held, change.parts, last=stream.closed)
    return data_event(stream.content_type, parts) if parts else b"", kept
