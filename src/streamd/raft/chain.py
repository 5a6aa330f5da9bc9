"""The chain of checksums that proves a log, wherever its entries are kept.

Each entry's checksum covers the one before it, so an entry can be neither changed nor left out
without every later checksum being wrong.
"""

from __future__ import annotations

from struct import Struct

from crc32c import crc32c

from streamd.raft.messages import Entry

_CHAINED = Struct(">IIQQB")


def chain(previous: int, group_id: int, entry: Entry) -> int:
    """The checksum of `entry` behind an entry whose checksum is `previous`."""
    start = crc32c(_CHAINED.pack(previous, group_id, entry.index, entry.term, entry.kind))
    return crc32c(entry.payload, start)
