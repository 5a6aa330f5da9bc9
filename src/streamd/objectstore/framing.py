"""Heads of objects: a magic word, a version, fixed fields, and a checksum over all of it."""

from __future__ import annotations

import struct
from typing import Any

from crc32c import crc32c

from streamd.objectstore.errors import ColdRefused, ObjectCorrupt

_CHECKSUM = struct.Struct(">I")


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
                f"{self._what} is of version {version}, which this streamd does not know"
            )
        return tuple(values)
