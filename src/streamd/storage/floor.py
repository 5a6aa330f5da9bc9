"""The floor: how far the log is known to reach, written where LevelDB cannot lose it.

LevelDB takes a truncated log file for an ordinary crash and opens with what is left. The floor
names an entry that had been synced; a log that does not reach it, or has another entry there,
has lost acknowledged writes.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct, error

import msgspec
from crc32c import crc32c

from streamd.storage.errors import LogCorrupt
from streamd.storage.files import write_durably

_FORMAT = Struct(">4sQQI")
_CHECKSUM = Struct(">I")
_MAGIC = b"SDF1"


class Floor(msgspec.Struct, frozen=True):
    """An entry known to be on disk: its index and term, and the log's checksum chain there."""

    index: int = 0
    term: int = 0
    chain: int = 0


def read_floor(file: Path) -> Floor:
    """The floor last written; index 0 when there is none. Raises `LogCorrupt`."""
    if not file.exists():
        return Floor()
    content = file.read_bytes()
    try:
        magic, index, term, chain = _FORMAT.unpack(content[: _FORMAT.size])
        (checksum,) = _CHECKSUM.unpack(content[_FORMAT.size :])
    except error:
        raise LogCorrupt(f"the floor file {file} is damaged") from None
    if magic != _MAGIC or checksum != crc32c(content[: _FORMAT.size]):
        raise LogCorrupt(f"the floor file {file} is damaged")
    return Floor(index, term, chain)


def write_floor(file: Path, floor: Floor) -> None:
    """Replace the floor, durably. Blocks for two syncs."""
    content = _FORMAT.pack(_MAGIC, floor.index, floor.term, floor.chain)
    write_durably(file, content + _CHECKSUM.pack(crc32c(content)))
