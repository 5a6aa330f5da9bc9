"""Streams as plain lists, with which the machine must agree whatever happens underneath."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from streamd.streams.commands import Result
from streamd.streams.model import IfMatch, Version
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
    """A snapshot: its position, bytes and type."""

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
    incarnation: int = 0
    snapshot: Published | None = None

    def meets(self, if_match: IfMatch | None) -> bool:
        return if_match is None or if_match.versions is None or self.version in if_match.versions

    @property
    def version(self) -> Version:
        return Version(self.incarnation, *self.tail, self.closed)

    @property
    def earliest(self) -> Position:
        return Position(0, 0) if self.snapshot is None else self.snapshot.at

    @property
    def readable(self) -> list[bytes]:
        """The records that can still be read."""
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
        """The appends of a fork after `count` records and `sub_offset` into what follows."""
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
        self.bucket = False
        self.ids = 0

    def create_bucket(self) -> Result:
        if self.bucket:
            return Result.BUCKET_EXISTS
        self.bucket = True
        return Result.CREATED

    def delete_bucket(self) -> Result:
        if not self.bucket:
            return Result.BUCKET_NOT_FOUND
        if self.streams:
            return Result.BUCKET_NOT_EMPTY
        self.bucket = False
        return Result.DELETED

    def listed(self) -> list[str]:
        return sorted(name for name, stream in self.live().items() if not self.expired(stream))

    def put(self, name: str, stream: ReferenceStream) -> Result:
        self.bucket = True
        stream.incarnation = self.next_id()
        self.streams[name] = stream
        return Result.CREATED

    def absent(self, why: Result, if_match: IfMatch | None) -> Result:
        if if_match is None:
            return why
        return Result.PRECONDITION_FAILED if self.bucket else Result.BUCKET_NOT_FOUND

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
        self,
        name: str,
        kind: str,
        records: list[bytes],
        closed: bool,
        ttl_ms: int | None,
        *,
        implicit_bucket: bool = True,
        if_match: IfMatch | None = None,
    ) -> Result:
        if not (self.bucket or implicit_bucket):
            return Result.BUCKET_NOT_FOUND
        self.look(name)
        asked: Asked = (kind, ttl_ms, None)
        if name in self.streams:
            return self._create_again(name, asked, closed, if_match)
        if if_match is not None:
            return Result.PRECONDITION_FAILED
        appends = [records] if records else []
        return self.put(name, ReferenceStream(kind, asked, self.now_ms, ttl_ms, appends, closed))

    def _create_again(
        self, name: str, asked: Asked, closed: bool, if_match: IfMatch | None = None
    ) -> Result:
        existing = self.streams[name]
        if existing.deleted:
            return Result.IN_USE_BY_FORKS
        if existing.asked != asked or existing.closed != closed:
            return Result.SETTINGS_DIFFER
        return Result.EXISTS if existing.meets(if_match) else Result.PRECONDITION_FAILED

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
        return self.put(
            name,
            ReferenceStream(
                source.kind,
                asked,
                self.now_ms,
                source.ttl_ms,
                appends,
                source=source_name,
                snapshot=source.snapshot,
            ),
        )

    def append(
        self,
        name: str,
        kind: str,
        records: list[bytes],
        close: bool,
        seq: str | None,
        stamp: Stamp | None,
        if_match: IfMatch | None = None,
    ) -> Result:
        stream = self.look(name)
        if isinstance(stream, Result):
            return self.absent(stream, if_match)
        if stamp is not None and (refusal := stream.check(stamp)) is not None:
            return refusal
        if stream.closed:
            only_close = close and not records and stamp is None
            if not only_close:
                return Result.STREAM_CLOSED
            return Result.CLOSED if stream.meets(if_match) else Result.PRECONDITION_FAILED
        if records and kind != stream.kind:
            return Result.CONTENT_TYPE_DIFFERS
        if seq is not None and stream.seq is not None and seq <= stream.seq:
            return Result.SEQ_REGRESSION
        if not stream.meets(if_match):
            return Result.PRECONDITION_FAILED
        stream.seq = stream.seq if seq is None else seq
        if records:
            stream.appends.append(records)
        stream.closed = close
        stream.touched_ms = self.now_ms
        if stamp is not None:
            stream.producers[stamp[0]] = Remembered(stamp[1], stamp[2], stream.tail)
        return Result.APPENDED if records else Result.CLOSED

    def next_id(self) -> int:
        """Streams and blobs are numbered together."""
        self.ids += 1
        return self.ids

    def publish(self, name: str, new: Published, *, uploaded: bool = False) -> Result:
        stream = self.look(name)
        if isinstance(stream, Result):
            return stream
        if stream.snapshot == new:
            return Result.PUBLISHED
        if (refusal := stream.refusal(new.at)) is not None:
            return refusal
        if not uploaded:
            self.next_id()
        stream.snapshot = new
        stream.touched_ms = self.now_ms
        return Result.PUBLISHED

    def begin_upload(self, name: str, at: Position) -> Result:
        stream = self.look(name)
        if isinstance(stream, Result):
            return stream
        refusal = stream.refusal(at)
        if refusal is None:
            self.next_id()
        return refusal or Result.UPLOADING

    def delete(self, name: str, if_match: IfMatch | None = None) -> Result:
        stream = self.look(name)
        if isinstance(stream, Result):
            return self.absent(stream, if_match)
        if not stream.meets(if_match):
            return Result.PRECONDITION_FAILED
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
