"""Forks: streams that begin with a prefix of another, without copying a byte of it.

A fork reads the ancestors' chunks through its `segments` and adds its own records behind them;
its offsets continue the source's. The source counts its forks and outlives its deletion for
them. What a fork asked for is settled in full before anything is changed, so that a refused fork
leaves no reference behind.
"""

from __future__ import annotations

from itertools import accumulate

from streamd.streams.chunks import OffsetMismatch, append_at
from streamd.streams.commands import Result
from streamd.streams.content import is_json, same_media_type
from streamd.streams.model import Segment, Settings, Stream
from streamd.streams.offsets import START, Position
from streamd.streams.snapshots import inherit
from streamd.streams.state import State


class ForkRefused(Exception):
    """A fork cannot be made as asked; `result` says why, `earliest` what is left to fork."""

    def __init__(self, result: Result, earliest: Position = START) -> None:
        super().__init__(result.value)
        self.result = result
        self.earliest = earliest


class Anchor:
    """Where a fork leaves its source, found to be sound."""

    __slots__ = ("_at", "_key", "_settings", "_source")

    def __init__(self, key: bytes, source: Stream, at: Position, settings: Settings) -> None:
        self._key = key
        self._source = source
        self._at = at
        self._settings = settings

    def attach(self, state: State, fork: Stream) -> None:
        """Make the new stream `fork` begin with the source's records before the anchor."""
        source, at = self._source, self._at
        fork.segments = _prefix(source, at)
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


def _prefix(source: Stream, at: Position) -> tuple[Segment, ...]:
    """The segments of a fork of `source` at `at`."""
    segments: list[Segment] = []
    for segment in source.segments:
        if segment.end_record >= at.record:
            break
        segments.append(segment)
    if at.record:
        home = next(
            (s.stream_id for s in source.segments if at.record <= s.end_record), source.stream_id
        )
        segments.append(Segment(home, at.record, at.byte))
    return tuple(segments)


def resolve_fork(state: State, settings: Settings, now_ms: int) -> Anchor:
    """Find where the fork that `settings` ask for leaves its source. Raises `ForkRefused`."""
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
    at = source.tail if request.offset is None else Position(*request.offset)
    if at.record < source.earliest.record:
        raise ForkRefused(Result.OFFSET_GONE, source.earliest)
    if at.record > source.records or at.byte > source.size:
        raise ForkRefused(Result.FORK_OFFSET_INVALID)
    if at != source.tail:
        lengths = _append_behind(state, source, at)
        if request.sub_offset:
            at = _advance(source, at, lengths, request.sub_offset)
    elif request.sub_offset:
        raise ForkRefused(Result.FORK_SUB_OFFSET_INVALID)
    return Anchor(request.source, source, at, settings)


def _append_behind(state: State, source: Stream, at: Position) -> list[int]:
    """The lengths of the records of the append that begins at `at`, as `source` reads them."""
    try:
        chunk, limit = state.chunk_at(source, at.record)
        lengths = append_at(chunk, at)
    except OffsetMismatch:
        raise ForkRefused(Result.FORK_OFFSET_INVALID) from None
    lengths = lengths[: limit.record - at.record]
    ends = list(accumulate(lengths))
    if at.byte + ends[-1] > limit.byte:
        lengths[-1] -= at.byte + ends[-1] - limit.byte
    return lengths


def _advance(source: Stream, at: Position, lengths: list[int], sub_offset: int) -> Position:
    """Go on from `at` by a sub-offset: messages of a JSON stream, bytes of any other.

    A cut inside a record makes its first part a record of the fork.
    """
    if is_json(source.content_type):
        if sub_offset > len(lengths):
            raise ForkRefused(Result.FORK_SUB_OFFSET_INVALID)
        return Position(at.record + sub_offset, at.byte + sum(lengths[:sub_offset]))
    for records, end in enumerate(accumulate(lengths), start=1):
        if sub_offset <= end:
            return Position(at.record + records, at.byte + sub_offset)
    raise ForkRefused(Result.FORK_SUB_OFFSET_INVALID)
