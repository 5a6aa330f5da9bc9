"""Pointers to the end of an archive (docs/formats.md, "Ends")."""

from __future__ import annotations

import msgspec

from streamd_audit import strict
from streamd_audit.errors import MISNAMED, Damaged
from streamd_audit.framing import Buffer, Decoder, Head, check_part
from streamd_audit.names import EndName
from streamd_audit.segments import Place

_HEAD = Head(b"SDLE", "II", "a pointer's head")


class ArchiveEnd(msgspec.Struct, array_like=True, frozen=True):
    """The archive of a cluster's group reaches `place`."""

    cluster: str
    group: int
    place: Place


_decode: Decoder[ArchiveEnd] = Decoder(ArchiveEnd, "a pointer to the archive's end")


def read_end(content: Buffer) -> ArchiveEnd:
    """Raises `Damaged`."""
    size, crc = _HEAD.unpack(content)
    encoded = memoryview(content)[_HEAD.size :]
    check_part(encoded, size, crc, "a pointer")
    return _decode(encoded)


def check_known(content: Buffer) -> None:
    """Raises `Damaged` if a pointer that can be read says more than is known."""
    strict.check_known(read_end(content), bytes(content)[_HEAD.size :], "a pointer")


def check_name(name: EndName, end: ArchiveEnd) -> None:
    """Raises `Damaged` unless a pointer's name says what it says."""
    found = (end.group, end.place.index, end.place.term, end.place.chain)
    said = (name.group, name.index, name.term, name.chain)
    if found != said:
        raise Damaged(MISNAMED, f"(group, index, term, chain) is {found}, the name says {said}")
