"""Pointers to the end of the archive, so that the loss of its last objects shows.

Segments prove that they follow one another, but the last one has no successor that would miss it.
So a small object beside them says how far the archive goes. It is written after the segment that
ends there, and after the cluster has agreed on it. The name holds everything; the content proves
the name.

::

    end    magic, version, size and CRC-32C; the end
"""

from __future__ import annotations

import msgspec
from crc32c import crc32c

from streamd.objectstore.errors import ObjectCorrupt
from streamd.objectstore.framing import Head
from streamd.objectstore.names import EndName, NamedObject, digest_of
from streamd.objectstore.segments import PositionFields, named_fields
from streamd.streams.content import UNDECODABLE
from streamd.streams.model import LogPosition

VERSION = 1
_HEAD = Head(b"SDLE", VERSION, "II", "the end of an archive")


class ArchiveEnd(msgspec.Struct, frozen=True):
    """The archive of a cluster's group reaches `position`."""

    cluster_id: str
    group_id: int
    position: LogPosition


_DECODER = msgspec.msgpack.Decoder(tuple[str, int, PositionFields])


def make_end(end: ArchiveEnd) -> NamedObject:
    """The object of a pointer."""
    at = end.position
    encoded = msgspec.msgpack.encode((end.cluster_id, end.group_id, named_fields(at)))
    content = _HEAD.pack(len(encoded), crc32c(encoded)) + encoded
    name = EndName(end.group_id, at.index, at.term, at.chain, digest_of(content))
    return NamedObject(str(name), content)


def read_end(content: bytes) -> ArchiveEnd:
    """Raises `ObjectCorrupt`, and `ColdRefused` for an end of a later version."""
    size, crc = _HEAD.unpack(content)
    encoded = content[_HEAD.size :]
    if len(encoded) != size or crc32c(encoded) != crc:
        raise ObjectCorrupt("the end of an archive is damaged")
    try:
        cluster_id, group_id, position = _DECODER.decode(encoded)
    except UNDECODABLE as error:
        raise ObjectCorrupt("the end of an archive cannot be read") from error
    return ArchiveEnd(cluster_id, group_id, LogPosition(**position))
