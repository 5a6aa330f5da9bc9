"""Forks: streams that begin with a prefix of another, without copying a byte of it.

A fork reads the ancestors' chunks through its `extents` and adds its own records after them; its
offsets continue the source's. The source counts its forks and keeps its bytes for them after its
deletion: a stream that ends is hidden while forks read its bytes, and removed after that. A fork is
judged in full before anything changes, so a refused one leaves no reference.
"""

from __future__ import annotations

from itertools import accumulate

from streamd.streams import keys, quotas, snapshots
from streamd.streams.chunks import AnyChunk, Limit, OffsetMismatch, append_at
from streamd.streams.commands import Create, Result
from streamd.streams.content import is_json, same_media_type
from streamd.streams.model import Extent, Settings, Stream, Verdict, VerifiedPosition
from streamd.streams.offsets import START, Position
from streamd.streams.snapshots import inherit
from streamd.streams.state import State

# A row's numbers have 64 bits, and a fork grows from its first record on.
_MAX_BYTE = 2**63 - 1


class ForkRefused(Exception):
    """A fork cannot be made as asked; `result` says why, `earliest` is the first position to fork
    at."""

    def __init__(self, result: Result, earliest: Position = START) -> None:
        super().__init__(result.value)
        self.result = result
        self.earliest = earliest


class Anchor:
    """The checked position at which a fork leaves its source."""

    __slots__ = ("_at", "_key", "_settings", "_source")

    def __init__(self, key: bytes, source: Stream, at: Position, settings: Settings) -> None:
        self._key = key
        self._source = source
        self._at = at
        self._settings = settings

    @property
    def inherited_bytes(self) -> int:
        """The size of the snapshot that the fork will have."""
        return 0 if self._source.snapshot is None else self._source.snapshot.size

    def attach(self, state: State, fork: Stream) -> None:
        """Make the new stream `fork` begin with the source's records before the anchor."""
        source, at = self._source, self._at
        fork.extents = _prefix(source, at)
        fork.records, fork.size = at
        if self._settings.content_type is None:
            fork.content_type = source.content_type
        if self._settings.ttl_ms is None and self._settings.expires_at_ms is None:
            fork.ttl_ms = source.ttl_ms
            fork.expires_at = source.expires_at
            fork.expires_at_ms = source.expires_at_ms
        inherit(state, source, fork)
        source.forks += 1
        state.streams.put(self._key, source)


def _prefix(source: Stream, at: Position) -> tuple[Extent, ...]:
    """The extents of a fork of `source` at `at`."""
    extents: list[Extent] = []
    for extent in source.extents:
        if extent.end_record >= at.record:
            break
        extents.append(extent)
    if at.record:
        home = next(
            (s.stream_id for s in source.extents if at.record <= s.end_record), source.stream_id
        )
        extents.append(Extent(home, at.record, at.byte))
    return tuple(extents)


def resolve_fork(state: State, command: Create, now_ms: int) -> Anchor:
    """The position at which a command's fork leaves its source. Raises `ForkRefused`."""
    settings = command.settings
    request = settings.fork
    assert request is not None
    source = state.streams.get(request.source)
    if source is None:
        raise ForkRefused(Result.SOURCE_NOT_FOUND)
    if source.deleted:
        raise ForkRefused(Result.SOURCE_GONE)
    if source.expired(now_ms):
        raise ForkRefused(Result.SOURCE_NOT_FOUND)
    content_type = settings.content_type or source.content_type
    if not same_media_type(content_type, source.content_type):
        raise ForkRefused(Result.CONTENT_TYPE_DIFFERS)
    if command.cut_as is not None and is_json(command.cut_as) != is_json(source.content_type):
        raise ForkRefused(Result.STALE)
    at = source.tail if request.offset is None else Position(*request.offset)
    if at.record < source.earliest.record:
        raise ForkRefused(Result.OFFSET_GONE, source.earliest)
    if at.record > source.records or at.byte > source.size:
        raise ForkRefused(Result.FORK_OFFSET_INVALID)
    if at == source.tail:
        if request.sub_offset:
            raise ForkRefused(Result.FORK_SUB_OFFSET_INVALID)
        return Anchor(request.source, source, at, settings)
    return Anchor(request.source, source, _found(source, command.finding), settings)


def find_anchor(
    source: Stream, chunk: AnyChunk, limit: Limit, at: Position, sub_offset: int
) -> VerifiedPosition:
    """The position that a sub-offset from `at` leads to, in a chunk with the record at `at`."""
    stream_id = source.stream_id
    try:
        lengths = append_at(chunk, at)
    except OffsetMismatch:
        return VerifiedPosition(stream_id, Verdict.NO_BOUNDARY)
    lengths = lengths[: limit.record - at.record]
    ends = list(accumulate(lengths))
    if at.byte + ends[-1] > limit.byte:
        lengths[-1] -= at.byte + ends[-1] - limit.byte
    led_to = _advance(source, at, lengths, sub_offset) if sub_offset else at
    if led_to is None:
        return VerifiedPosition(stream_id, Verdict.BEYOND_APPEND)
    return VerifiedPosition(stream_id, Verdict.BOUNDARY, *led_to)


def _found(source: Stream, finding: VerifiedPosition | None) -> Position:
    """The position that a finding names, if it is about this stream. Raises `ForkRefused`."""
    if finding is None or finding.stream_id != source.stream_id or finding.record > source.records:
        raise ForkRefused(Result.STALE)
    match finding.verdict:
        case Verdict.NOTHING:
            raise ForkRefused(Result.STALE)
        case Verdict.NO_BOUNDARY:
            raise ForkRefused(Result.FORK_OFFSET_INVALID)
        case Verdict.BEYOND_APPEND:
            raise ForkRefused(Result.FORK_SUB_OFFSET_INVALID)
    if finding.record < 0 or not 0 <= finding.byte <= _MAX_BYTE:
        raise ForkRefused(Result.INVALID)
    return Position(finding.record, finding.byte)


def _advance(source: Stream, at: Position, lengths: list[int], sub_offset: int) -> Position | None:
    """The position a sub-offset after `at`: in messages of a JSON stream, in bytes of any other.

    None if that lies after the append. A cut inside a record makes its first part a record of
    the fork.
    """
    if is_json(source.content_type):
        if sub_offset > len(lengths):
            return None
        return Position(at.record + sub_offset, at.byte + sum(lengths[:sub_offset]))
    for records, end in enumerate(accumulate(lengths), start=1):
        if sub_offset <= end:
            return Position(at.record + records, at.byte + sub_offset)
    return None


def end_stream(state: State, key: bytes, stream: Stream) -> None:
    """Hide a stream from its clients; its bytes stay while forks read them."""
    state.cancel_sweep(key, stream)
    kept = quotas.kept(stream)
    snapshots.release(state, stream)
    if stream.forks:
        quotas.settle(state, key, stream, kept)
        stream.deleted = True
        state.streams.put(key, stream)
        state.change_bucket(keys.bucket_of(key), hidden=1)
        return
    _remove(state, key, stream, kept)


def _remove(state: State, key: bytes, stream: Stream, kept: int) -> None:
    """Remove a stream that stores `kept` bytes, and every ancestor that only it kept alive.

    A chain of forks is followed in a loop: clients choose its length.
    """
    while True:
        state.cool(key, stream, stream.tail)
        state.streams.delete(key)
        state.discard(stream.stream_id)
        state.header.streams -= 1
        state.change_bucket(
            keys.bucket_of(key),
            streams=-1,
            hidden=-1 if stream.deleted else 0,
            size=-kept,
            counted=0 if stream.kept_from is None else -1,
        )
        if stream.settings.fork is None:
            return
        key = stream.settings.fork.source
        parent = state.streams.get(key)
        assert parent is not None, "a fork keeps its source"
        parent.forks -= 1
        state.streams.put(key, parent)
        if parent.forks:
            return
        kept = quotas.kept(parent)
        if not parent.deleted:
            state.trim(key, parent)
            quotas.settle(state, key, parent, kept)
            return
        stream = parent
