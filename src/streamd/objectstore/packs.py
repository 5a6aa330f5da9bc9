"""Packs: slices of many streams in one immutable object.

::

    head     magic, version, group, term, number                          CRC-32C
    slices   each: CRC-32C, stream id, length; the stored chunk
    footer   the place and content of each slice
    end      the footer's length and CRC-32C, magic                       CRC-32C

A `SliceRef` suffices to read and verify a slice by itself; a pack can be read by itself from its
end. Every byte is under a checksum, and all of them under the digest in the pack's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from streamd.objectstore.errors import ObjectCorrupt
from streamd.objectstore.framing import Head, check_body, decoded
from streamd.objectstore.names import PackName
from streamd.objectstore.objects import ObjectStore
from streamd.streams.chunks import Chunk
from streamd.streams.content import UNDECODABLE
from streamd.streams.model import SliceRef

VERSION = 1

_HEAD = Head(b"SDPK", VERSION, "IQQ", "a pack")
_END = Head(b"SDPE", VERSION, "II", "a pack's end")
_CHECKSUM = Struct(">I")
_SLICE = Struct(">QI")
_MAX_NUMBER = 2**63 - 1
_SLICE_HEAD_BYTES = _CHECKSUM.size + _SLICE.size


class Pack(NamedTuple):
    """A pack to put under its name, and its contents."""

    name: str
    content: bytes
    slices: list[SliceRef]


class PackContents(NamedTuple):
    """A whole pack's head and index."""

    group_id: int
    term: int
    number: int
    slices: list[SliceRef]


_ENCODER = msgspec.msgpack.Encoder()
_CHUNK_DECODER = msgspec.msgpack.Decoder(Chunk)
_FOOTER_DECODER = msgspec.msgpack.Decoder(list[SliceRef])


class PackWriter:
    """Gathers slices. The pack itself is in memory, so the caller limits its size."""

    def __init__(self, group_id: int, term: int, number: int) -> None:
        self._place = (group_id, term, number)
        self._slices: list[SliceRef] = []
        self._parts: list[bytes] = []
        self._digest = sha256()
        self.size = 0
        self._add(_HEAD.pack(*self._place))

    def __len__(self) -> int:
        return len(self._slices)

    def add(self, stream_id: int, chunk: Chunk) -> SliceRef:
        """Add a stored chunk after those already added."""
        content = _ENCODER.encode(chunk)
        head = _SLICE.pack(stream_id, len(content))
        crc = crc32c(content, crc32c(head))
        length = _SLICE_HEAD_BYTES + len(content)
        ref = _ref(stream_id, chunk, self.size, length, crc, chunk.digest())
        self._add(_CHECKSUM.pack(crc) + head)
        self._add(content)
        self._slices.append(ref)
        return ref

    def finish(self) -> Pack:
        """The complete pack. Nothing may be added after this."""
        assert self.size == _HEAD.size + sum(ref.length for ref in self._slices)
        footer = _ENCODER.encode(self._slices)
        self._add(footer)
        self._add(_END.pack(len(footer), crc32c(footer)))
        name = PackName(*self._place, self._digest.hexdigest())
        return Pack(str(name), b"".join(self._parts), self._slices)

    def _add(self, part: bytes) -> None:
        self._parts.append(part)
        self._digest.update(part)
        self.size += len(part)


def decode_slice(ref: SliceRef, content: bytes | memoryview) -> Chunk:
    """The chunk in the bytes of a pack from ``ref.offset`` to ``ref.offset + ref.length``.

    Raises `ObjectCorrupt` unless it is, to the byte, the one from which `ref` was made.
    """
    if len(content) != ref.length or len(content) < _SLICE_HEAD_BYTES:
        raise ObjectCorrupt(f"a slice has {len(content)} bytes instead of {ref.length}")
    (stored_crc,) = _CHECKSUM.unpack_from(content)
    stream_id, length = _SLICE.unpack_from(content, _CHECKSUM.size)
    crc = crc32c(memoryview(content)[_CHECKSUM.size :])
    if not crc == stored_crc == ref.crc:
        raise ObjectCorrupt(f"a slice of stream {ref.stream_id} has a wrong checksum")
    if length != len(content) - _SLICE_HEAD_BYTES:
        raise ObjectCorrupt(f"a slice of stream {ref.stream_id} has a wrong length")
    try:
        chunk = _CHUNK_DECODER.decode(memoryview(content)[_SLICE_HEAD_BYTES:])
    except UNDECODABLE as error:
        raise ObjectCorrupt(f"a slice of stream {ref.stream_id} holds no chunk") from error
    if not _has_valid_bounds(chunk):
        raise ObjectCorrupt(f"a slice of stream {ref.stream_id} holds impossible record numbers")
    found = _ref(stream_id, chunk, ref.offset, ref.length, crc, ref.digest)
    if found != ref or sum(chunk.lengths) != len(chunk.data):
        raise ObjectCorrupt(f"a slice holds {found} instead of {ref}")
    return chunk


def _ref(
    stream_id: int, chunk: Chunk, offset: int, length: int, crc: int, digest: bytes
) -> SliceRef:
    return SliceRef(
        stream_id=stream_id,
        start_record=chunk.start_record,
        start_byte=chunk.start_byte,
        end_record=chunk.end_record,
        end_byte=chunk.end_byte,
        offset=offset,
        length=length,
        crc=crc,
        digest=digest,
    )


def _has_valid_bounds(chunk: Chunk) -> bool:
    """Whether a chunk's numbers can be those of records; others cannot even be digested."""
    least = min(chunk.start_record, chunk.start_byte, *chunk.lengths, *chunk.appends)
    return least >= 0 and max(chunk.end_record, chunk.end_byte, *chunk.appends) <= _MAX_NUMBER


def read_pack(content: bytes) -> PackContents:
    """The index of a whole pack, after a check that the pack holds nothing else; slices are not
    checked.

    Raises `ObjectCorrupt`, and `ColdRefused` for a pack of a later version.
    """
    group_id, term, number = _HEAD.unpack(content)
    end_at = len(content) - _END.size
    if end_at < _HEAD.size:
        raise ObjectCorrupt("a pack is cut short")
    footer_bytes, footer_crc = _END.unpack(content[end_at:])
    footer = content[max(0, end_at - footer_bytes) : end_at]
    check_body(footer, footer_bytes, footer_crc, "a pack's footer")
    slices = decoded(_FOOTER_DECODER, footer, "a pack's footer")
    expected = _HEAD.size
    for ref in slices:
        if ref.offset != expected:
            raise ObjectCorrupt("a pack's slices do not lie end to end")
        expected += ref.length
    if expected != end_at - footer_bytes:
        raise ObjectCorrupt("a pack's slices do not end where its footer begins")
    return PackContents(group_id, term, number, slices)


def read_slices(store: ObjectStore, name: str, refs: Sequence[SliceRef]) -> list[Chunk]:
    """The chunks of slices that lie end to end in a pack, read in one request. Blocks.

    Raises `ObjectCorrupt` when one of them is not the one from which its reference was made.
    """
    start = refs[0].offset
    end = refs[-1].offset + refs[-1].length
    content = memoryview(store.get(name, start, end - start))
    try:
        return [
            decode_slice(ref, content[ref.offset - start : ref.offset - start + ref.length])
            for ref in refs
        ]
    except ObjectCorrupt as error:
        raise ObjectCorrupt(f"{name} in {store.place}: {error}") from error
