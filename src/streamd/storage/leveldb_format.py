"""LevelDB's log format (its doc/log_format.md), read without LevelDB: which part of a file is
whole.

When power fails, any pages of the last write may reach the disk, in any order: its beginning, its
end with a page of zeros before it, or whatever the disk had there before. Such a torn tail was
never confirmed, because its sync did not return, and can be cut off. Anything else that is wrong
is damage to confirmed writes. LevelDB does not make this distinction: it silently drops what ends
too early, and with paranoid checks refuses everything else.

The distinction is possible because each write is synced before the next one begins:

- No later write follows a torn one. If a later record is found, the broken one had been synced.
  Later *fragments* of the torn record itself prove nothing, so only the beginning of a record
  counts; and only of a record newer than the last whole one, because blocks that the disk used
  before may hold whole records of an older file.
- A power failure takes pages, not bits. A record that one flipped bit would make right was whole.

Nothing follows the last write of a file. If all of its last page is garbage, that may be damage
too; the log's floor or the state then misses what had been confirmed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from struct import Struct
from typing import Protocol

from crc32c import crc32c

BLOCK_BYTES = 32 * 1024

_HEAD = Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_BEGINNING = re.compile(b"[\x01\x02]")
# The smallest unit that a disk writes.
_SECTOR_BYTES = 512
_MASK_DELTA = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78


class FileDamaged(Exception):
    """The file lacks something that had been synced, from byte `size` on."""

    def __init__(self, size: int, what: str) -> None:
        super().__init__(what)
        self.size = size


class Records(Protocol):
    """The format of a file's records, which shows whether a record is the next one."""

    def take(self, record: bytes) -> bool:
        """Whether this is the next record. If so, the one after it is the next."""

    def is_later(self, beginning: bytes, distance: int) -> bool:
        """Whether a record that begins like this was written after the next one.

        It lies `distance` bytes after the place where the next one should be; with 0, a whole
        record is there, but not the next one.
        """


def whole_size(content: bytes, records: Records) -> int:
    """How many bytes of a file its whole records take; the rest is a torn write.

    Raises `FileDamaged` if the rest had been synced.
    """
    end = 0
    while True:
        record, at, is_whole = _read(content, end)
        if not is_whole or not records.take(record):
            break
        end = at
    if end == len(content):
        return end
    if not is_whole and _is_one_bit_off(content, at):
        raise FileDamaged(end, f"a bit of the record at byte {end} has changed")
    for start, beginning in _beginnings(content, end):
        if records.is_later(beginning, start - end):
            raise FileDamaged(end, f"byte {end} is lost, though byte {start} was written after it")
    return end


def _read(content: bytes, at: int) -> tuple[bytes, int, bool]:
    """The record at `at`, or the part that is there; where it ends; and whether it is whole."""
    pieces: list[bytes] = []
    kinds: tuple[int, ...] = (_FULL, _FIRST)
    while True:
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < _HEAD.size:
            at += left
        kind, payload = _fragment(content, at)
        if kind not in kinds:
            return b"".join(pieces), at, False
        pieces.append(payload)
        at += _HEAD.size + len(payload)
        if kind in (_FULL, _LAST):
            return b"".join(pieces), at, True
        kinds = (_MIDDLE, _LAST)


def _fragment(content: bytes, at: int) -> tuple[int, bytes]:
    """The kind and payload of the fragment at `at`; kind 0 if no whole one is there."""
    if at + _HEAD.size > len(content):
        return 0, b""
    checksum, length, kind = _HEAD.unpack_from(content, at)
    if not _fits(content, at, length) or _checksum(content, at, length) != checksum:
        return 0, b""
    start = at + _HEAD.size
    return kind, content[start : start + length]


def _fits(content: bytes, at: int, length: int) -> bool:
    size = _HEAD.size + length
    return size <= BLOCK_BYTES - at % BLOCK_BYTES and at + size <= len(content)


def _checksum(content: bytes, at: int, length: int) -> int:
    """The checksum that the fragment's head should have, over its kind and payload."""
    return _masked(crc32c(memoryview(content)[at + 6 : at + _HEAD.size + length]))


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _unmasked(checksum: int) -> int:
    rotated = checksum - _MASK_DELTA & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def _is_one_bit_off(content: bytes, at: int) -> bool:
    """Whether one changed bit would make the fragment at `at` right; a tear cannot do that."""
    if at + _HEAD.size > len(content):
        return False
    checksum, length, _ = _HEAD.unpack_from(content, at)
    if _fits(content, at, length):
        right = _checksum(content, at, length)
        if (checksum ^ right).bit_count() == 1:
            return True
        end = at + _HEAD.size + length
        distance = _changed_bit(_unmasked(checksum) ^ _unmasked(right), 8 * (length + 1))
        if distance is not None:
            return _is_written(content, end - 1 - distance // 8, end)
    lengths = [length ^ 1 << bit for bit in range(16)]
    return any(
        _fits(content, at, other) and _checksum(content, at, other) == checksum for other in lengths
    )


def _changed_bit(difference: int, bits: int) -> int | None:
    """How far before the last bit the bit lies whose change makes such a difference to a CRC-32C.

    The last bit makes that of the polynomial, divided on for each bit further from the end.
    """
    made = _POLYNOMIAL
    for distance in range(bits):
        if made == difference:
            return distance
        made = made >> 1 ^ (_POLYNOMIAL if made & 1 else 0)
    return None


def _is_written(content: bytes, place: int, end: int) -> bool:
    """Whether the sector of `place`, as far as it lies before `end`, holds anything.

    A sector's only bit is lost together with the sector.
    """
    sector = place - place % _SECTOR_BYTES
    return any(content[sector : min(sector + _SECTOR_BYTES, end)])


def _beginnings(content: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    """Where records begin, from `start` on, and their beginnings as far as those are whole.

    Looks at any byte: the lengths that lead from one record to the next may be wrong.
    """
    for match in _BEGINNING.finditer(content, start + _HEAD.size - 1):
        at = match.start() - (_HEAD.size - 1)
        if _fragment(content, at)[0]:
            yield at, _read(content, at)[0]
