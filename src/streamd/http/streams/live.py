"""Live readers: which reader waits on which stream, and how changes reach it.

A change is encoded once and written straight to the sockets of all readers at its start, without
waking a task for each. No reader has one while it waits; it gets one when its socket would block,
when it lags, and when the stream ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

import trio

from streamd.http.protocol.connections import Channel
from streamd.http.protocol.cursors import current_cursor
from streamd.http.protocol.messages import Parked
from streamd.http.protocol.sse import control_event, data_event, whole_characters
from streamd.http.sockets.batch_io import send_each
from streamd.process.metrics import Metrics
from streamd.streams.commands import Change
from streamd.streams.offsets import Position

# A group's id, and a stream's id within that group.
LiveStream = tuple[int, int]

# What takes the kernel two or three milliseconds, if each of their sockets takes an event.
READERS_PER_TURN = 256

# A larger change is not encoded for all: each reader reads it by itself, a piece at a time.
MAX_DIRECT_BYTES = 64 * 1024


class Event:
    """A change as its readers get it, encoded once for all that get the same bytes."""

    __slots__ = (
        "_by_cursor",
        "_by_held",
        "_content_type",
        "_cursor",
        "_parts",
        "closed",
        "ended",
        "is_large",
        "start",
        "tail",
    )

    def __init__(self, change: Change, cursor: int) -> None:
        """`cursor` is the current one. Later changes of the stream do not change the event."""
        self.start = change.start
        self.tail = change.stream.tail
        self.closed = change.stream.closed
        self.ended = change.ended
        self.is_large = change.size > MAX_DIRECT_BYTES
        self._content_type = change.stream.content_type
        self._parts = change.parts
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
                self._by_held[held] = self._data_event(held)
            data, kept = self._by_held[held]
            control = control_event(self.tail, cursor, up_to_date=True, closed=self.closed)
            known = self._by_cursor[cursor, held] = data + control, kept
        return known

    def _data_event(self, held: bytes) -> tuple[bytes, bytes]:
        """The data event after the bytes `held` back, and the bytes held back next."""
        parts, kept = whole_characters(self._content_type, held, self._parts, last=self.closed)
        return data_event(self._content_type, parts) if parts else b"", kept


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

    def deliver(self, event: Event, mailing: Mailing) -> bool:
        """Deliver a change, or wake the reader to read it. Returns whether it stays parked.

        Changes are published a little after they were made: a reader that has parked in between
        has read this one already.
        """
        if self.at >= event.tail and not (event.closed or event.ended):
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
    was sent. `charge`, if it is given, is called with the size of each event; it returns whether
    the next one must wait.
    """

    __slots__ = ("channel", "charge", "cursor", "finished", "held")

    channel: Channel

    def __init__(
        self,
        stream: LiveStream,
        at: Position,
        cursor: int,
        held: bytes,
        charge: Callable[[int], bool] | None = None,
    ) -> None:
        super().__init__(stream, at)
        self.cursor = cursor
        self.held = held
        self.finished = False
        self.charge = charge

    def deliver(self, event: Event, mailing: Mailing) -> bool:
        """Write the change's event, if the reader is at its start."""
        if self.at != event.start or event.is_large or event.ended:
            return super().deliver(event, mailing)
        data, self.held = event.encoded(self.cursor, self.held)
        assert self.at <= event.tail, "events never go back"
        self.at = event.tail
        self.finished = event.closed
        sent = mailing.add(self, data) or self.channel.try_send(data)
        must_wait = self.charge is not None and self.charge(len(data))
        if sent and not self.finished and not must_wait:
            return True
        # A task must write the rest now, not at the next heartbeat, and wait if that is due.
        self.wake()
        return False


class Mailing:
    """Events for many readers, written to their sockets by one call."""

    def __init__(self) -> None:
        self._readers: list[SseReader] = []
        self._descriptors: list[int] = []
        self._pieces: list[bytes] = []

    def add(self, reader: SseReader, data: bytes) -> bool:
        """Take `data` for a reader, unless its channel must write it by itself."""
        piece = reader.channel.piece(data)
        if piece is None:
            return False
        self._readers.append(reader)
        self._descriptors.append(piece[0])
        self._pieces.append(piece[1])
        return True

    def send(self) -> list[SseReader]:
        """Write all. Returns the readers whose sockets did not take all of theirs."""
        slow = []
        for place, taken in send_each(self._descriptors, self._pieces):
            reader = self._readers[place]
            reader.channel.keep(self._pieces[place][taken:])
            slow.append(reader)
        return slow


class Hub:
    """All parked readers by stream. `clock_ms` is wall time in ms since the epoch.

    `reading_now` counts the live responses under way, by mode, parked or not. `permits` returns a
    value that is another object after each change of what readers may read.
    """

    def __init__(self, clock_ms: Callable[[], int], max_readers: int) -> None:
        self._clock_ms = clock_ms
        self._max_readers = max_readers
        self._readers: dict[LiveStream, set[Reader]] = {}
        self.reading_now = {"long-poll": 0, "sse": 0}
        self.draining = False
        self.permits: Callable[[], object] = lambda: None
        self._delivered_under: object = None

    @property
    def full(self) -> bool:
        """Whether another live reader would be one too many."""
        return sum(self.reading_now.values()) >= self._max_readers

    def export(self, metrics: Metrics) -> None:
        """Export the number of live responses under way."""
        metrics.gauge_by(
            "mode", "live_readers", "Live reads in progress, by mode.", lambda: self.reading_now
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

    async def publish(self, group_id: int, changes: dict[int, Change]) -> None:
        """Deliver changes, by stream id, to the readers of these streams, a portion of them in
        each turn of the loop."""
        # A token is revoked, then a secret is appended, and a reader with the token is parked. The
        # log has the two in this order, so readers are judged again before they get the second.
        permits = self.permits()
        if permits is not self._delivered_under:
            self._delivered_under = permits
            self._wake_readers(list(self._readers))
        cursor = current_cursor(self._clock_ms())
        due = [
            (Event(change, cursor), readers, list(readers))
            for stream_id, change in changes.items()
            if (readers := self._readers.get((group_id, stream_id))) is not None
        ]
        left = READERS_PER_TURN
        for event, readers, told in due:
            while told:
                if not left:
                    await trio.lowlevel.checkpoint()
                    left = READERS_PER_TURN
                portion, told = told[:left], told[left:]
                left -= len(portion)
                # One that has left since, and even came back, has read the change.
                self._deliver(event, [reader for reader in portion if reader in readers])

    def _deliver(self, event: Event, readers: list[Reader]) -> None:
        mailing = Mailing()
        leaving = [reader for reader in readers if not reader.deliver(event, mailing)]
        for slow in mailing.send():
            slow.wake()
            leaving.append(slow)
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
