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

from streamd.objectstore.framing import ValueObject
from streamd.objectstore.names import EndName, NamedObject, digest_of
from streamd.objectstore.segments import PositionFields, named_fields
from streamd.streams.model import LogPosition

VERSION = 1


class ArchiveEnd(msgspec.Struct, frozen=True):
    """The archive of a cluster's group reaches `position`."""

    cluster_id: str
    group_id: int
    position: LogPosition


_END = ValueObject(
    b"SDLE",
    VERSION,
    "the end of an archive",
    msgspec.msgpack.Decoder(tuple[str, int, PositionFields]),
)


def make_end(end: ArchiveEnd) -> NamedObject:
    """The object of a pointer."""
    at = end.position
    content = _END.pack((end.cluster_id, end.group_id, named_fields(at)))
    name = EndName(end.group_id, at.index, at.term, at.chain, digest_of(content))
    return NamedObject(str(name), content)


def read_end(content: bytes) -> ArchiveEnd:
    """Raises `ObjectCorrupt`, and `ColdRefused` for an end of a later version."""
    cluster_id, group_id, position = _END.unpack(content)
    return ArchiveEnd(cluster_id, group_id, LogPosition(**position))
