"""The chain of checksums that proves a log, wherever its entries are kept.

Each entry's checksum covers the checksum before it, so no entry can be changed or left out
without making every later checksum wrong.
"""

from __future__ import annotations

from struct import Struct

import msgspec
from crc32c import crc32c

from streamd.raft.messages import Entry

_CHAINED = Struct(">IIQQB")


class ChainPosition(msgspec.Struct, frozen=True):
    """An entry's place in the log: its index and term, and the chain of checksums there.

    The default is the place before the first entry.
    """

    index: int = 0
    term: int = 0
    chain: int = 0

    def next(self, group_id: int, entry: Entry) -> ChainPosition:
        """The position of `entry`, which follows the entry at this position."""
        assert entry.index == self.index + 1, (entry.index, self.index)
        return ChainPosition(entry.index, entry.term, chain(self.chain, group_id, entry))


def chain(previous: int, group_id: int, entry: Entry) -> int:
    """The checksum of `entry` when the checksum of the entry before it is `previous`."""
    start = crc32c(_CHAINED.pack(previous, group_id, entry.index, entry.term, entry.kind))
    return crc32c(entry.payload, start)
