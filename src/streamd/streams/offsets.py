"""Offsets: a reader's position in a stream (protocol section 6).

An offset is ``<record number>_<byte position>``, sixteen digits each, so that comparing the texts
compares the positions. The record number alone is the reader's position. The byte position exposes
most offsets that were taken from another stream or made up: `read_chunk` refuses one that lies
outside its record.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(rb"\d{16}_\d{16}")


class Position(NamedTuple):
    """A record boundary: `record` records and `byte` bytes of the stream lie before it."""

    record: int
    byte: int

    def token(self) -> bytes:
        """The offset as sent to clients."""
        return b"%016d_%016d" % self


START = Position(0, 0)


def parse_offset(token: bytes) -> Position | None:
    """The position that an offset names, or None if `token` does not look like an offset."""
    if _TOKEN.fullmatch(token) is None:
        return None
    return Position(int(token[:16]), int(token[17:]))
