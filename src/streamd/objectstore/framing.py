"""What the formats of objects share: heads, bodies under a checksum, and one value in an object.

A head is a magic word, a version, fixed fields, and a checksum over all of it.
"""

from __future__ import annotations

import struct
from typing import Any, Generic, TypeVar

import msgspec
from crc32c import crc32c

from streamd.objectstore.errors import ColdRefused, ObjectCorrupt
from streamd.streams.content import UNDECODABLE

_CHECKSUM = struct.Struct(">I")

T = TypeVar("T")


class Head:
    """The head of one kind of object. `fields` is the format of the fields after the version."""

    def __init__(self, magic: bytes, version: int, fields: str, what: str) -> None:
        self._magic = magic
        self._version = version
        self._struct = struct.Struct(">4sH" + fields)
        self._what = what
        self.size = self._struct.size + _CHECKSUM.size

    def pack(self, *values: int) -> bytes:
        head = self._struct.pack(self._magic, self._version, *values)
        return head + _CHECKSUM.pack(crc32c(head))

    def unpack(self, content: bytes) -> tuple[Any, ...]:
        """The fields at the beginning of `content`.

        Raises `ObjectCorrupt`, or `ColdRefused` for an intact head of a later version.
        """
        head = content[: self._struct.size]
        if len(content) < self.size:
            raise ObjectCorrupt(f"{self._what} is cut short in its head")
        if _CHECKSUM.unpack_from(content, self._struct.size)[0] != crc32c(head):
            raise ObjectCorrupt(f"{self._what} has a damaged head")
        magic, version, *values = self._struct.unpack(head)
        if magic != self._magic:
            raise ObjectCorrupt(f"this is not {self._what}")
        if version != self._version:
            raise ColdRefused(
                f"{self._what} is of version {version}, which this release does not know"
            )
        return tuple(values)


def check_body(body: bytes | memoryview, size: int, crc: int, what: str) -> None:
    """Raises `ObjectCorrupt` unless a body has the size and the CRC-32C that its head says."""
    if len(body) != size or crc32c(body) != crc:
        raise ObjectCorrupt(f"{what} is damaged")


def decoded(decoder: msgspec.msgpack.Decoder[T], encoded: bytes, what: str) -> T:
    """The value in a part of an object. Raises `ObjectCorrupt`."""
    try:
        return decoder.decode(encoded)
    except UNDECODABLE as error:
        raise ObjectCorrupt(f"{what} cannot be read") from error


class ValueObject(Generic[T]):
    """An object that is one value in MessagePack, after a head with its size and CRC-32C."""

    def __init__(
        self, magic: bytes, version: int, what: str, decoder: msgspec.msgpack.Decoder[T]
    ) -> None:
        self.head = Head(magic, version, "II", what)
        self._what = what
        self._decoder = decoder

    def pack(self, value: T) -> bytes:
        encoded = msgspec.msgpack.encode(value)
        return self.head.pack(len(encoded), crc32c(encoded)) + encoded

    def unpack(self, content: bytes) -> T:
        """Raises `ObjectCorrupt`, and `ColdRefused` for an object of a later version."""
        size, crc = self.head.unpack(content)
        encoded = content[self.head.size :]
        check_body(encoded, size, crc, self._what)
        return decoded(self._decoder, encoded, self._what)
