"""Segments of the log archive: committed entries, end to end, compressed.

::

    head   magic, version, group; indexes, terms and log times of the first and last entry;
           the checksum chain before the first and at the last; sizes and CRC-32C of the body
    body   one zstd frame; of each entry: term, kind, chain, length, payload
           a frame that zstd skips: the part of the tree over the log, if it has one (`tree_frames`)
           another one: the id of the cluster, and its length in one byte

The chain is that of the log itself (`raft.chain`). It proves that consecutive segments are one log,
so a verifier needs nothing but the segments. The head alone says which entries and which times a
segment holds. Segments of earlier releases have no part of the tree, and those of builds before
0.1.0 do not name their cluster; they can read the others, because they never look at what follows
the entries.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import TypedDict

import msgspec
import zstandard
from crc32c import crc32c
from msgspec.structs import astuple

from streamd.objectstore.errors import ColdRefused, ObjectCorrupt
from streamd.objectstore.framing import Head, check_body
from streamd.objectstore.names import NamedObject, SegmentName, digest_of
from streamd.objectstore.objects import MAX_OBJECT_BYTES
from streamd.objectstore.tree_frames import TreeFrame, TreeRecorder, frame_bytes, read_frame
from streamd.raft.chain import chain
from streamd.raft.messages import Entry, EntryKind
from streamd.streams.codec import time_of_batch
from streamd.streams.content import UNDECODABLE
from streamd.streams.model import LogPosition, LogTree

VERSION = 1
# An entry's payload. With a cold store one request's body, and the data around it, is smaller.
MAX_ENTRY_BYTES = MAX_OBJECT_BYTES

_PLACE = "QQIQ"
_HEAD = Head(b"SDLG", VERSION, f"I{_PLACE}QQ{_PLACE}QQI", "a log segment")
_ENTRY = Struct(">QBII")
_LEVEL = 3
# RFC 8878 section 3.1.2: frames of sixteen magic numbers are skipped by every reader.
_SKIPPED = Struct("<II")
_SKIPPED_MAGIC = 0x184D2A5C
# How much a damaged or hostile frame may make a reader allocate.
_MAX_WINDOW_BYTES = 8 * 1024 * 1024
# The decompressor allocates what is asked for before it reads any of it.
_READ_BYTES = 1024 * 1024


class PositionFields(TypedDict, total=False):
    """A `LogPosition` with named fields, for the ends of archives and unfinished restores. A
    missing field is 0."""

    index: int
    term: int
    chain: int
    time_ms: int


def named_fields(position: LogPosition) -> PositionFields:
    """The position in the form of these formats."""
    return PositionFields(
        index=position.index,
        term=position.term,
        chain=position.chain,
        time_ms=position.time_ms,
    )


def next_position(previous: LogPosition, group_id: int, entry: Entry) -> LogPosition:
    """The position of `entry`, which follows `previous`.

    Raises `ObjectCorrupt` when the entry should hold commands but does not.
    """
    if entry.index != previous.index + 1:
        raise ValueError(f"entry {entry.index} does not follow entry {previous.index}")
    link = chain(previous.chain, group_id, entry)
    return LogPosition(entry.index, entry.term, link, _time(entry, previous.time_ms))


def position_after(previous: LogPosition, group_id: int, entries: Sequence[Entry]) -> LogPosition:
    """The position of the last of the entries that follow `previous`; raises as `next_position`."""
    for entry in entries:
        previous = next_position(previous, group_id, entry)
    return previous


class SegmentHead(msgspec.Struct, frozen=True):
    """A segment's head. `previous` is the position before its first entry.

    `first_time_ms` is the log's time as of its first entry. Sizes are those of the body, compressed
    and uncompressed.
    """

    group_id: int
    previous: LogPosition
    first_term: int
    first_time_ms: int
    last: LogPosition
    entries_size: int
    body_size: int
    body_crc: int

    @property
    def first_index(self) -> int:
        return self.previous.index + 1


HEAD_BYTES = _HEAD.size


class SegmentWriter:
    """Compresses entries as they arrive; only the compressed ones are in memory."""

    def __init__(
        self,
        group_id: int,
        previous: LogPosition,
        cluster_id: str,
        tree: LogTree | None = None,
    ) -> None:
        """`previous` is the position of the last entry already archived, `tree` the tree over the
        log as of it, if there is one. Raises `ObjectCorrupt` if that tree cannot be."""
        self._group_id = group_id
        self._cluster_id = cluster_id
        self._previous = self.last = previous
        self._first: LogPosition | None = None
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL).compressobj()
        self._parts: list[bytes] = []
        self.entries_size = 0
        self._recorder: TreeRecorder | None = None
        self.begin_tree(tree)

    @property
    def tree(self) -> LogTree | None:
        """The tree over the log after the last entry, if there is one."""
        return None if self._recorder is None else self._recorder.tree

    def begin_tree(self, tree: LogTree | None) -> None:
        """From the next entry on, the segment is a part of the tree that is `tree` before it; of
        none if that is None."""
        self._recorder = None if tree is None else TreeRecorder(tree, self.last.index + 1)

    def add(self, entry: Entry) -> None:
        """Add the entry after the last one.

        Raises `ColdRefused` for an entry that is too large: the log may have some that were written
        before the cold store was configured. Raises `ObjectCorrupt` for one that should hold
        commands but does not.
        """
        if len(entry.payload) > MAX_ENTRY_BYTES:
            raise ColdRefused(
                f"entry {entry.index} has {len(entry.payload)} bytes, which "
                "exceeds the limit for one object"
            )
        position = next_position(self.last, self._group_id, entry)
        if self._recorder is not None:
            self._recorder.add(entry)
        head = _ENTRY.pack(entry.term, entry.kind, position.chain, len(entry.payload))
        self._parts += [self._compressor.compress(head), self._compressor.compress(entry.payload)]
        self.entries_size += len(head) + len(entry.payload)
        self.last = position
        self._first = self._first or self.last

    def finish(self) -> NamedObject:
        """The segment, which must not be empty. Nothing may be added after this."""
        if self._first is None:
            raise ValueError("a segment has at least one entry")
        assert self._previous.index < self._first.index <= self.last.index
        tree = b"" if self._recorder is None else self._recorder.frame()
        named = _cluster_frame(self._cluster_id)
        body = b"".join([*self._parts, self._compressor.flush(), tree, named])
        head = _HEAD.pack(
            self._group_id,
            *astuple(self._previous),
            self._first.term,
            self._first.time_ms,
            *astuple(self.last),
            self.entries_size,
            len(body),
            crc32c(body),
        )
        content = head + body
        name = SegmentName(self._group_id, self._first.index, self.last.index, digest_of(content))
        return NamedObject(str(name), content)


def read_segment_head(content: bytes) -> SegmentHead:
    """The head of a segment, of which `content` is at least the first `HEAD_BYTES`.

    Raises `ObjectCorrupt`, and `ColdRefused` for a segment of a later version.
    """
    group_id, *fields = _HEAD.unpack(content)
    previous, (first_term, first_time_ms) = LogPosition(*fields[:4]), fields[4:6]
    head = SegmentHead(
        group_id, previous, first_term, first_time_ms, LogPosition(*fields[6:10]), *fields[10:]
    )
    if head.last.index < head.first_index:
        raise ObjectCorrupt("a log segment has no entries")
    return head


def read_entries(content: bytes) -> Iterator[tuple[Entry, LogPosition]]:
    """The entries of a whole segment with their positions, in order, each proved by the chain.

    Uncompressed a piece at a time. Raises `ObjectCorrupt` at the first entry that is not the one
    written, or `ColdRefused` for a segment of a later version.
    """
    head = read_segment_head(content)
    body = memoryview(content)[HEAD_BYTES:]
    check_body(body, head.body_size, head.body_crc, "a log segment's body")
    position = head.previous
    with _decompressor().stream_reader(io.BytesIO(body)) as reader:
        source = _Exactly(reader, head.entries_size)
        while position.index < head.last.index:
            term, kind, stored_chain, length = _ENTRY.unpack(source.read(_ENTRY.size))
            if length > MAX_ENTRY_BYTES:
                raise ObjectCorrupt(f"an entry of a log segment claims {length} bytes")
            entry = Entry(position.index + 1, term, kind, source.read(length))
            position = next_position(position, head.group_id, entry)
            if position.chain != stored_chain:
                raise ObjectCorrupt(f"entry {entry.index} of a log segment breaks the chain")
            yield entry, position
        if source.left or position != head.last:
            raise ObjectCorrupt("the last entry of a log segment does not match its head")


def cluster_of_segment(content: bytes) -> str | None:
    """The cluster that a whole segment names; None for one that a build before 0.1.0 wrote."""
    frame = content[-_cluster_frame_bytes(content) :]
    try:
        cluster_id = frame[_SKIPPED.size : -1].decode("ascii")
    except UnicodeDecodeError:
        return None
    return cluster_id if frame == _cluster_frame(cluster_id) else None


def tree_of_segment(content: bytes) -> TreeFrame | None:
    """The part of the tree over the log that a segment has, or the last `frames_bytes` of one; None
    if it has none. Raises `ObjectCorrupt` for one that cannot be."""
    return read_frame(memoryview(content)[: -_cluster_frame_bytes(content)])


def frames_bytes(content: bytes) -> int:
    """How many bytes at the end of a segment hold its part of the tree, and what follows that; 0 if
    it has none. Of the segment `content` is the end, or all."""
    named = _cluster_frame_bytes(content)
    size = frame_bytes(memoryview(content)[:-named])
    return size + named if size else 0


def _cluster_frame_bytes(content: bytes) -> int:
    """The size of the frame with the cluster's id, if there is one at the end."""
    return _SKIPPED.size + content[-1] + 1


def _cluster_frame(cluster_id: str) -> bytes:
    name = cluster_id.encode("ascii")
    return _SKIPPED.pack(_SKIPPED_MAGIC, len(name) + 1) + name + bytes([len(name)])


class _Exactly:
    """Reads exactly what was announced."""

    def __init__(self, reader: zstandard.ZstdDecompressionReader, left: int) -> None:
        self._reader = reader
        self.left = left

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes. Raises `ObjectCorrupt` if there are fewer."""
        parts: list[bytes] = []
        if size > self.left:
            raise ObjectCorrupt("a log segment's entries are longer than its head says")
        self.left -= size
        while size:
            try:
                part = self._reader.read(min(size, _READ_BYTES))
            except zstandard.ZstdError as error:
                raise ObjectCorrupt(f"a log segment cannot be decompressed: {error}") from error
            if not part:
                raise ObjectCorrupt("a log segment's entries are shorter than its head says")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _decompressor() -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)


def _time(entry: Entry, before_ms: int) -> int:
    """The log's time as of an entry; an entry without commands does not change it."""
    if entry.kind != EntryKind.COMMANDS:
        return before_ms
    try:
        return max(before_ms, time_of_batch(entry.payload))
    except UNDECODABLE as error:
        raise ObjectCorrupt(f"entry {entry.index} holds no commands: {error}") from error
