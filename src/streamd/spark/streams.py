"""Streams to read, wherever they are: what readers need from a server, or from a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streamd.spark.errors import StreamMissing, Trimmed
from streamd.streams.offsets import START, Position, parse_offset

# The limit for one query. The checkpoint of a live one names each stream in every micro-batch.
MAX_STREAMS = 100_000


class Described(NamedTuple):
    """A stream as of some moment.

    `incarnation` distinguishes it from earlier and later streams of the same name.
    """

    name: str
    content_type: str
    incarnation: str
    tail: Position


class Source(NamedTuple):
    """Where a store has the records [`start`, `end`) of some stream.

    `parts` are objects, each with the start and number of its bytes: a slice of a pack, or a chunk
    in the rows of a state's pieces. With `end_byte` the last record ends there.
    """

    start: int
    end: int
    end_byte: int | None
    is_slice: bool
    parts: tuple[tuple[str, int, int], ...]


class Located(NamedTuple):
    """What a task has to know about a range in a store."""

    content_type: str
    earliest: Position
    sources: tuple[Source, ...]


class Range(NamedTuple):
    """The records in [`start`, `end`) of a stream, of about `size` bytes."""

    name: str
    incarnation: str
    start: int
    end: int
    size: int
    located: Located | None = None


class Piece(NamedTuple):
    """Records end to end, the first of which begins at `start`; and their lengths in bytes.

    JSON messages have a comma after each, which lengths and offsets count.
    """

    content_type: str
    start: Position
    lengths: NDArray[np.int64]
    data: bytes

    @classmethod
    def of(cls, content_type: str, start: Position, messages: Sequence[bytes]) -> Piece:
        """JSON messages as a server stores them."""
        lengths = np.array([len(message) + 1 for message in messages], dtype=np.int64)
        return cls(content_type, start, lengths, b"".join(each + b"," for each in messages))

    def cut(self, count: int) -> Piece:
        """The first `count` records."""
        if count >= len(self.lengths):
            return self
        lengths = self.lengths[:count]
        return Piece(self.content_type, self.start, lengths, self.data[: int(lengths.sum())])


class Snapshot(NamedTuple):
    """The application's summary of the records before `at`."""

    at: Position
    content_type: str
    content: bytes


class Streams(Protocol):
    """A source of streams. Calls block, and raise the exceptions in `errors`."""

    def describe(self, wanted: Iterable[str]) -> Sequence[Described]:
        """These streams. Raises `StreamMissing`."""
        ...

    def listed(self, bucket: str, prefix: str) -> Iterator[Described]:
        """The streams of a bucket whose names in it begin with `prefix`, in order."""
        ...

    def boundary(self, name: str, record: int) -> Position:
        """Where a record begins; the tail if it does not exist yet.

        Raises `StreamMissing`, `Trimmed`.
        """
        ...

    def located(self, wanted: Range) -> Range:
        """A range with everything that its task needs, of a stream that was described or listed."""
        ...

    def pieces(self, wanted: Range, start: int) -> Iterator[Piece]:
        """Records of a located range from number `start` on, and perhaps some after it, about a
        mebibyte at a time.

        Raises `StreamMissing`, also when the stream of this incarnation is gone, and `Trimmed`.
        """
        ...

    def snapshot(self, name: str) -> Snapshot:
        """The snapshot that the application published for a trimmed stream."""
        ...


class Rules(NamedTuple):
    """What to do about records that are gone: `skip` them, or fail."""

    skip_trimmed: bool = False
    skip_deleted: bool = False


def read(streams: Streams, wanted: Range, rules: Rules) -> Iterator[Piece]:
    """The records of a range, except missing ones if `rules` allow that.

    Raises `Trimmed`, `StreamMissing`.
    """
    at = wanted.start
    while at < wanted.end:
        try:
            for piece in streams.pieces(wanted, at):
                piece = piece.cut(wanted.end - piece.start.record)
                yield piece
                at = piece.start.record + len(piece.lengths)
                if at >= wanted.end:
                    return
            raise StreamMissing(f"{wanted.name} ends at record {at}, which is not its last")
        except Trimmed as trimmed:
            if not rules.skip_trimmed:
                raise
            at = max(at, trimmed.earliest.record)
        except StreamMissing as missing:
            if not rules.skip_deleted:
                raise StreamMissing(f"{missing}: on_deleted=skip reads on without it") from None
            return


def as_position(token: str) -> Position | None:
    """The position that an offset names; `-1` is the start. None if it is not an offset."""
    return START if token == "-1" else parse_offset(token.encode())
