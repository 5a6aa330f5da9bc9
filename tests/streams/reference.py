"""Streams as plain lists: what the machine has to agree with, whatever happens underneath."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from streamd.streams.commands import Result
from streamd.streams.offsets import Position
from tests.streams.driver import JSON

Stamp = tuple[str, int, int]
Asked = tuple[str | None, int | None, tuple[str, Position | None, int] | None]


@dataclass
class Remembered:
    """The last request of a producer that took effect, and the tail it led to."""

    epoch: int
    seq: int
    tail: Position


class Published(NamedTuple):
    """A snapshot: where it stands, its bytes and its type."""

    at: Position
    body: bytes
    kind: str


@dataclass
class ReferenceStream:
    """`appends` holds the records of each append; `asked` are the settings of its creation."""

    kind: str
    asked: Asked
    touched_ms: int
    ttl_ms: int | None = None
    appends: list[list[bytes]] = field(default_factory=list)
    closed: bool = False
    seq: str | None = None
    producers: dict[str, Remembered] = field(default_factory=dict)
    source: str | None = None
    forks: int = 0
    deleted: bool = False
    snapshot: Published | None = None

    @property
    def earliest(self) -> Position:
        return Position(0, 0) if self.snapshot is None else self.snapshot.at

    @property
    def readable(self) -> list[bytes]:
        """The records that are still to be read."""
        return self.records[self.earliest.record :]

    def refusal(self, at: Position) -> Result | None:
        """Why there can be no new snapshot at an offset."""
        if at.record < self.earliest.record:
            return Result.OFFSET_GONE
        if self.snapshot is not None and at == self.snapshot.at:
            return Result.SNAPSHOT_DIFFERS
        if at.record > self.tail.record:
            return Result.OFFSET_BEYOND_TAIL
        return None if at in self.boundaries else Result.OFFSET_INVALID

    @property
    def records(self) -> list[bytes]:
        return [record for append in self.appends for record in append]

    @property
    def boundaries(self) -> list[Position]:
        found = [Position(0, 0)]
        for record in self.records:
            found.append(Position(found[-1].record + 1, found[-1].byte + len(record)))
        return found

    @property
    def tail(self) -> Position:
        return self.boundaries[-1]

    def prefix(self, count: int, sub_offset: int) -> list[list[bytes]] | None:
        """The appends of a fork behind `count` records and `sub_offset` into what follows."""
        kept: list[list[bytes]] = []
        for append in self.appends:
            if count < len(append):
                rest = append[count:]
                if self.kind != JSON:
                    if sub_offset > len(rest[0]):
                        return None
                    cut = [rest[0][:sub_offset]] if sub_offset else []
                elif sub_offset > len(rest):
                    return None
                else:
                    cut = rest[:sub_offset]
                last = append[:count] + cut
                return [*kept, last] if last else kept
            kept.append(append)
            count -= len(append)
        return None if sub_offset else kept

    def check(self, stamp: Stamp) -> Result | None:
        """What a producer's request is, unless it is the next one."""
        producer, epoch, seq = stamp
        known = self.producers.get(producer)
        if known is None:
            return None if seq == 0 else Result.SEQ_GAP
        if epoch != known.epoch:
            if epoch < known.epoch:
                return Result.EPOCH_STALE
            return None if seq == 0 else Result.EPOCH_WITHOUT_RESTART
        if seq <= known.seq:
            return Result.DUPLICATE
        return None if seq == known.seq + 1 else Result.SEQ_GAP


class Reference:
    """All streams by name; those deleted but kept for their forks included."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.streams: dict[str, ReferenceStream] = {}

    def live(self) -> dict[str, ReferenceStream]:
        return {name: stream for name, stream in self.streams.items() if not stream.deleted}

    def expired(self, stream: ReferenceStream) -> bool:
        return stream.ttl_ms is not None and stream.touched_ms + stream.ttl_ms <= self.now_ms

    def look(self, name: str) -> ReferenceStream | Result:
        """The stream of that name, ended first when its time has come."""
        stream = self.streams.get(name)
        if stream is None:
            return Result.NOT_FOUND
        if stream.deleted:
            return Result.GONE
        if self.expired(stream):
            self.end(name)
            return Result.NOT_FOUND
        return stream

    def end(self, name: str) -> None:
        stream = self.streams[name]
        stream.snapshot = None
        if stream.forks:
            stream.deleted = True
            return
        del self.streams[name]
        if stream.source is not None:
            source = self.streams[stream.source]
            source.forks -= 1
            if source.deleted:
                self.end(stream.source)

    def create(
        self, name: str, kind: str, records: list[bytes], closed: bool, ttl_ms: int | None
    ) -> Result:
        self.look(name)
        asked: Asked = (kind, ttl_ms, None)
        if name in self.streams:
            return self._create_again(name, asked, closed)
        appends = [records] if records else []
        self.streams[name] = ReferenceStream(kind, asked, self.now_ms, ttl_ms, appends, closed)
        return Result.CREATED

    def _create_again(self, name: str, asked: Asked, closed: bool) -> Result:
        existing = self.streams[name]
        if existing.deleted:
            return Result.IN_USE_BY_FORKS
        same = existing.asked == asked and existing.closed == closed
        return Result.EXISTS if same else Result.SETTINGS_DIFFER

    def fork(self, name: str, source_name: str, offset: Position | None, sub_offset: int) -> Result:
        self.look(name)
        asked: Asked = (None, None, (source_name, offset, sub_offset))
        if name in self.streams:
            return self._create_again(name, asked, False)
        source = self.streams.get(source_name)
        if source is not None and source.deleted:
            return Result.SOURCE_GONE
        if source is None or self.expired(source):
            return Result.SOURCE_NOT_FOUND
        at = source.tail if offset is None else offset
        if at.record < source.earliest.record:
            return Result.OFFSET_GONE
        if at not in source.boundaries:
            return Result.FORK_OFFSET_INVALID
        appends = source.prefix(at.record, sub_offset)
        if appends is None:
            return Result.FORK_SUB_OFFSET_INVALID
        source.forks += 1
        self.streams[name] = ReferenceStream(
            source.kind,
            asked,
            self.now_ms,
            source.ttl_ms,
            appends,
            source=source_name,
            snapshot=source.snapshot,
        )
        return Result.CREATED

    def append(
        self,
        name: str,
        kind: str,
        records: list[bytes],
        close: bool,
        seq: str | None,
        stamp: Stamp | None,
    ) -> Result:
        stream = self.look(name)
        if isinstance(stream, Result):
            return stream
        if stamp is not None and (refusal := stream.check(stamp)) is not None:
            return refusal
        if stream.closed:
            only_close = close and not records and stamp is None
            return Result.CLOSED if only_close else Result.STREAM_CLOSED
        if records and kind != stream.kind:
            return Result.CONTENT_TYPE_DIFFERS
        if seq is not None:
            if stream.seq is not None and seq <= stream.seq:
                return Result.SEQ_REGRESSION
            stream.seq = seq
        if records:
            stream.appends.append(records)
        stream.closed = close
        stream.touched_ms = self.now_ms
        if stamp is not None:
            stream.producers[stamp[0]] = Remembered(stamp[1], stamp[2], stream.tail)
        return Result.APPENDED if records else Result.CLOSED

    def publish(self, name: str, new: Published) -> Result:
        stream = self.look(name)
        if isinstance(stream, Result):
            return stream
        if stream.snapshot == new:
            return Result.PUBLISHED
        if (refusal := stream.refusal(new.at)) is not None:
            return refusal
        stream.snapshot = new
        stream.touched_ms = self.now_ms
        return Result.PUBLISHED

    def begin_upload(self, name: str, at: Position) -> Result:
        stream = self.look(name)
        if isinstance(stream, Result):
            return stream
        return stream.refusal(at) or Result.UPLOADING

    def delete(self, name: str) -> Result:
        stream = self.look(name)
        if isinstance(stream, Result):
            return stream
        self.end(name)
        return Result.DELETED

    def touch(self, name: str) -> None:
        stream = self.streams.get(name)
        if stream is not None and not stream.deleted and not self.expired(stream):
            stream.touched_ms = self.now_ms

    def sweep(self) -> None:
        for name in [name for name, s in self.live().items() if self.expired(s)]:
            if name in self.streams:
                self.end(name)
