"""Chunks: runs of a stream's records, as stored and as gathered at the tail.

A record is the unit after which a reader may resume: one append of bytes, or one JSON message.
Chunks hold whole records end to end; clients never see where one chunk ends and the next begins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import accumulate, pairwise
from struct import pack
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from streamd.streams.offsets import Position

Buffer = bytes | memoryview
# How many lengths are added up at once.
_MARKED_RECORDS = 1024


class OffsetMismatch(ValueError):
    """A position contradicts the stream it was used on: no record begins there."""


class Limit(NamedTuple):
    """How far a read may go in one stream id: before this record, and not past this byte."""

    record: int
    byte: int


class Window(msgspec.Struct, frozen=True, gc=False):
    """What a read asks for: records from `at` on, at most about `max_bytes` but at least one."""

    at: Position
    max_bytes: int

    def after(self, found: Slice) -> Window | None:
        """What is still asked for once `found` was read; None if that was all."""
        left = self.max_bytes - found.size
        return Window(found.end, left) if left > 0 else None


class Run(msgspec.Struct, frozen=True, gc=False):
    """Records [`first`, `last`) of some whose `lengths` are known.

    Together they have `size` bytes: fewer than their lengths if a fork was cut inside the last.
    """

    lengths: list[int]
    first: int
    last: int
    size: int


class Slice(msgspec.Struct, frozen=True, gc=False):
    """The result of a read: `parts` end to end, `size` bytes up to the record boundary `end`.

    No record lies in two of the parts. `runs` are its records, in order.
    """

    parts: list[Buffer]
    end: Position
    size: int
    runs: Sequence[Run] = ()

    def lengths(self) -> list[int]:
        """The sizes in bytes of its records, in order. Takes time for each of them."""
        found: list[int] = []
        for run in self.runs:
            lengths = run.lengths[run.first : run.last]
            lengths[-1] -= sum(lengths) - run.size
            found += lengths
        return found


def joined(pieces: Sequence[Slice]) -> Slice:
    """Slices that follow each other, as one."""
    return Slice(
        [part for piece in pieces for part in piece.parts],
        pieces[-1].end,
        sum(piece.size for piece in pieces),
        [run for piece in pieces for run in piece.runs],
    )


class Marks:
    """The sums of lengths up to some of them, so that no sum goes over a million of them twice.

    Lengths may be added to the list, but none of them changes.
    """

    __slots__ = ("_lengths", "_sums")

    def __init__(self, lengths: list[int]) -> None:
        self._lengths = lengths
        self._sums = [0]  # of the first `_MARKED_RECORDS` times each index

    def sum(self, count: int) -> int:
        """The sum of the first `count` lengths."""
        if count < _MARKED_RECORDS:
            return sum(self._lengths[:count])
        place = count // _MARKED_RECORDS
        sums = self._sums
        while len(sums) <= place:
            at = (len(sums) - 1) * _MARKED_RECORDS
            sums.append(sums[-1] + sum(self._lengths[at : at + _MARKED_RECORDS]))
        return sums[place] + sum(self._lengths[place * _MARKED_RECORDS : count])


# The marks of the chunks with many records that were read last, by the ids of their lengths, which
# they keep alive.
_MOST_MARKED = 16
_marked: dict[int, Marks] = {}


def _marks_of(lengths: list[int]) -> Marks:
    """The marks of a sealed chunk's lengths. Several threads may ask at once."""
    found = _marked.get(id(lengths))
    if found is None:
        found = Marks(lengths)
        found.sum(len(lengths))  # From now on it is only read.
        for oldest in list(_marked)[: 1 - _MOST_MARKED]:
            _marked.pop(oldest, None)
        _marked[id(lengths)] = found
    return found


class Chunk(msgspec.Struct, array_like=True, gc=False):
    """A stored run of records. `lengths` are the records' sizes in bytes.

    `appends` counts the records of each append, in order; it is empty when each append was one
    record, as nearly all are.
    """

    start_record: int
    start_byte: int
    lengths: list[int]
    appends: list[int]
    data: bytes

    @property
    def end_record(self) -> int:
        return self.start_record + len(self.lengths)

    @property
    def end_byte(self) -> int:
        return self.start_byte + len(self.data)

    @property
    def size(self) -> int:
        return len(self.data)

    def bytes_before(self, count: int) -> int:
        """The size in bytes of the chunk's first `count` records."""
        if count <= _MARKED_RECORDS:
            return sum(self.lengths[:count])
        return _marks_of(self.lengths).sum(count)

    def digest(self) -> bytes:
        """128 bits of SHA-256 over the chunk's start, records, appends and bytes.

        Replicas cut their records into different chunks; chunks with the same records have the same
        digest, whether they were merged or not.
        """
        count = len(self.lengths)
        appends = self.appends or [1] * count
        head = pack(f">QQI{count}Q", self.start_record, self.start_byte, count, *self.lengths)
        digest = sha256(head + pack(f">{len(appends)}Q", *appends))
        digest.update(self.data)
        return digest.digest()[:16]

    def buffers(self, start: int, stop: int) -> list[Buffer]:
        """The bytes from `start` to `stop`, counted from the chunk's first byte."""
        if start >= stop:
            return []
        if start == 0 and stop == len(self.data):
            return [self.data]
        return [memoryview(self.data)[start:stop]]

    def merged(self, later: Chunk) -> Chunk:
        """This chunk and the one right after it, as one chunk."""
        appends: list[int] = []
        if self.appends or later.appends:
            appends = [*(self.appends or [1] * len(self.lengths))]
            appends += later.appends or [1] * len(later.lengths)
        return Chunk(
            self.start_record,
            self.start_byte,
            self.lengths + later.lengths,
            appends,
            self.data + later.data,
        )

    def cut(self, start_record: int, end_record: int) -> Chunk:
        """The records in [`start_record`, `end_record`).

        The part of an append that lies inside becomes an append.
        """
        first, last = start_record - self.start_record, end_record - self.start_record
        skipped = self.bytes_before(first)
        lengths = self.lengths[first:last]
        appends: list[int] = []
        if self.appends:
            ends = [first, *(end for end in accumulate(self.appends) if first < end < last), last]
            appends = [end - start for start, end in pairwise(ends)]
        return Chunk(
            start_record,
            self.start_byte + skipped,
            lengths,
            appends,
            self.data[skipped : skipped + sum(lengths)],
        )


def gathered(chunks: Iterable[Chunk], start_record: int, end_record: int) -> Chunk | None:
    """The records in [`start_record`, `end_record`) as one chunk, however they lie in
    `chunks`, which are in order; None if some are missing."""
    parts = []
    at = start_record
    for chunk in chunks:
        if at < end_record and chunk.start_record <= at < chunk.end_record:
            parts.append(chunk.cut(at, min(end_record, chunk.end_record)))
            at = parts[-1].end_record
    if at < end_record or not parts:
        return None
    appends: list[int] = []
    if any(part.appends for part in parts):
        for part in parts:
            appends += part.appends or [1] * len(part.lengths)
    return Chunk(
        start_record,
        parts[0].start_byte,
        [length for part in parts for length in part.lengths],
        appends,
        b"".join(part.data for part in parts),
    )


class OpenChunk:
    """The records after the last stored chunk, collected part by part without copying."""

    __slots__ = (
        "_marks", "appends", "lengths", "offsets", "parts", "size", "start_byte", "start_record"
    )  # fmt: skip

    def __init__(self, start: Position) -> None:
        self.start_record, self.start_byte = start
        self.lengths: list[int] = []
        self._marks = Marks(self.lengths)
        self.appends: list[int] = []
        self.parts: list[bytes] = []
        self.offsets: list[int] = []
        self.size = 0

    @property
    def end_record(self) -> int:
        return self.start_record + len(self.lengths)

    @property
    def end_byte(self) -> int:
        return self.start_byte + self.size

    @property
    def end(self) -> Position:
        """Where the record after its last begins."""
        return Position(self.start_record + len(self.lengths), self.start_byte + self.size)

    def bytes_before(self, count: int) -> int:
        """The size in bytes of the chunk's first `count` records."""
        return self._marks.sum(count)

    def add(self, data: bytes, lengths: list[int]) -> None:
        """Add one append."""
        if len(lengths) != 1 and not self.appends:
            self.appends = [1] * len(self.lengths)
            self.appends.append(len(lengths))
        elif self.appends:
            self.appends.append(len(lengths))
        self.lengths += lengths
        self.parts.append(data)
        self.offsets.append(self.size)
        self.size += len(data)

    def buffers(self, start: int, stop: int) -> list[Buffer]:
        """The bytes from `start` to `stop`, counted from the chunk's first byte."""
        if start >= stop:
            return []
        first = bisect_right(self.offsets, start) - 1
        last = bisect_right(self.offsets, stop - 1)
        found: list[Buffer] = list(self.parts[first:last])
        overshoot = self.offsets[last - 1] + len(found[-1]) - stop
        if overshoot:
            found[-1] = memoryview(found[-1])[: len(found[-1]) - overshoot]
        if skip := start - self.offsets[first]:
            found[0] = memoryview(found[0])[skip:]
        return found

    def sealed(self) -> Chunk:
        return Chunk(
            self.start_record, self.start_byte, self.lengths, self.appends, b"".join(self.parts)
        )


AnyChunk = Chunk | OpenChunk


def read_chunk(chunk: AnyChunk, window: Window, limit: Limit, *, at_least_one: bool) -> Slice:
    """The chunk's records in `window` up to `limit`.

    With `at_least_one` the first record is read whatever its size, so that a reader always makes
    progress; without, only what fits. A position inside a record reads from the record's beginning.
    Raises `OffsetMismatch` when the byte position lies outside its record.
    """
    at = window.at
    skipped = at.record - chunk.start_record
    start = chunk.bytes_before(skipped) if skipped else 0
    if chunk.start_byte + start != at.byte:
        # Clients add to offsets ("what comes after this one") although they are opaque. An offset
        # above this boundary and not above the next one begins with this record.
        end_byte = min(chunk.start_byte + start + chunk.lengths[skipped], limit.byte)
        if not chunk.start_byte + start < at.byte <= end_byte:
            raise OffsetMismatch
        at = Position(at.record, chunk.start_byte + start)
        window = replace(window, at=at)
    end = Position(min(chunk.end_record, limit.record), min(chunk.end_byte, limit.byte))
    if end.byte - at.byte > window.max_bytes:
        end = _fitting(chunk, window, end, at_least_one)
    stop = end.byte - chunk.start_byte
    run = Run(chunk.lengths, skipped, end.record - chunk.start_record, stop - start)
    return Slice(chunk.buffers(start, stop), end, stop - start, (run,))


def _fitting(chunk: AnyChunk, window: Window, end: Position, at_least_one: bool) -> Position:
    at = window.at
    first, last = at.record - chunk.start_record, end.record - chunk.start_record
    fitting = size = 0
    # Only as far as they fit: a chunk may have a million.
    for begin in range(first, last, _MARKED_RECORDS):
        ends = list(accumulate(chunk.lengths[begin : min(begin + _MARKED_RECORDS, last)]))
        count = bisect_right(ends, window.max_bytes - size)
        if count:
            fitting, size = fitting + count, size + ends[count - 1]
        if count < len(ends):
            break
    if fitting == 0:
        if not at_least_one:
            return at
        fitting, size = 1, min(chunk.lengths[first], end.byte - at.byte)
    return Position(at.record + fitting, at.byte + size)


def append_at(chunk: AnyChunk, at: Position) -> list[int]:
    """The record lengths of the append that begins at `at`.

    Raises `OffsetMismatch` when `at` is not a record boundary. A position between the records
    of one append gives the rest of that append.
    """
    index = at.record - chunk.start_record
    if chunk.start_byte + chunk.bytes_before(index) != at.byte:
        raise OffsetMismatch
    if not chunk.appends:
        return chunk.lengths[index : index + 1]
    ends = list(accumulate(chunk.appends))
    return chunk.lengths[index : ends[bisect_right(ends, index)]]
