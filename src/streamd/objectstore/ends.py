"""Pointers to the end of the archive, so that the loss of its last objects shows.

Segments prove that they follow one another, but the last one has no successor that would miss it.
So a small object beside them tells how far the archive goes: written after the segment that ends
there, and after the cluster has agreed on it. Its name says all; its content, that the name was
not made up.

::

    end    magic, version, size and CRC-32C; the end
"""

from __future__ import annotations

import msgspec
from crc32c import crc32c

from streamd.codec import UNDECODABLE
from streamd.objectstore.errors import ObjectCorrupt
from streamd.objectstore.framing import Head
from streamd.objectstore.names import NamedObject, digest_of, end_name
from streamd.objectstore.segments import LogPlace

VERSION = 1
_HEAD = Head(b"SDLE", VERSION, "II", "the end of an archive")


class ArchiveEnd(msgspec.Struct, frozen=True, array_like=True):
    """The archive of a cluster's group reaches `place`."""

    cluster_id: str
    group_id: int
    place: LogPlace


_DECODER = msgspec.msgpack.Decoder(ArchiveEnd)


def make_end(end: ArchiveEnd) -> NamedObject:
    encoded = msgspec.msgpack.encode(end)
    content = _HEAD.pack(len(encoded), crc32c(encoded)) + encoded
    place = end.place
    name = end_name(end.group_id, place.index, place.term, place.chain, digest_of(content))
    return NamedObject(name, content)


def read_end(content: bytes) -> ArchiveEnd:
    """Raises `ObjectCorrupt`, and `ColdRefused` for one of a later version."""
    size, crc = _HEAD.unpack(content)
    encoded = content[_HEAD.size :]
    if len(encoded) != size or crc32c(encoded) != crc:
        raise ObjectCorrupt("the end of an archive is damaged")
    try:
        return _DECODER.decode(encoded)
    except UNDECODABLE as error:
        raise ObjectCorrupt("the end of an archive cannot be read") from error
