"""Pointers to the end of an archive, and fences (docs/formats.md, "Ends", "Fences")."""

from __future__ import annotations

import msgspec
from crc32c import crc32c

from streamd_audit.errors import BAD_MSGPACK, BODY_CRC, MISNAMED, TOO_LONG, TOO_SHORT, Damaged
from streamd_audit.framing import Buffer, Decoder, Head
from streamd_audit.names import EndName
from streamd_audit.segments import Place

_HEAD = Head(b"SDLE", "II", "a pointer's head")


class ArchiveEnd(msgspec.Struct, array_like=True, frozen=True):
    """The archive of a cluster's group reaches `place`."""

    cluster: str
    group: int
    place: Place


class Fence(msgspec.Struct, frozen=True):
    """Cluster `cluster_id` was made of the one in whose folder this is, at `at_ms` by its clock."""

    cluster_id: str
    at_ms: int


_decode: Decoder[ArchiveEnd] = Decoder(ArchiveEnd, "a pointer to the archive's end")
_FENCE = msgspec.json.Decoder(Fence)


def read_end(content: Buffer) -> ArchiveEnd:
    """Raises `Damaged`."""
    size, crc = _HEAD.unpack(content)
    encoded = memoryview(content)[_HEAD.size :]
    if len(encoded) != size:
        kind = TOO_SHORT if len(encoded) < size else TOO_LONG
        raise Damaged(kind, f"a pointer has {len(encoded)} bytes after its head, not {size}")
    found = crc32c(encoded)
    if found != crc:
        raise Damaged(BODY_CRC, f"a pointer has CRC-32C {found:08x}, not {crc:08x}")
    return _decode(encoded)


def check_name(name: EndName, end: ArchiveEnd) -> None:
    """Raises `Damaged` unless a pointer's name says what it says."""
    found = (end.group, end.place.index, end.place.term, end.place.chain)
    said = (name.group, name.index, name.term, name.chain)
    if found != said:
        raise Damaged(MISNAMED, f"(group, index, term, chain) is {found}, the name says {said}")


def read_fence(content: Buffer) -> Fence:
    """Raises `Damaged`."""
    try:
        return _FENCE.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(BAD_MSGPACK, f"a fence: {error}") from error
