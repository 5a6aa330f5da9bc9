"""How a consumer's position is kept, in a store that is called or in a stream.

In both, the start of a consumer that took over last is the only one whose positions are kept: an
earlier one, which may still run elsewhere, would move the position back.

In a stream, each record is a JSON object. `{"consumer", "owner", "epoch"}` says that a start took
over, and `{"consumer", "position"}` that it keeps a position. Each consumer is a producer of the
stream (protocol section 5.2.1), whose epochs are its starts: once a later one has appended, the
server refuses an earlier one. So a start appends first, and then reads what is kept, to which
nothing can be added but by itself. A snapshot has one object for each consumer.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from hashlib import sha256
from threading import Lock
from typing import Protocol
from uuid import uuid4

import msgspec

from streamd.client.core import operations, snapshots
from streamd.client.core.operations import write_headers
from streamd.client.core.retrying import Session, unexpected
from streamd.client.core.steps import Call, Flow
from streamd.client.core.streams import StreamFlows
from streamd.client.epochs import ClockEpochs
from streamd.client.errors import (
    AlreadyExists,
    ConsumerFenced,
    OffsetGone,
    ProducerFenced,
    StreamNotFound,
)
from streamd.client.positions import Positions, StreamPositions
from streamd.protocol.headers import PRODUCER_EPOCH, PRODUCER_ID, PRODUCER_SEQ
from streamd.streams.content import JSON, UNDECODABLE

# Attempts when other starts claim the same epoch.
_MAX_COLLISIONS = 3


class Keeper(Protocol):
    """Keeps one consumer's position. Both flows may be cut off and begun again."""

    def take_over(self) -> Flow[str | None]:
        """Refuse all earlier starts from now on. Returns what was kept last."""
        ...

    def keep(self, position: str) -> Flow[None]:
        """Keep a position. Raises `ConsumerFenced` if a later start took over."""
        ...


def keeper(positions: Positions | StreamPositions, session: Session, consumer: str) -> Keeper:
    """The keeper that stores a consumer's position in `positions`; `consumer` names consumer and
    stream."""
    if isinstance(positions, StreamPositions):
        return _InStream(positions, session, consumer)
    return _InStore(positions, consumer)


class _InStore:
    """Keeps it in a store whose calls may block, and may go on after their callers have left."""

    def __init__(self, positions: Positions, consumer: str) -> None:
        self._positions = positions
        self._consumer = consumer
        self._owner = uuid4().hex
        self._lock = Lock()
        self._begun = self._kept = 0

    def take_over(self) -> Flow[str | None]:
        found: str | None = yield Call(
            partial(self._positions.take_over, self._consumer, self._owner)
        )
        return found

    def keep(self, position: str) -> Flow[None]:
        self._begun += 1
        yield Call(partial(self._keep, self._begun, position))

    def _keep(self, number: int, position: str) -> None:
        with self._lock:
            if number > self._kept:  # else a later call was faster than this one
                self._positions.keep(self._consumer, self._owner, position)
                self._kept = number


class _Record(msgspec.Struct, omit_defaults=True):
    consumer: str
    owner: str | None = None
    epoch: int = 0
    position: str | None = None


class _Kept(msgspec.Struct):
    """What a stream of positions has: the last of each consumer, up to an offset."""

    consumers: dict[str, _Record]
    next_offset: str
    # Since the snapshot.
    records: int


class _InStream:
    """Keeps it in a stream, whose server refuses earlier starts."""

    def __init__(self, positions: StreamPositions, session: Session, consumer: str) -> None:
        self._stream = StreamFlows(session, positions.name, JSON)
        self._every = positions.compact_every
        self._consumer = consumer
        # An id of at most 256 ASCII characters, whatever the names are.
        self._producer_id = f"consumer-{sha256(consumer.encode()).hexdigest()[:32]}"
        self._epoch = self._next_seq = self._records = 0
        # The record sent under the next number whose outcome is unknown.
        self._unsettled: _Record | None = None

    def take_over(self) -> Flow[str | None]:
        """Append that this start took over, and read what was kept before."""
        least = 0
        for _ in range(_MAX_COLLISIONS):
            owner = uuid4().hex
            yield from self._claim(owner, least)
            kept = yield from self._read()
            last = kept.consumers.get(self._consumer, _Record(self._consumer))
            if last.owner == owner:
                yield from self._compact(kept)
                return last.position
            if last.epoch > self._epoch:
                raise ConsumerFenced(self._consumer)
            least = self._epoch + 1  # Another start took this epoch first.
        raise unexpected(200, "the stream of positions does not show what was appended to it")

    def _claim(self, owner: str, least: int) -> Flow[None]:
        """Append that this start took over, under an epoch that is later than all."""
        while True:
            next_epoch = partial(ClockEpochs().next, self._producer_id, least)
            self._epoch = yield Call(next_epoch)
            self._next_seq, self._unsettled = 0, None
            try:
                yield from self._append(_Record(self._consumer, owner, self._epoch))
            except StreamNotFound:
                yield from self._stream.create(JSON, None, None, False, b"")
            except ProducerFenced as fenced:
                if fenced.epoch is None:
                    raise
                least = fenced.epoch + 1
            else:
                return

    def keep(self, position: str) -> Flow[None]:
        """Append a position, after what an earlier call may have left unsettled."""
        record = _Record(self._consumer, position=position)
        try:
            if self._unsettled is not None and self._unsettled != record:
                # It was cut off. Under the same number another record would pass for this one.
                yield from self._append(self._unsettled)
            self._unsettled = record
            yield from self._append(record)
        except ProducerFenced as fenced:
            raise ConsumerFenced(self._consumer) from fenced
        if self._records >= self._every:
            yield from self._compact((yield from self._read()))

    def _append(self, record: _Record) -> Flow[None]:
        headers = write_headers(JSON) | {
            PRODUCER_ID: self._producer_id,
            PRODUCER_EPOCH: str(self._epoch),
            PRODUCER_SEQ: str(self._next_seq),
        }
        body = msgspec.json.encode(record)
        yield from operations.append(self._stream.session, self._stream.name.path, headers, body)
        self._next_seq, self._unsettled = self._next_seq + 1, None
        self._records += 1

    def _read(self) -> Flow[_Kept]:
        """What is kept of all consumers. Raises `ValueError` if there is anything else."""
        found = yield from snapshots.bootstrap(self._stream)
        snapshot = found.snapshot.data or b"[]"
        try:
            records = msgspec.json.decode(snapshot, type=list[_Record])
            news = [msgspec.json.decode(data, type=_Record) for data in found.messages]
        except UNDECODABLE as error:
            name = self._stream.name.written
            raise ValueError(f"{name} holds other things than positions: {error}") from error
        consumers = {record.consumer: record for record in records}
        for record in news:
            last = consumers.setdefault(record.consumer, _Record(record.consumer))
            if record.owner is None:
                last.position = record.position
            else:
                last.owner, last.epoch = record.owner, record.epoch
        self._records = len(news)
        return _Kept(consumers, found.next_offset, len(news))

    def _compact(self, kept: _Kept) -> Flow[None]:
        """Replace the records by a snapshot if they are many."""
        if kept.records < self._every:
            return
        data = msgspec.json.encode(list(kept.consumers.values()))
        with suppress(OffsetGone, AlreadyExists):  # Another consumer was faster.
            yield from snapshots.publish(self._stream, kept.next_offset, data, JSON, len(data))
        self._records = 0
