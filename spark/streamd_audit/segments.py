"""Segments of the log archive (docs/formats.md, "Log segments")."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct

import msgspec
import zstandard

from streamd_audit.chain import link
from streamd_audit.commands import stamp_of
from streamd_audit.errors import (
    BAD_ZSTD,
    CHAIN,
    CONTRADICTION,
    MISNAMED,
    OTHER_CLUSTER,
    TOO_LARGE,
    TOO_LONG,
    TOO_SHORT,
    Damaged,
)
from streamd_audit.framing import (
    MAX_OBJECT_BYTES,
    Buffer,
    Decoder,
    Head,
    check_part,
    decompressor,
    zstd_frame_size,
)
from streamd_audit.names import SegmentName, is_cluster

NOOP, COMMANDS, CONFIGURATION = 0, 1, 2
KIND_NAMES = {NOOP: "noop", COMMANDS: "commands", CONFIGURATION: "configuration"}
MAX_ENTRY_BYTES = MAX_OBJECT_BYTES
# No writer packs so much into one segment; a few bytes of zstd can claim any size.
MAX_ENTRIES_BYTES = 4 * 1024 * 1024 * 1024

_PLACE = "QQIQ"
_HEAD = Head(b"SDLG", f"I{_PLACE}QQ{_PLACE}QQI", "a segment's head")
HEAD_BYTES = _HEAD.size
_ENTRY = Struct(">QBII")
_SKIPPED = Struct("<II")
_SKIPPED_MAGIC = 0x184D2A5C
_TREE_MAGIC = 0x184D2A5D
_LENGTH = Struct("<I")
_READ_BYTES = 1024 * 1024


class Place(msgspec.Struct, frozen=True, gc=False):
    """An entry's index and term, the chain's value there, and the log's time as of it in
    milliseconds since the epoch. All 0 before the first entry."""

    index: int
    term: int
    chain: int
    time_ms: int


class SegmentHead(msgspec.Struct, frozen=True):
    """The head of a segment.

    `previous` is the place before its first entry, `last` that of its last one. Sizes are in
    bytes: of the entries before compression, and of everything after the head.
    """

    group: int
    previous: Place
    first_term: int
    first_time_ms: int
    last: Place
    entries_bytes: int
    body_bytes: int
    body_crc: int

    @property
    def first_index(self) -> int:
        return self.previous.index + 1


class Tree(msgspec.Struct, array_like=True):
    """The part of the tree over the log that the entries from `begin` on add: the tree's first
    entry, its nodes before `begin`, and the roots of the large subtrees that they complete."""

    first_index: int
    begin: int
    nodes: list[bytes]
    tiles: bytes


class Entry(msgspec.Struct, gc=False):
    """An entry of the log.

    `chain` is the value stored with it; `is_linked` says whether the entry before it and its own
    content lead to that value. `stamp_ms` is the time in its batch, 0 for an entry without
    commands; `time_ms` the log's time as of it, which never goes back. The payload is a view into
    a larger buffer: keep `bytes` of it, not the view.
    """

    index: int
    term: int
    kind: int
    chain: int
    is_linked: bool
    stamp_ms: int
    time_ms: int
    payload: memoryview


_decode_tree: Decoder[Tree] = Decoder(Tree, "the tree of a segment")


def read_head(content: Buffer) -> SegmentHead:
    """What the first `HEAD_BYTES` bytes of a segment say; `content` may be longer.

    Raises `Damaged`.
    """
    group, *fields = _HEAD.unpack(content)
    head = SegmentHead(
        group, Place(*fields[:4]), fields[4], fields[5], Place(*fields[6:10]), *fields[10:]
    )
    if head.last.index < head.first_index:
        raise Damaged(
            CONTRADICTION,
            f"a segment from entry {head.first_index} to entry {head.last.index} holds nothing",
        )
    if head.entries_bytes > MAX_ENTRIES_BYTES:
        raise Damaged(TOO_LARGE, f"a segment says it has {head.entries_bytes} bytes of entries")
    return head


def check_name(name: SegmentName, head: SegmentHead) -> None:
    """Raises `Damaged` unless a segment's name agrees with its head."""
    found = (head.group, head.first_index, head.last.index)
    said = (name.group, name.first, name.last)
    if found != said:
        raise Damaged(MISNAMED, f"(group, first, last) is {found}, the name says {said}")


def check_body(head: SegmentHead, content: Buffer) -> None:
    """Raises `Damaged` unless what follows the head has its size and its CRC-32C."""
    check_part(memoryview(content)[HEAD_BYTES:], head.body_bytes, head.body_crc, "a segment")


def read_cluster(content: Buffer) -> str | None:
    """The cluster that a whole segment names; None if a build before 0.1.0 wrote it.

    Raises `Damaged` when the entries are not followed by exactly that.
    """
    body = memoryview(content)[HEAD_BYTES:]
    return _cluster_of(body[zstd_frame_size(body) :])


def read_tree(content: Buffer) -> Tree | None:
    """The part of the tree over the log that a whole segment has; None if it has none.

    Raises `Damaged`.
    """
    body = memoryview(content)[HEAD_BYTES:]
    tail = body[zstd_frame_size(body) :]
    size = _tree_bytes(tail)
    return _decode_tree(tail[_SKIPPED.size : size - _LENGTH.size]) if size else None


def check_cluster(content: Buffer, cluster: str) -> None:
    """Raises `Damaged` for a segment that names another cluster."""
    found = read_cluster(content)
    if found is not None and found != cluster:
        raise Damaged(OTHER_CLUSTER, f"the segment is of cluster {found}")


def read_entries(
    content: Buffer, *, first_index: int = 0, last_index: int | None = None
) -> Iterator[Entry]:
    """The entries of a whole segment from `first_index` to `last_index`, in order.

    An entry that breaks the chain is yielded with `is_linked` False, and the chain continues from
    the stored value, so that one forged entry is one finding. Up to about 1 MiB and an entry is
    decompressed at a time. With `last_index` the rest of the segment is not read.

    Raises `Damaged` as soon as anything else deviates from the format; the entries before that
    were yielded.
    """
    head = read_head(content)
    check_body(head, content)
    body = memoryview(content)[HEAD_BYTES:]
    size = zstd_frame_size(body)
    _cluster_of(body[size:])
    group = head.group
    index, chain, time_ms = head.previous.index, head.previous.chain, head.previous.time_ms
    stop = head.last.index if last_index is None else min(last_index, head.last.index)
    term = stamp_ms = 0
    unpack, head_size = _ENTRY.unpack_from, _ENTRY.size
    with decompressor().stream_reader(body[:size]) as reader:
        source = _Source(reader.read, head.entries_bytes)
        buffer, at = memoryview(b""), 0
        while index < stop:
            index += 1
            if len(buffer) - at < head_size:
                buffer, at = source.more(buffer[at:], head_size), 0
            term, kind, stored, length = unpack(buffer, at)
            if length > MAX_ENTRY_BYTES:
                raise Damaged(TOO_LARGE, f"entry {index} says it has {length} bytes", index)
            at += head_size
            if len(buffer) - at < length:
                buffer, at = source.more(buffer[at:], length), 0
            payload = buffer[at : at + length]
            at += length
            # Entries that are not yielded need no proof; their values only lead to the next ones.
            is_linked = index < first_index or (
                link(chain, group, index, term, kind, payload) == stored
            )
            chain = stored
            if kind == COMMANDS:
                stamp_ms = stamp_of(payload, index)
                time_ms = max(time_ms, stamp_ms)
            else:
                stamp_ms = 0
            if index == head.first_index and (term, time_ms) != (
                head.first_term,
                head.first_time_ms,
            ):
                raise Damaged(
                    CONTRADICTION,
                    f"the first entry has (term, time) {(term, time_ms)}, the head says "
                    f"{(head.first_term, head.first_time_ms)}",
                    index,
                )
            if index >= first_index:
                yield Entry(index, term, kind, stored, is_linked, stamp_ms, time_ms, payload)
        if stop == head.last.index:
            source.expect_end(len(buffer) - at)
            if (place := Place(index, term, chain, time_ms)) != head.last:
                raise Damaged(
                    CONTRADICTION, f"the last entry is {place}, the head says {head.last}", index
                )


def check_segment(content: Buffer) -> int:
    """The number of entries in a segment whose every byte is right, the chain included.

    Raises `Damaged` otherwise.
    """
    count = 0
    for entry in read_entries(content):
        if not entry.is_linked:
            raise Damaged(CHAIN, f"entry {entry.index} breaks the chain", entry.index)
        count += 1
    return count


class _Source:
    """The decompressed entries: exactly as many bytes as the head says."""

    def __init__(self, read: Callable[[int], bytes], left: int) -> None:
        self._read = read
        self._left = left

    def more(self, rest: memoryview, wanted: int) -> memoryview:
        """A new buffer that begins with `rest` and has at least `wanted` bytes."""
        if wanted > len(rest) + self._left:
            raise Damaged(TOO_SHORT, "the entries have fewer bytes than the head says")
        parts: list[Buffer] = [rest]
        size = len(rest)
        while size < wanted:
            # A share at a time: the size that a head claims is not yet known to be true.
            part = self._checked(min(_READ_BYTES, self._left))
            if not part:
                raise Damaged(TOO_SHORT, "the entries have fewer bytes than the head says")
            self._left -= len(part)
            size += len(part)
            parts.append(part)
        return memoryview(b"".join(parts))

    def expect_end(self, unread: int) -> None:
        if unread or self._checked(1):
            raise Damaged(TOO_LONG, "there is more in a segment than its entries")
        if self._left:
            raise Damaged(TOO_SHORT, "the entries have fewer bytes than the head says")

    def _checked(self, size: int) -> bytes:
        try:
            return self._read(size)
        except zstandard.ZstdError as error:
            raise Damaged(BAD_ZSTD, f"a segment cannot be decompressed: {error}") from error


def _cluster_of(tail: memoryview) -> str | None:
    """The cluster's id after the entries, or after the part of the tree: a frame that zstd skips,
    or nothing."""
    if not tail:
        return None
    tail = tail[_tree_bytes(tail) :]
    if len(tail) >= _SKIPPED.size:
        magic, size = _SKIPPED.unpack_from(tail)
        named = bytes(tail[_SKIPPED.size : -1])
        if (magic, size, tail[-1]) == (_SKIPPED_MAGIC, len(named) + 1, len(named)):
            text = named.decode("ascii", errors="replace")
            if is_cluster(text):
                return text
    raise Damaged(TOO_LONG, f"{len(tail)} bytes after the entries name no cluster")


def _tree_bytes(tail: memoryview) -> int:
    """The size of the frame with the part of the tree, after the entries; 0 if there is none."""
    if len(tail) < _SKIPPED.size:
        return 0
    magic, size = _SKIPPED.unpack_from(tail)
    if magic != _TREE_MAGIC:
        return 0
    end = int(_SKIPPED.size + size)
    if size < _LENGTH.size or end > len(tail):
        raise Damaged(TOO_SHORT, "the tree of a segment is cut short")
    if _LENGTH.unpack_from(tail, end - _LENGTH.size) != (size - _LENGTH.size,):
        raise Damaged(CONTRADICTION, "the tree of a segment says two lengths")
    return end
