"""Live readers: which reader waits on which stream, and how changes reach it.

A change is encoded once and written straight to the sockets of all readers at its start, without
waking a task for each. No reader has one while it waits; it gets one when its socket would block,
when it lags, and when the stream ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from streamd.http.cursors import current_cursor
from streamd.http.messages import Channel, Parked
from streamd.http.sse import control_event, data_event, whole_characters
from streamd.metrics import Metrics
from streamd.streams.commands import Change
from streamd.streams.offsets import Position

# A group's id, and a stream's id within that group.
LiveStream = tuple[int, int]

# A larger change is not encoded for all: each reader reads it by itself, a piece at a time.
MAX_DIRECT_BYTES = 64 * 1024


class Event:
    """A change as its readers get it, encoded once for all that get the same bytes."""

    __slots__ = ("_by_cursor", "_by_held", "_change", "_cursor", "closed", "start", "tail")

    def __init__(self, change: Change, cursor: int) -> None:
        """`cursor` is the current one."""
        self.start = change.start
        self.tail = change.stream.tail
        self.closed = change.stream.closed
        self._change = change
        self._cursor = cursor
        self._by_held: dict[bytes, tuple[bytes, bytes]] = {}
        self._by_cursor: dict[tuple[int, bytes], tuple[bytes, bytes]] = {}

    def encoded(self, least: int, held: bytes) -> tuple[bytes, bytes]:
        """The bytes for a reader that may get no cursor below `least` and from which `held` are
        held back, and the bytes held back afterwards."""
        cursor = max(self._cursor, least)
        known = self._by_cursor.get((cursor, held))
        if known is None:
            if held not in self._by_held:
                self._by_held[held] = _data_event(self._change, held)
            data, kept = self._by_held[held]
            control = control_event(self.tail, cursor, up_to_date=True, closed=self.closed)
            known = self._by_cursor[cursor, held] = data + control, kept
        return known


class Reader:
    """A live reader, parked at the tail `at` of a stream until the stream changes: the part of a
    `Parked` that waits."""

    __slots__ = ("_wake", "at", "deadline", "news", "stream")

    def __init__(self, stream: LiveStream, at: Position) -> None:
        self.stream = stream
        self.at = at
        self.news = False
        self.deadline = inf
        self._wake: Callable[[Any], None] | None = None

    def park(self, wake: Callable[[Parked], None]) -> None:
        self._wake = wake

    def deliver(self, event: Event) -> bool:
        """Deliver a change. Returns whether the reader stays parked.

        Changes are published a little after they were made: a reader that has parked in between
        has read this one already.
        """
        if self.at == event.tail and not event.closed:
            return True
        self.wake()
        return False

    def wake(self) -> None:
        self.news = True
        if self._wake is not None:
            self._wake(self)


class SseReader(Reader):
    """A reader to which the hub itself writes events.

    `cursor` is the least cursor that it may get, by what it echoed; `held` are bytes before `at`
    that it has not been sent (`sse.whole_characters`); `finished` says that the close of the stream
    was sent.
    """

    __slots__ = ("channel", "cursor", "finished", "held")

    channel: Channel

    def __init__(self, stream: LiveStream, at: Position, cursor: int, held: bytes) -> None:
        super().__init__(stream, at)
        self.cursor = cursor
        self.held = held
        self.finished = False

    def deliver(self, event: Event) -> bool:
        """Write the change's event, if the reader is at its start."""
        if self.at != event.start:
            return super().deliver(event)
        data, self.held = event.encoded(self.cursor, self.held)
        sent = self.channel.try_send(data)
        assert self.at <= event.tail, "events never go back"
        self.at = event.tail
        self.finished = event.closed
        if sent and not self.finished:
            return True
        # A task must write the rest now, not at the next heartbeat.
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

    def begin(self, mode: str) -> None:
        """Count a live response, which must `end`."""
        self.reading_now[mode] += 1

    def end(self, mode: str) -> None:
        self.reading_now[mode] -= 1
        assert self.reading_now[mode] >= 0, "a response ends once"

    def add(self, reader: Reader) -> None:
        """Publish changes to `reader` too. It must be parked before anything waits, or it would
        not be woken by the changes made in that time."""
        reader.news = False
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
            event = Event(change, current_cursor(self._clock_ms()))
            if change.ended:
                leaving = list(readers)
                for reader in leaving:
                    reader.wake()
            elif change.size > MAX_DIRECT_BYTES:
                leaving = [reader for reader in readers if not Reader.deliver(reader, event)]
            else:
                leaving = [reader for reader in readers if not reader.deliver(event)]
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

    def drain(self) -> None:
        """Wake all readers and end them: the node is stopping."""
        self.draining = True
        self._wake_readers(list(self._readers))


def _data_event(change: Change, held: bytes) -> tuple[bytes, bytes]:
    """The data event of a change after the bytes `held` back, and the bytes held back next."""
    stream = change.stream
    parts, kept = whole_characters(stream.content_type, held, change.parts, last=stream.closed)
    return data_event(stream.content_type, parts) if parts else b"", kept
