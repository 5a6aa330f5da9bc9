"""What all objects have in common: heads, digests, MessagePack, zstd (docs/formats.md)."""

from __future__ import annotations

from hashlib import sha256
from struct import Struct
from typing import Any, Generic, TypeVar

import msgspec
import zstandard
from crc32c import crc32c

from streamd_audit.errors import (
    BAD_MSGPACK,
    BAD_ZSTD,
    BODY_CRC,
    HEAD_CRC,
    NAME_DIGEST,
    TOO_LONG,
    TOO_SHORT,
    UNKNOWN_VERSION,
    WRONG_MAGIC,
    Damaged,
)

Buffer = bytes | memoryview

# No object is larger.
MAX_OBJECT_BYTES = 64 * 1024 * 1024
# How much a hostile frame may make a reader keep.
MAX_WINDOW_BYTES = 8 * 1024 * 1024

_CRC = Struct(">I")
_FRAME_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOCK_RLE, _BLOCK_RESERVED = 1, 3

T = TypeVar("T")


class Head:
    """A magic word, a version, fixed fields, and CRC-32C over all of it."""

    def __init__(self, magic: bytes, fields: str, what: str) -> None:
        """`fields` is the `struct` format of what follows the version."""
        self._magic = magic
        self._struct = Struct(">4sH" + fields)
        self._what = what
        self.size = self._struct.size + _CRC.size

    def unpack(self, content: Buffer) -> list[Any]:
        """The fields at the beginning of `content`. Raises `Damaged`."""
        if len(content) < self.size:
            raise Damaged(TOO_SHORT, f"{self._what} has {len(content)} bytes of {self.size}")
        found = crc32c(content[: self._struct.size])
        (stored,) = _CRC.unpack_from(content, self._struct.size)
        magic, version, *fields = self._struct.unpack_from(content)
        if found != stored:
            raise Damaged(HEAD_CRC, f"{self._what} has CRC-32C {found:08x}, not {stored:08x}")
        if magic != self._magic:
            raise Damaged(WRONG_MAGIC, f"{self._what} begins with {magic!r}, not {self._magic!r}")
        if version != 1:
            raise Damaged(UNKNOWN_VERSION, f"{self._what} is of version {version}")
        return fields


class Decoder(Generic[T]):
    """Decodes MessagePack of one shape; anything else is `Damaged`."""

    def __init__(self, shape: type[T] | Any, what: str) -> None:
        self._decode = msgspec.msgpack.Decoder(shape).decode
        self._what = what

    def __call__(self, content: Buffer, index: int | None = None) -> T:
        """Decode `content`, of entry `index` if that is given. Raises `Damaged`."""
        try:
            found: T = self._decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            where = "" if index is None else f"entry {index}: "
            raise Damaged(BAD_MSGPACK, f"{where}{self._what}: {error}", index) from error
        return found


def digest_of(content: Buffer) -> str:
    """SHA-256 in hexadecimal, as names have it."""
    return sha256(content).hexdigest()


def check_digest(name: str, content: Buffer) -> None:
    """Raises `Damaged` unless an object's content has the digest in its name."""
    expected = name.rpartition(".")[0].rpartition("-")[2]
    found = digest_of(content)
    if found != expected:
        raise Damaged(NAME_DIGEST, f"SHA-256 is {found}, not {expected}")


def check_part(part: Buffer, size: int, crc: int, what: str) -> None:
    """Raises `Damaged` unless what follows a head has this size and this CRC-32C."""
    if len(part) != size:
        kind = TOO_SHORT if len(part) < size else TOO_LONG
        raise Damaged(kind, f"{what} has {len(part)} bytes after its head, not {size}")
    found = crc32c(part)
    if found != crc:
        raise Damaged(BODY_CRC, f"{what} has CRC-32C {found:08x}, not {crc:08x}")


def zstd_frame_size(data: Buffer) -> int:
    """The size in bytes of the zstd frame at the beginning of `data`, by RFC 8878 section 3.1.1.

    Nothing is decompressed, so nothing is allocated. Raises `Damaged`.
    """
    try:
        if data[:4] != _FRAME_MAGIC:
            raise Damaged(BAD_ZSTD, "no zstd frame")
        descriptor = data[4]
        single = descriptor >> 5 & 1
        size_flag = descriptor >> 6
        at = 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]
        at += (single, 2, 4, 8)[size_flag]
        while True:
            block = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            kind = block >> 1 & 3
            if kind == _BLOCK_RESERVED:
                raise Damaged(BAD_ZSTD, f"a reserved kind of block at byte {at} of the frame")
            at += 3 + (1 if kind == _BLOCK_RLE else block >> 3)
            if block & 1:
                break
    except IndexError:
        raise Damaged(BAD_ZSTD, "the zstd frame is cut short") from None
    at += 4 * (descriptor >> 2 & 1)
    if at > len(data):
        raise Damaged(BAD_ZSTD, "the zstd frame is cut short")
    return at


def decompressor() -> zstandard.ZstdDecompressor:
    """A decompressor that takes no more memory than `MAX_WINDOW_BYTES` besides its output."""
    return zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
