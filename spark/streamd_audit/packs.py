"""Packs and the slices in them (docs/formats.md, "Packs")."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from hashlib import sha256
from struct import Struct, pack
from sys import byteorder
from typing import Annotated, NamedTuple

import msgspec
from crc32c import crc32c

from streamd_audit import strict
from streamd_audit.errors import (
    CONTRADICTION,
    FOOTER_CRC,
    MISNAMED,
    SLICE_CRC,
    TOO_SHORT,
    WRONG_SLICE,
    Damaged,
)
from streamd_audit.framing import Buffer, Decoder, Head
from streamd_audit.names import PackName

_HEAD = Head(b"SDPK", "IQQ", "a pack's head")
_END = Head(b"SDPE", "II", "a pack's end")
HEAD_BYTES = _HEAD.size
END_BYTES = _END.size
_SLICE = Struct(">IQI")
SLICE_HEAD_BYTES = _SLICE.size
# Of a pack's end: nearly all footers fit, so that one request brings them.
_TAIL_BYTES = 64 * 1024

_Unsigned = Annotated[int, msgspec.Meta(ge=0)]


class PackHead(msgspec.Struct, frozen=True):
    group: int
    term: int
    number: int


class PackEnd(msgspec.Struct, frozen=True):
    """Where the footer of a pack is; all in bytes."""

    footer_offset: int
    footer_bytes: int
    footer_crc: int


class SliceRef(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A slice as the footer names it.

    Records and bytes count from the stream's beginning; `offset` and `length` are those of the
    slice in the pack, its head included. `digest` is the `records_digest` of its records.
    """

    stream_id: _Unsigned
    start_record: _Unsigned
    start_byte: _Unsigned
    end_record: _Unsigned
    end_byte: _Unsigned
    offset: _Unsigned
    length: _Unsigned
    crc: _Unsigned
    digest: bytes


class Chunk(msgspec.Struct, array_like=True, gc=False):
    """Records of one stream end to end: their lengths in bytes, and how many each append had.

    If `appends` is empty each append had one record. `data` is a view into a larger buffer.
    """

    start_record: _Unsigned
    start_byte: _Unsigned
    lengths: list[int]
    appends: list[int]
    data: memoryview

    @property
    def end_record(self) -> int:
        return self.start_record + len(self.lengths)

    @property
    def end_byte(self) -> int:
        return self.start_byte + len(self.data)


class SliceHead(NamedTuple):
    """What a slice begins with; `length` is that of its chunk in bytes."""

    crc: int
    stream_id: int
    length: int


class Slice(msgspec.Struct, gc=False):
    """A slice that has its checksum; `length` is its size in the pack, its head included."""

    stream_id: int
    crc: int
    length: int
    chunk: Chunk


_decode_footer: Decoder[list[SliceRef]] = Decoder(list[SliceRef], "a pack's footer")
_decode_chunk: Decoder[Chunk] = Decoder(Chunk, "a chunk")


def read_head(content: Buffer) -> PackHead:
    """The head of a pack, of which `content` is at least the first `HEAD_BYTES`. Raises
    `Damaged`."""
    return PackHead(*_HEAD.unpack(content))


def check_name(name: PackName, head: PackHead) -> None:
    """Raises `Damaged` unless a pack's name says what its head says."""
    found = (head.group, head.term, head.number)
    said = (name.group, name.term, name.number)
    if found != said:
        raise Damaged(MISNAMED, f"(group, term, number) is {found}, the name says {said}")


def read_end(last: Buffer, size: int) -> PackEnd:
    """Where the footer is, by the last `END_BYTES` of a pack of `size` bytes. Raises `Damaged`."""
    if size < HEAD_BYTES + END_BYTES:
        raise Damaged(TOO_SHORT, f"a pack has {size} bytes")
    footer_bytes, footer_crc = _END.unpack(last)
    offset = size - END_BYTES - footer_bytes
    if offset < HEAD_BYTES:
        raise Damaged(TOO_SHORT, f"a pack of {size} bytes with a footer of {footer_bytes} bytes")
    return PackEnd(offset, footer_bytes, footer_crc)


def read_footer(footer: Buffer, end: PackEnd) -> list[SliceRef]:
    """The slices of a pack, which lie end to end between head and footer. Raises `Damaged`."""
    crc = crc32c(footer)
    if len(footer) != end.footer_bytes or crc != end.footer_crc:
        raise Damaged(FOOTER_CRC, f"a footer has CRC-32C {crc:08x}, not {end.footer_crc:08x}")
    refs = _decode_footer(footer)
    expected = HEAD_BYTES
    for number, ref in enumerate(refs):
        if ref.offset != expected:
            raise Damaged(
                CONTRADICTION, f"slice {number} is at byte {ref.offset}, not {expected}", number
            )
        expected += ref.length
    if expected != end.footer_offset:
        raise Damaged(
            CONTRADICTION, f"slices end at byte {expected}, the footer is at {end.footer_offset}"
        )
    return refs


def read_slice_head(content: Buffer) -> SliceHead:
    """The head of the slice with which these bytes begin. Raises `Damaged`."""
    if len(content) < SLICE_HEAD_BYTES:
        raise Damaged(TOO_SHORT, f"a slice has {len(content)} bytes")
    return SliceHead(*_SLICE.unpack_from(content))


def read_slice(content: Buffer) -> Slice:
    """The slice in exactly these bytes of a pack. Raises `Damaged`."""
    head = read_slice_head(content)
    view = memoryview(content)
    crc = crc32c(view[4:])
    if crc != head.crc:
        raise Damaged(SLICE_CRC, f"a slice has CRC-32C {crc:08x}, not {head.crc:08x}")
    size = len(view) - SLICE_HEAD_BYTES
    if head.length != size:
        raise Damaged(CONTRADICTION, f"a slice's chunk has {size} bytes, not {head.length}")
    return Slice(head.stream_id, crc, len(view), read_chunk(view[SLICE_HEAD_BYTES:]))


def walk(content: Buffer) -> Iterator[tuple[int, memoryview]]:
    """Offset and bytes of each slice from the head of a pack on, without its footer; ends before
    the first that is cut off or does not have its checksum."""
    view, at = memoryview(content), HEAD_BYTES
    while at + SLICE_HEAD_BYTES <= len(view):
        head = read_slice_head(view[at:])
        size = SLICE_HEAD_BYTES + head.length
        found = view[at : at + size]
        if len(found) < size or crc32c(found[4:]) != head.crc:
            return
        yield at, found
        at += size


def read_chunk(content: Buffer) -> Chunk:
    """A chunk by itself, as rows of a state have it too. Raises `Damaged`."""
    chunk = _decode_chunk(content)
    lengths, appends = chunk.lengths, chunk.appends
    if sum(lengths) != len(chunk.data) or (lengths and min(lengths) < 0):
        raise Damaged(
            CONTRADICTION, f"records of {sum(lengths)} bytes in a chunk of {len(chunk.data)}"
        )
    if appends and (sum(appends) != len(lengths) or min(appends) < 0):
        raise Damaged(CONTRADICTION, f"appends of {sum(appends)} records of {len(lengths)}")
    if max(chunk.end_record, chunk.end_byte) >> 64:
        raise Damaged(CONTRADICTION, "a chunk ends where no stream does")
    return chunk


def check_footer_known(content: Buffer, refs: list[SliceRef]) -> None:
    """Raises `Damaged` if the footer of a whole pack says more than `refs`, read from it."""
    end = read_end(content[-END_BYTES:], len(content))
    footer = bytes(content[end.footer_offset : -END_BYTES])
    strict.check_known(refs, footer, "a pack's footer")


def check_slice(ref: SliceRef, found: Slice) -> None:
    """Raises `Damaged` unless a slice is the one that was referred to, its digest included."""
    chunk = found.chunk
    for what, expected, actual in (
        ("checksum", ref.crc, found.crc),
        ("stream", ref.stream_id, found.stream_id),
        ("length", ref.length, found.length),
        ("start", (ref.start_record, ref.start_byte), (chunk.start_record, chunk.start_byte)),
        ("end", (ref.end_record, ref.end_byte), (chunk.end_record, chunk.end_byte)),
    ):
        if expected != actual:
            raise Damaged(WRONG_SLICE, f"a slice has {what} {actual}, the footer says {expected}")
    digest = records_digest(chunk)
    if digest != ref.digest:
        raise Damaged(
            WRONG_SLICE, f"a slice has digest {digest.hex()}, the footer says {ref.digest.hex()}"
        )


def records_digest(chunk: Chunk) -> bytes:
    """128 bits of SHA-256 over a chunk's place, lengths, appends and bytes."""
    count = len(chunk.lengths)
    digest = sha256(pack(">QQI", chunk.start_record, chunk.start_byte, count))
    digest.update(_numbers(chunk.lengths))
    digest.update(_numbers(chunk.appends or [1] * count))
    digest.update(chunk.data)
    return digest.digest()[:16]


def read_refs(read: Callable[[int, int], Buffer], size: int) -> list[SliceRef]:
    """The slices of a pack of `size` bytes, by its footer alone; `read` takes an offset and a
    length. Raises `Damaged`, and what `read` raises."""
    start = max(0, size - _TAIL_BYTES)
    tail = read(start, size - start)
    end = read_end(tail[-END_BYTES:], size)
    if end.footer_offset < start:
        return read_footer(read(end.footer_offset, end.footer_bytes), end)
    return read_footer(tail[end.footer_offset - start : -END_BYTES], end)


def read_pack(content: Buffer) -> tuple[PackHead, list[SliceRef]]:
    """The head and the footer of a whole pack; slices are not looked at. Raises `Damaged`."""
    head = read_head(content)
    return head, read_refs(lambda at, length: content[at : at + length], len(content))


def check_pack(content: Buffer) -> Iterator[tuple[SliceRef, Slice]]:
    """All slices of a whole pack. Raises `Damaged` at the first that differs from the footer."""
    view = memoryview(content)
    for ref in read_pack(view)[1]:
        found = read_slice(view[ref.offset : ref.offset + ref.length])
        check_slice(ref, found)
        yield ref, found


def _numbers(values: list[int]) -> bytes:
    """Eight bytes each, big endian."""
    numbers = array("Q", values)
    if byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()
