"""The chain of checksums over the log (docs/formats.md, "The chain")."""

from __future__ import annotations

from struct import Struct

from crc32c import crc32c

from streamd_audit.framing import Buffer

_LINKED = Struct(">IIQQB")


def link(previous: int, group: int, index: int, term: int, kind: int, payload: Buffer) -> int:
    """The chain's value at an entry, from its value at the entry before."""
    return crc32c(payload, crc32c(_LINKED.pack(previous, group, index, term, kind)))
