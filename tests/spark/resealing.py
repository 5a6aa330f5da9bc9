"""Objects taken apart, changed and put together, with checksums that match what was changed."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack, pack_into, unpack_from

import msgspec
import zstandard
from crc32c import crc32c

from streamd_audit import packs, segments
from tests.spark.both_decoders import FORMATS

SEGMENT_HEAD, PIECE_HEAD, LIST_HEAD = segments.HEAD_BYTES, 42, 18
CLUSTER_FRAME = 8 + 36 + 1

Change = Callable[[bytes], bytes]


def at(offset: int, layout: str, *values: int) -> Change:
    """Replace numbers."""

    def change(content: bytes) -> bytes:
        changed = bytearray(content)
        pack_into(layout, changed, offset, *values)
        return bytes(changed)

    return change


def first(before: bytes, after: bytes) -> Change:
    def change(content: bytes) -> bytes:
        assert before in content
        return content.replace(before, after, 1)

    return change


def good_head(content: bytes, size: int) -> bytes:
    """Recompute the checksum of the head, which has `size` bytes."""
    return content[: size - 4] + pack(">I", crc32c(content[: size - 4])) + content[size:]


def head(kind: str, size: int, change: Change) -> bytes:
    content = FORMATS[kind].example().content
    return good_head(change(content[:size]), size) + content[size:]


def frame(rows: bytes) -> bytes:
    """One zstd frame that says its size."""
    return zstandard.ZstdCompressor(level=3).compress(rows)


def open_frame(entries: bytes) -> bytes:
    """One zstd frame that does not say its size, as segments have it."""
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    return compressor.compress(entries) + compressor.flush()


def parts_of_segment() -> tuple[bytes, bytes, bytes]:
    """Head, uncompressed entries, and the name of the cluster."""
    content = FORMATS["segment"].example().content
    body = content[SEGMENT_HEAD:]
    entries = zstandard.ZstdDecompressor().decompressobj().decompress(body)
    return content[:SEGMENT_HEAD], entries, body[-CLUSTER_FRAME:]


def segment_of(body: bytes, entries_bytes: int, before: Change = bytes) -> bytes:
    start = bytearray(before(parts_of_segment()[0]))
    pack_into(">QQI", start, SEGMENT_HEAD - 24, entries_bytes, len(body), crc32c(body))
    return good_head(bytes(start), SEGMENT_HEAD) + body


def entries(change: Change, before: Change = bytes) -> bytes:
    """The segment with other entries, and its head changed."""
    _, inside, named = parts_of_segment()
    changed = change(inside)
    return segment_of(open_frame(changed) + named, len(changed), before)


def body(change: Change) -> bytes:
    """The segment with another body, of the same size before compression."""
    content = FORMATS["segment"].example().content
    return segment_of(change(content[SEGMENT_HEAD:]), len(parts_of_segment()[1]))


def pack_of(slices: list[bytes], footer: bytes) -> bytes:
    start = FORMATS["pack"].example().content[: packs.HEAD_BYTES]
    end = b"SDPE" + pack(">HII", 1, len(footer), crc32c(footer))
    return start + b"".join(slices) + footer + end + pack(">I", crc32c(end))


def parts_of_pack() -> tuple[list[bytes], list[list[object]]]:
    """The slices, and the footer's reference to each."""
    content = FORMATS["pack"].example().content
    refs = packs.read_pack(content)[1]
    slices = [content[ref.offset : ref.offset + ref.length] for ref in refs]
    return slices, [list(msgspec.structs.astuple(ref)) for ref in refs]


def chunk(change: Change, *, is_referred_to: bool = True) -> bytes:
    """The pack with another chunk in its first slice, the checksums of slice and footer
    recomputed."""
    slices, refs = parts_of_pack()
    inside = change(slices[0][16:])
    rest = slices[0][4:12] + pack(">I", len(inside)) + inside
    slices[0] = pack(">I", crc32c(rest)) + rest
    if is_referred_to:
        refs[0][6:8] = len(slices[0]), crc32c(rest)
        refs[1][5] = packs.HEAD_BYTES + len(slices[0])
    return pack_of(slices, msgspec.msgpack.encode(refs))


def refs(change: Callable[[list[list[object]]], object]) -> bytes:
    """The pack with another footer."""
    slices, found = parts_of_pack()
    change(found)
    return pack_of(slices, msgspec.msgpack.encode(found))


def swapped() -> bytes:
    slices, found = parts_of_pack()
    slices.append(slices.pop(0))
    return pack_of(slices, msgspec.msgpack.encode(found))


def piece_of(zstd: bytes, rows: bytes, size: int | None = None) -> bytes:
    start = bytearray(FORMATS["piece"].example().content[:PIECE_HEAD])
    fields = len(rows) if size is None else size, crc32c(rows), len(zstd), crc32c(zstd)
    pack_into(">IIII", start, 22, *fields)
    return good_head(bytes(start), PIECE_HEAD) + zstd


def listed(kind: str, change: Change) -> bytes:
    """A manifest or a pointer with another content."""
    content = FORMATS[kind].example().content
    inside = change(content[LIST_HEAD:])
    start = bytearray(content[:LIST_HEAD])
    pack_into(">II", start, 6, len(inside), crc32c(inside))
    return good_head(bytes(start), LIST_HEAD) + inside


def entry_length(number: int) -> int:
    """Where the length of an entry's payload is in the entries."""
    inside, offset = parts_of_segment()[1], 0
    for _ in range(number):
        offset += 17 + int(unpack_from(">I", inside, offset + 13)[0])
    return offset + 13
