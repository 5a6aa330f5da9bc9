"""Damage with matching checksums, which only the structure of an object reveals.

Both decoders read each damaged object. The table says what the audit must report; the server need
not notice everything, but whatever it refuses, the audit refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from struct import pack
from typing import Any, NamedTuple

import msgspec
import pytest
import zstandard
from crc32c import crc32c

from streamd_audit import packs
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
from tests.spark.both_decoders import FORMATS, judged
from tests.spark.resealing import (
    CLUSTER_FRAME,
    PIECE_HEAD,
    SEGMENT_HEAD,
    Change,
    at,
    body,
    chunk,
    entries,
    entry_length,
    first,
    frame,
    head,
    listed,
    open_frame,
    pack_of,
    parts_of_pack,
    parts_of_segment,
    piece_of,
    refs,
    segment_of,
    swapped,
)
from tests.spark.test_decoders import spoiled

# Kinds of damage that the server does not check for.
STRICTER = {CONTRADICTION, TOO_LONG, TOO_SHORT, BAD_ZSTD, WRONG_SLICE, BAD_MSGPACK}


# -- planted damage ------------------------------------------------------------------------------


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
def test_planted_damage_is_named(title: str) -> None:
    kind, expected, make = PLANTED[title]
    content = make()
    with pytest.raises(Damaged) as raised:
        FORMATS[kind].audit(content)
    assert raised.value.kind == expected, raised.value
    assert judged(FORMATS[kind].server, content) is None or expected in STRICTER


# -- random damage -------------------------------------------------------------------------------

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
def test_the_audit_finds_random_damage_that_the_server_finds(kind: str) -> None:
    """Both read the same from objects that both consider whole."""
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
    """What the audit reads, or its name of the damage."""
    try:
        return FORMATS[kind].audit(content), ""
    except Damaged as damaged:
        return None, damaged.kind


def _same_size(content: bytes, random: Random) -> bytes:
    """Damaged without a change of size, since heads have a fixed one."""
    return spoiled(content, random).ljust(len(content), b"\0")[: len(content)]


@pytest.mark.parametrize("rows", [b"", b"a", b"ab" * 100_000, bytes(400_000)])
def test_a_frames_size_is_found_without_decompressing_it(rows: bytes) -> None:
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
