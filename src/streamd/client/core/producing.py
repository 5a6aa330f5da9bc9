"""A producer: records become numbered batches, each of which the server stores once.

The protocol (section 5.2.1) counts requests of an epoch from 0 without gaps. A batch keeps its
number however often it is sent, and the server takes a repetition for what it is. Several batches
are under way at once, on as many connections. If a later one arrives first it is refused with a
gap, and sent again once all earlier ones have been acknowledged.

The first batch of an epoch is sent alone: it takes the producer's id over from an earlier start,
and only it may choose a later epoch when the server knows one already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import msgspec

from streamd.client.core.operations import MAX_FRAMES, appended, frames, write_headers
from streamd.client.core.plain import check_messages
from streamd.client.core.retrying import Backoff, ask, unexpected
from streamd.client.core.steps import Call, Flow, Request
from streamd.client.core.streams import Data, StreamFlows, as_bytes
from streamd.client.epochs import ClockEpochs, Epochs, MemoryEpochs
from streamd.client.errors import ProducerFenced, Refused, SequenceGap, is_unknown_route
from streamd.client.values import Appended
from streamd.protocol.headers import PRODUCER_EPOCH, PRODUCER_ID, PRODUCER_SEQ
from streamd.streams.content import InvalidJson, is_json, json_elements, json_value

if TYPE_CHECKING:
    from streamd.client.core.waking import HeldWake

# Per body, as the server has it.
_MAX_MESSAGES = 100_000
# Attempts when other starts claim the same epoch.
_MAX_COLLISIONS = 3


class ProducerSettings(NamedTuple):
    """How a producer gathers and sends."""

    linger_s: float
    max_batch_bytes: int
    max_in_flight: int
    max_queued_bytes: int


def producer(
    stream: StreamFlows,
    producer_id: str | None,
    epochs: Epochs | None,
    settings: ProducerSettings,
    wake: HeldWake | None = None,
) -> ProducerFlows:
    """A producer; without an id, under one that was never used. One of a wake writes as long as the
    wake is held."""
    for name in ("max_batch_bytes", "max_in_flight", "max_queued_bytes"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} is at least 1")
    if producer_id is None:
        producer_id, epochs = f"streamd-{uuid4()}", epochs or MemoryEpochs()
    return ProducerFlows(stream, producer_id, epochs or ClockEpochs(), settings, wake)


def _outside() -> ValueError:
    """The error while nobody sends."""
    return ValueError("a producer is used within its `with` block")


class _Entry(NamedTuple):
    """What one call appends: stays together. `records` are those it has."""

    data: bytes
    records: int
    closes: bool
    queued_at: float


class Batch:
    """A request under way, or waiting to be sent again."""

    def __init__(self, seq: int, entries: list[_Entry]) -> None:
        self.seq = seq
        self.entries = entries
        self.size = sum(len(entry.data) for entry in entries)
        self.parts = [entry.data for entry in entries if entry.data]
        # Whether all earlier appends had been acknowledged when this one was sent.
        self.was_first = False
        self.waits = True
        self.done = False
        # Whether the server supports no batches, so that records are sent one by one.
        self.must_split = False


class ProducerFlows:
    """The state of a producer. Only `send` may run without the driver's lock."""

    def __init__(
        self,
        stream: StreamFlows,
        producer_id: str,
        epochs: Epochs,
        settings: ProducerSettings,
        wake: HeldWake | None = None,
    ) -> None:
        self.producer_id = producer_id
        self.epoch = -1
        self.failure: Exception | None = _outside()
        self.last: Appended | None = None
        self.stream = stream
        self._epochs = epochs
        self._settings = settings
        self._wake = wake
        self._is_write_fenced = False
        self._is_json = self._claimed = self._ended = False
        # Whether the server has taken a batch of records; others of the protocol know none.
        self._has_batches = False
        self._queue: deque[_Entry] = deque()
        self._window: deque[Batch] = deque()
        self._next_seq = 0
        # Bytes in the queue alone, and of all appends that are not acknowledged.
        self._queued_bytes = self._held_bytes = 0
        # Calls, counted: accepted, acknowledged, and those that a flush waits for.
        self._added = self._settled = self._flush_to = 0

    def begin(self) -> Flow[None]:
        """Learn the stream's type, and take an epoch. Before anything else, and once."""
        if self.epoch >= 0:
            raise ValueError("a producer is used in one block, and once")
        if self._wake is not None:
            self._is_write_fenced = (yield from self.stream.head()).write_fence
        content_type = yield from self.stream.type()
        self._is_json = is_json(content_type)
        self._headers = write_headers(content_type)
        self._headers[PRODUCER_ID] = self.producer_id
        self._path = self._batch_path = self.stream.name.path
        self._max_records = _MAX_MESSAGES if self._is_json else 1
        if not self._is_json and self.stream.name.is_in_bucket:
            self._batch_path = f"{self.stream.name.bucketed_path()}/append-batch"
            self._max_records = MAX_FRAMES
        yield from self._claim(0)
        self.failure = None

    def end(self) -> None:
        """Accept and send nothing any longer."""
        self.failure = self.failure or _outside()

    def _claim(self, least: int) -> Flow[None]:
        self.epoch = yield Call(lambda: self._epochs.next(self.producer_id, least))

    # -- what the caller appends

    def add(self, data: Data, close: bool, now: float) -> bool:
        """Accept a body. Returns whether something is to be sent. Raises `ValueError`."""
        body = as_bytes(data)
        if not body:
            raise ValueError("an append has at least one byte")
        if not self._is_json:
            return self._add(_Entry(body, 1, close, now))
        messages = json_elements(body) if body.lstrip()[:1] == b"[" else [json_value(body)]
        if not messages:
            raise InvalidJson("an empty array appends nothing")
        return self._add(_Entry(b",".join(messages), len(messages), close, now))

    def add_json(self, values: Iterable[Any], close: bool, now: float) -> bool:
        """Accept values as messages, which stay together."""
        values = list(values)
        check_messages(values)
        messages = list(map(msgspec.json.encode, values))
        if not messages:
            raise ValueError("an append has at least one message")
        if not self._is_json:
            raise ValueError("the stream is not JSON")
        return self._add(_Entry(b",".join(messages), len(messages), close, now))

    def add_close(self, now: float) -> bool:
        """Close the stream after what was accepted, unless that is accepted already: then the call
        repeats one that was interrupted."""
        self.check()
        return not self._ended and self._add(_Entry(b"", 0, True, now))

    def _add(self, entry: _Entry) -> bool:
        self.check()
        if self._ended:
            raise ValueError("this producer has closed the stream")
        self._ended = entry.closes
        self._queue.append(entry)
        self._added += 1
        self._queued_bytes += len(entry.data)
        self._held_bytes += len(entry.data)
        return len(self._queue) == 1 or self._is_full()

    def check(self) -> None:
        """Raise what ended the producer."""
        if self.failure is not None:
            raise self.failure

    @property
    def has_room(self) -> bool:
        """Whether more may be accepted; or the producer has failed, and says so."""
        return self._held_bytes < self._settings.max_queued_bytes or self.failure is not None

    def flush(self) -> int:
        """Send all that was accepted without delay. Returns what `is_settled` is asked about."""
        self.check()
        self._flush_to = self._added
        return self._added

    def is_settled(self, mark: int) -> bool:
        """Whether all up to a flush is acknowledged; or the producer has failed."""
        return self._settled >= mark or self.failure is not None

    # -- what is sent

    def _is_full(self) -> bool:
        is_large = self._queued_bytes >= self._settings.max_batch_bytes
        return is_large or len(self._queue) >= self._max_records

    def take(self, now: float) -> Batch | None:
        """The next batch to send, if one is due."""
        if self.failure is not None:
            return None
        if self._window and self._window[0].waits:
            batch = self._window[0]
        else:
            due = self.due_at(now)
            if due is None or due > now:
                return None
            batch = self._cut()
            self._window.append(batch)
        batch.waits = False
        batch.was_first = batch is self._window[0]
        return batch

    @property
    def _may_begin(self) -> bool:
        limit = self._settings.max_in_flight if self._claimed else 1
        if self._window and self._is_trial(self._window[-1]):
            return False
        # A batch that waits would make a gap before each later one.
        return len(self._window) < limit and not any(batch.waits for batch in self._window)

    def due_at(self, now: float) -> float | None:
        """When a batch is due at the latest; None if only another event can make one due."""
        if not self._queue or not self._may_begin:
            return None
        if self._is_full() or self._ended or self._flush_to > self._in_batches:
            return now
        return self._queue[0].queued_at + self._settings.linger_s

    @property
    def _in_batches(self) -> int:
        return self._added - len(self._queue)

    def _cut(self) -> Batch:
        entries: list[_Entry] = []
        size = records = 0
        most = self._max_records
        if self._window and not self._is_json and not self._has_batches:
            most = 1  # A trial would not be alone.
        while self._queue:
            entry = self._queue[0]
            size += len(entry.data)
            records += entry.records
            too_much = size > self._settings.max_batch_bytes or records > most
            if entries and too_much:
                break
            entries.append(self._queue.popleft())
        self._queued_bytes -= sum(len(entry.data) for entry in entries)
        self._next_seq += 1
        return Batch(self._next_seq - 1, entries)

    def send(self, batch: Batch) -> Flow[Appended | None]:
        """Send a batch until it is acknowledged. None if it must wait for earlier ones."""
        backoff = Backoff(self.stream.session)
        collisions = 0
        while True:
            try:
                answer = yield from ask(self.stream.session, self._request(batch), backoff=backoff)
            except ProducerFenced as fenced:
                # A try without an answer may have been stored before the later start.
                if self._claimed or fenced.epoch is None or backoff.is_doubtful:
                    raise
                yield from self._claim(fenced.epoch + 1)
            except SequenceGap:
                if batch.was_first:
                    raise  # The server has lost what it acknowledged: another stream has the name.
                return None
            except Refused as refused:
                if not (self._is_trial(batch) and is_unknown_route(refused)):
                    raise
                batch.must_split = True
                return None
            else:
                is_repetition = answer.status == 204 and batch.size > 0
                if is_repetition and not self._claimed and not backoff.is_doubtful:
                    # No earlier try can have been stored: another start uses the same epoch. Or
                    # the server answers so to all appends, and stores each try.
                    collisions += 1
                    if collisions > _MAX_COLLISIONS:
                        raise unexpected(
                            answer.status,
                            "the server took a first append for a duplicate: another "
                            "producer uses this id",
                        )
                    yield from self._claim(self.epoch + 1)
                    continue
                self._claimed = True
                self._has_batches = self._has_batches or len(batch.parts) > 1
                path = self.stream.name.path
                return (yield from appended(self.stream.session, path, answer))

    def _is_trial(self, batch: Batch) -> bool:
        """Whether nobody knows yet if the server has the route that the batch is sent to."""
        return not self._is_json and not self._has_batches and len(batch.parts) > 1

    def _split(self, batch: Batch) -> None:
        """Take a batch back, whose records are sent one by one from now on, as all are."""
        assert self._window[-1] is batch, "a trial is alone"
        self._window.pop()
        self._queue.extendleft(reversed(batch.entries))
        self._queued_bytes += batch.size
        self._next_seq -= 1
        self._max_records = 1

    def _request(self, batch: Batch) -> Request:
        headers = self._headers | {PRODUCER_EPOCH: str(self.epoch), PRODUCER_SEQ: str(batch.seq)}
        if batch.entries[-1].closes:
            headers |= write_headers(closes=True)
        if self._wake is not None and self._is_write_fenced:
            headers |= self._wake.write_headers
        path, parts = self._path, batch.parts
        if self._is_json and not self._is_bare(batch):
            body = b"[" + b",".join(parts) + b"]"
        elif not parts:
            body = b""
        elif len(parts) > 1:
            path, body = self._batch_path, frames(parts)
        else:
            [body] = parts  # which any server of the protocol takes
        return Request("POST", path, None, headers, body)

    def _is_bare(self, batch: Batch) -> bool:
        """Whether a body of JSON needs no array around it, which might exceed the server's limit:
        it has no message, or one that is not an array itself.
        """
        messages = [entry for entry in batch.entries if entry.data]
        if len(messages) > 1:
            return False
        return all(one.records == 1 and one.data.lstrip()[:1] != b"[" for one in messages)

    def settle(self, batch: Batch, answer: Appended | None) -> None:
        """Take in what became of a batch."""
        if answer is None:
            if batch.must_split:
                self._split(batch)
            else:
                batch.waits = True
            return
        batch.done = True
        if self.last is None or answer.next_offset >= self.last.next_offset:
            self.last = answer
        while self._window and self._window[0].done:
            done = self._window.popleft()
            self._held_bytes -= done.size
            self._settled += len(done.entries)
