"""Damage whose checksums were made good again, so that only the structure can tell.

Each is fed to both decoders. What the audit must say of it is given; the server need not notice all
of it, but what it refuses, the audit refuses.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from random import Random
from struct import pack, pack_into, unpack_from
from typing import Any, NamedTuple

import msgspec
import pytest
import zstandard
from crc32c import crc32c

from streamd_audit import packs, segments
from streamd_audit.errors import (
    BAD_MSGPACK,
    BAD_ZSTD,
    BODY_CRC,
    CHAIN,
    CONTRADICTION,
    FOOTER_CRC,
    HEAD_CRC,
    TOO_LARGE,
    TOO_LONG,
    TOO_SHORT,
    UNKNOWN_VERSION,
    WRONG_MAGIC,
    WRONG_SLICE,
    Damaged,
)
from streamd_audit.framing import zstd_frame_size
from tests.spark.both import FORMATS, judged
from tests.spark.test_decoders import spoiled

SEGMENT_HEAD, PIECE_HEAD, LIST_HEAD = segments.HEAD_BYTES, 42, 18
CLUSTER_FRAME = 8 + 36 + 1
# What there may be in an object that the server does not look at.
STRICTER = {CONTRADICTION, TOO_LONG, TOO_SHORT, BAD_ZSTD, WRONG_SLICE, BAD_MSGPACK}

Change = Callable[[bytes], bytes]


# -- objects taken apart and put together --------------------------------------------------------


def at(offset: int, layout: str, *values: int) -> Change:
    """Put numbers in the place of others."""

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
    """With the checksum of its head, of `size` bytes, made good."""
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
    """Head, entries as they were before compression, what names the cluster."""
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
    """The slices, and what the footer says of each."""
    content = FORMATS["pack"].example().content
    refs = packs.read_pack(content)[1]
    slices = [content[ref.offset : ref.offset + ref.length] for ref in refs]
    return slices, [list(msgspec.structs.astuple(ref)) for ref in refs]


def chunk(change: Change, *, is_referred_to: bool = True) -> bytes:
    """The pack with another chunk in its first slice, the slice's checksum made good, and the
    footer's."""
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


# -- what is planted -----------------------------------------------------------------------------


class Planted(NamedTuple):
    kind: str
    expected: str
    make: Callable[[], bytes]


PLANTED = {
    "a segment's checksum is wrong": Planted(
        "segment", HEAD_CRC, lambda: at(20, ">I", 7)(FORMATS["segment"].example().content)
    ),
    "a segment is called a pack": Planted(
        "segment", WRONG_MAGIC, lambda: head("segment", SEGMENT_HEAD, first(b"SDLG", b"SDPK"))
    ),
    "a segment is of a later version": Planted(
        "segment", UNKNOWN_VERSION, lambda: head("segment", SEGMENT_HEAD, at(4, ">H", 2))
    ),
    "a segment says it holds nothing": Planted(
        "segment", CONTRADICTION, lambda: head("segment", SEGMENT_HEAD, at(54, ">Q", 0))
    ),
    "a segment says it begins later": Planted(
        "segment", CHAIN, lambda: head("segment", SEGMENT_HEAD, at(10, ">Q", 1))
    ),
    "a segment is said to be of another group": Planted(
        "segment", CHAIN, lambda: head("segment", SEGMENT_HEAD, at(6, ">I", 4))
    ),
    "a segment says that it ends in another term": Planted(
        "segment", CONTRADICTION, lambda: head("segment", SEGMENT_HEAD, at(62, ">Q", 3))
    ),
    "a segment says that it begins in another term": Planted(
        "segment", CONTRADICTION, lambda: head("segment", SEGMENT_HEAD, at(38, ">Q", 3))
    ),
    "a segment's body has another checksum": Planted(
        "segment", BODY_CRC, lambda: head("segment", SEGMENT_HEAD, at(98, ">I", 3))
    ),
    "a segment's body is longer than it says": Planted(
        "segment", TOO_LONG, lambda: FORMATS["segment"].example().content + b"\0"
    ),
    "a segment's body is not zstd": Planted(
        "segment", BAD_ZSTD, lambda: body(lambda raw: b"\0" + raw[1:])
    ),
    "a segment's frame is cut short": Planted(
        "segment", BAD_ZSTD, lambda: body(lambda raw: raw[: len(raw) // 2])
    ),
    "there is something between entries and cluster": Planted(
        "segment", TOO_LONG, lambda: body(lambda raw: raw[:-CLUSTER_FRAME] + b"\0" + raw[-45:])
    ),
    "a second frame holds the rest of the entries": Planted(
        "segment",
        TOO_LONG,
        lambda: segment_of(
            open_frame(parts_of_segment()[1][:40]) + open_frame(parts_of_segment()[1][40:]),
            len(parts_of_segment()[1]),
        ),
    ),
    "a segment's window is larger than allowed": Planted(
        "segment", BAD_ZSTD, lambda: body(lambda raw: raw[:5] + b"\xf0" + raw[6:])
    ),
    "an entry's byte is another": Planted(
        "segment", CHAIN, lambda: entries(first(b"three", b"thrEe"))
    ),
    "an entry's term is another": Planted("segment", CHAIN, lambda: entries(at(30 - 8, ">B", 9))),
    "an entry's chain is another": Planted("segment", CHAIN, lambda: entries(at(9, ">I", 9))),
    "an entry says it is longer than it can be": Planted(
        "segment", TOO_LARGE, lambda: entries(at(entry_length(2), ">I", 64 * 1024 * 1024 + 1))
    ),
    "an entry says it is longer than the segment": Planted(
        "segment", TOO_SHORT, lambda: entries(at(entry_length(4), ">I", 1000 * 1000))
    ),
    "entries are fewer than said": Planted(
        "segment", TOO_SHORT, lambda: entries(lambda raw: raw[:40])
    ),
    "there are bytes after the last entry": Planted(
        "segment", TOO_LONG, lambda: entries(lambda raw: raw + b"\0")
    ),
    "entries are more than said": Planted(
        "segment",
        TOO_LONG,
        lambda: segment_of(
            open_frame(parts_of_segment()[1] + b"\0" * 17), len(parts_of_segment()[1])
        ),
    ),
    "a batch has no time": Planted(
        "segment", BAD_MSGPACK, lambda: entries(first(b"\x93\xcf", b"\xc0\xcf"))
    ),
    "a pack's end is of a later version": Planted(
        "pack", UNKNOWN_VERSION, lambda: _later_end(FORMATS["pack"].example().content)
    ),
    "a pack's footer has another checksum": Planted(
        "pack",
        FOOTER_CRC,
        lambda: first(b"\xc4\x10", b"\xc4\x11")(FORMATS["pack"].example().content),
    ),
    "a pack's footer is not MessagePack": Planted(
        "pack", BAD_MSGPACK, lambda: pack_of(parts_of_pack()[0], b"\xc1")
    ),
    "a pack's footer says nothing": Planted(
        "pack", CONTRADICTION, lambda: pack_of(parts_of_pack()[0], b"\x90")
    ),
    "a footer promises four thousand million slices": Planted(
        "pack", BAD_MSGPACK, lambda: pack_of(parts_of_pack()[0], b"\xdd\xff\xff\xff\xff")
    ),
    "a footer leaves a slice out": Planted(
        "pack", CONTRADICTION, lambda: refs(lambda found: found.pop(0))
    ),
    "a footer names a slice twice": Planted(
        "pack", CONTRADICTION, lambda: refs(lambda found: found.append(found[0]))
    ),
    "a footer says another stream": Planted(
        "pack", WRONG_SLICE, lambda: refs(lambda found: found[0].__setitem__(0, 8))
    ),
    "a footer says another place in the stream": Planted(
        "pack", WRONG_SLICE, lambda: refs(lambda found: found[0].__setitem__(1, 5))
    ),
    "a footer says another end": Planted(
        "pack", WRONG_SLICE, lambda: refs(lambda found: found[0].__setitem__(3, 7))
    ),
    "a footer says another digest": Planted(
        "pack", WRONG_SLICE, lambda: refs(lambda found: found[0].__setitem__(8, bytes(16)))
    ),
    "a footer says another checksum": Planted(
        "pack", WRONG_SLICE, lambda: refs(lambda found: found[0].__setitem__(7, 1))
    ),
    "two slices of a pack are swapped": Planted("pack", WRONG_SLICE, swapped),
    "a slice's record has another byte": Planted(
        "pack", WRONG_SLICE, lambda: chunk(first(b"aabbb", b"aabbc"))
    ),
    "a slice's bytes are changed, the footer's word of them is not": Planted(
        "pack", WRONG_SLICE, lambda: chunk(first(b"aabbb", b"aabbc"), is_referred_to=False)
    ),
    "a slice's records are cut elsewhere": Planted(
        "pack", WRONG_SLICE, lambda: chunk(first(b"\x92\x02\x03", b"\x92\x03\x02"))
    ),
    "a slice's records do not fit its bytes": Planted(
        "pack", CONTRADICTION, lambda: chunk(first(b"\x92\x02\x03", b"\x92\x02\x04"))
    ),
    "a slice has a record of less than nothing": Planted(
        "pack", CONTRADICTION, lambda: chunk(first(b"\x92\x02\x03", b"\x92\xff\x06"))
    ),
    "a slice's appends do not fit its records": Planted(
        "pack", CONTRADICTION, lambda: chunk(first(b"\x03\x90", b"\x03\x91\x03"))
    ),
    "a slice holds no chunk": Planted("pack", BAD_MSGPACK, lambda: chunk(lambda _: b"\xc0" * 9)),
    "a piece says it has other rows": Planted(
        "piece", BODY_CRC, lambda: head("piece", PIECE_HEAD, at(26, ">I", 5))
    ),
    "a piece's frame holds more than it says": Planted(
        "piece", CONTRADICTION, lambda: piece_of(frame(b"rows" * 9), b"rows" * 8)
    ),
    "a piece's frame does not say its size": Planted(
        "piece", CONTRADICTION, lambda: piece_of(open_frame(b"rows" * 9), b"rows" * 9)
    ),
    "a piece says it has too many rows": Planted(
        "piece", TOO_LARGE, lambda: piece_of(frame(b"rows"), b"rows", 32 * 1024 * 1024 + 1)
    ),
    "there is something after a piece's rows": Planted(
        "piece", TOO_LONG, lambda: piece_of(frame(b"rows" * 9) + frame(b"more"), b"rows" * 9)
    ),
    "a piece is not zstd": Planted("piece", BAD_ZSTD, lambda: piece_of(b"rows", b"rows")),
    "a manifest is not MessagePack": Planted(
        "manifest", BAD_MSGPACK, lambda: listed("manifest", lambda raw: raw[:-1])
    ),
    "a manifest has more than it says": Planted(
        "manifest", BAD_MSGPACK, lambda: listed("manifest", lambda raw: raw + b"\0")
    ),
    "a manifest names a piece by no digest": Planted(
        "manifest", BAD_MSGPACK, lambda: listed("manifest", _upper_digest)
    ),
    "a manifest has another content": Planted(
        "manifest",
        BODY_CRC,
        lambda: FORMATS["manifest"].example().content[:-1] + b"\1",
    ),
    "a manifest is longer than it says": Planted(
        "manifest", TOO_LONG, lambda: FORMATS["manifest"].example().content + b"\0"
    ),
    "a pointer has no place": Planted("end", BAD_MSGPACK, lambda: listed("end", lambda _: b"\x90")),
    "a pointer is cut short": Planted(
        "end", TOO_SHORT, lambda: FORMATS["end"].example().content[:-1]
    ),
}


def _later_end(content: bytes) -> bytes:
    end = content[-18:-4].replace(b"SDPE\0\1", b"SDPE\0\2")
    return content[:-18] + end + pack(">I", crc32c(end))


def _upper_digest(content: bytes) -> bytes:
    offset = content.index(b"\xd9\x40") + 2
    return content[:offset] + b"G" + content[offset + 1 :]


@pytest.mark.parametrize("title", PLANTED)
def test_what_is_planted_is_named(title: str) -> None:
    kind, expected, make = PLANTED[title]
    content = make()
    with pytest.raises(Damaged) as raised:
        FORMATS[kind].audit(content)
    assert raised.value.kind == expected, raised.value
    assert judged(FORMATS[kind].server, content) is None or expected in STRICTER


# -- what chance plants --------------------------------------------------------------------------

REMAKES: dict[str, list[Callable[[Change], bytes]]] = {
    "segment": [
        lambda change: head("segment", SEGMENT_HEAD, lambda raw: change(raw)[:SEGMENT_HEAD]),
        lambda change: entries(change),
        lambda change: body(change),
    ],
    "pack": [
        lambda change: head("pack", packs.HEAD_BYTES, change),
        lambda change: pack_of(
            parts_of_pack()[0], change(msgspec.msgpack.encode(parts_of_pack()[1]))
        ),
        lambda change: chunk(change),
    ],
    "piece": [
        lambda change: head("piece", PIECE_HEAD, change),
        lambda change: piece_of(change(frame(b"rows" * 9)), b"rows" * 9),
    ],
    "manifest": [lambda change: listed("manifest", change)],
    "end": [lambda change: listed("end", change)],
}


@pytest.mark.parametrize("kind", FORMATS)
def test_what_chance_plants_the_audit_finds_if_the_server_does(kind: str) -> None:
    """And both read the same of what both take for whole."""
    random = Random(13)
    for _ in range(300):
        content = random.choice(REMAKES[kind])(lambda raw: _same_size(raw, random))
        expected = judged(FORMATS[kind].server, content)
        found, why = audited(kind, content)
        if why:
            assert expected is None or why in STRICTER, (why, content.hex())
        else:
            assert found == expected, content.hex()


def audited(kind: str, content: bytes) -> tuple[Any, str]:
    """What the audit reads, or what it calls the damage."""
    try:
        return FORMATS[kind].audit(content), ""
    except Damaged as damaged:
        return None, damaged.kind


def _same_size(content: bytes, random: Random) -> bytes:
    """Spoiled, and as long as before: heads have a size."""
    return spoiled(content, random).ljust(len(content), b"\0")[: len(content)]


@pytest.mark.parametrize("rows", [b"", b"a", b"ab" * 100_000, bytes(400_000)])
def test_a_frames_size_is_told_without_decompressing_it(rows: bytes) -> None:
    for level in (1, 3, 19):
        for checked in (False, True):
            compressor = zstandard.ZstdCompressor(level=level, write_checksum=checked)
            for made in (compressor.compress(rows), _streamed(compressor, rows)):
                assert zstd_frame_size(made + b"more") == len(made)
                for short in range(0, len(made), max(1, len(made) // 50)):
                    with pytest.raises(Damaged):
                        zstd_frame_size(made[:short])


def _streamed(compressor: zstandard.ZstdCompressor, rows: bytes) -> bytes:
    streaming = compressor.compressobj()
    return streaming.compress(rows) + streaming.flush()


# -- what a hostile object can take --------------------------------------------------------------


def peak_of(read: Callable[[], object]) -> int:
    """How much memory Python took at most, in bytes."""
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_small_segment_of_many_zeros_is_read_in_little_memory() -> None:
    payload = bytes(1024 * 1024)
    inside = b"".join(pack(">QBII", 1, 0, 0, len(payload)) + payload for _ in range(64))
    bomb = segment_of(open_frame(inside), len(inside), at(54, ">Q", 64))
    bomb = good_head(at(46, ">Q", 0)(at(38, ">Q", 1)(bomb)), SEGMENT_HEAD)
    assert len(bomb) < 64 * 1024
    found: list[bool] = []

    def read() -> None:
        with pytest.raises(Damaged, match=CONTRADICTION):
            found.extend(entry.is_linked for entry in segments.read_entries(bomb))

    assert peak_of(read) < 8 * 1024 * 1024
    assert found == [False] * 64


@pytest.mark.parametrize(
    "hostile",
    [
        lambda: entries(at(entry_length(2), ">I", 64 * 1024 * 1024)),
        lambda: segment_of(open_frame(parts_of_segment()[1]), 2**62),
    ],
)
def test_an_entry_that_is_said_to_be_large_takes_no_memory(hostile: Callable[[], bytes]) -> None:
    content = hostile()

    def read() -> None:
        with pytest.raises(Damaged, match=TOO_SHORT):
            list(segments.read_entries(content))

    assert peak_of(read) < 8 * 1024 * 1024


def test_a_piece_of_more_rows_than_it_says_takes_no_memory() -> None:
    bomb = piece_of(frame(bytes(256 * 1024 * 1024)), b"rows")

    def read() -> None:
        with pytest.raises(Damaged, match=CONTRADICTION):
            FORMATS["piece"].audit(bomb)

    assert peak_of(read) < 1024 * 1024
