"""The log's journal: a ring of records in one file, each durable by one write and one fdatasync.

The file is filled with zeros before it is used, and then overwritten: a file that grows makes
fdatasync write its inode as well, which costs several times as much.

A record takes whole sectors, the least that a disk writes at once, so no write touches a sector
with a confirmed record. Each sector ends with the record's stamp, which follows from the journal's
id and the record's sequence number. Records end where the next one is not found, and the stamps
say why:

- A sector with another stamp was not written. The power failed during the write, which was never
  confirmed: a torn record.
- With all stamps right and a checksum wrong, the record was whole once: damage.
- A stamp that is wrong in one bit is damage as well; an older one is wrong in about half of them.
- Each write is synced before the next one begins. A record that is torn or missing although a
  later one was begun, anywhere in the file, had been confirmed: damage.

Each start skips a sequence number (`Mark.after_start`): were a torn record's number used again, and
the second record torn too, sectors of the first would pass for its own.
What a client sent cannot pass for a later record, because the stamp after it is this record's.

Where the records begin is a `Mark`, which the caller keeps elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import msgspec
from crc32c import crc32c
from msgspec.structs import replace

from streamd.storage.files import sync_data, write_at, write_durably

# The file doubles from the first to the last of these: a node that rests takes little of a disk.
FIRST_BYTES = 64 * 1024
MAX_BYTES = 8 * 1024 * 1024

SECTOR_BYTES = 512
_STAMP = Struct(">I")
# Bytes of the record in each sector.
_PART_BYTES = SECTOR_BYTES - _STAMP.size
_MAGIC = b"SDJ1"
# Magic, checksum of the rest of the head, journal id, sequence number, checksum of the record, that
# of the record before it, length of the body.
_HEAD = Struct(">4sIQQIII")
_CHECKED = Struct(">QQIII")
_STAMPED = Struct(">QQ")
_SHARES = 32


class JournalDamaged(Exception):
    """The journal lacks a record that had been confirmed."""


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A place in a journal: where the next record goes, and what it must follow.

    `chain` is the checksum of the record before it.
    """

    journal_id: int
    sequence: int = 1
    offset: int = 0
    chain: int = 0

    @property
    def after_start(self) -> Mark:
        """This place for a new process, which uses no number that a torn record may have."""
        return replace(self, sequence=self.sequence + 1)


class Record(NamedTuple):
    """A whole record, and the place after it."""

    body: bytes
    end: Mark


class _Head(NamedTuple):
    journal_id: int
    sequence: int
    crc: int
    previous: int
    length: int

    @property
    def stamp(self) -> bytes:
        return _stamp(self.journal_id, self.sequence)


class Journal:
    """A journal that records are appended to. Calls block and raise `OSError`.

    Another thread may `release` records beside the one that appends.
    """

    def __init__(self, file: Path, head: Mark) -> None:
        """Go on at `head`; no record before it is needed any longer."""
        self.head = head
        self._tail = head.offset
        self._descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        self._size = _filled_bytes(os.fstat(self._descriptor).st_size)

    @property
    def share_bytes(self) -> int:
        """How much of the journal one record may take."""
        return MAX_BYTES // _SHARES

    @property
    def used_bytes(self) -> int:
        """How much of the file the records take that are still needed."""
        used = self.head.offset - self._tail
        return used if used >= 0 else used + self._size

    def append(self, body: bytes) -> bool:
        """Append a record, durably; False if it would overwrite one that is needed."""
        before = self.head
        at = self._place(_size(len(body)))
        if at is None:
            return False
        content, crc = _encoded(before, body)
        write_at(self._descriptor, at, content)
        # Before the next record is begun: `records` takes a torn record before a later one for
        # damage.
        sync_data(self._descriptor)
        self.head = Mark(before.journal_id, before.sequence + 1, at + len(content), crc)
        return True

    def release(self, mark: Mark) -> None:
        """Let the records before `mark` be overwritten."""
        self._tail = mark.offset

    def close(self) -> None:
        """Close the file; a repetition does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _place(self, size: int) -> int | None:
        """Where a record of so many bytes goes: after the last one, or where the file begins.

        Makes the file larger where that helps.
        """
        # `release` may move the tail meanwhile.
        at, tail = self.head.offset, self._tail
        if at < tail:
            # Never up to the tail: a full journal would look like an empty one.
            return at if at + size < tail else None
        while at + size > self._size and self._size < MAX_BYTES:
            self._grow()
        if at + size <= self._size:
            return at
        # No record wraps: a reader looks for the next one in two places only, after the last one
        # and where the file begins.
        return 0 if size < tail else None

    def _grow(self) -> None:
        size = min(2 * self._size, MAX_BYTES)
        write_at(self._descriptor, self._size, bytes(size - self._size))
        sync_data(self._descriptor)
        self._size = size


def create(file: Path) -> None:
    """Make an empty journal, in place of any other. Durable. Raises `OSError`."""
    write_durably(file, bytes(min(FIRST_BYTES, MAX_BYTES)))


def records(content: bytes, mark: Mark) -> Iterator[Record]:
    """The records from `mark` on, in the order in which they were written.

    Raises `JournalDamaged` where one was lost that had been confirmed.
    """
    _check_size(content, mark)
    while (record := _record(content, mark)) is not None:
        yield record
        mark = record.end
    # A record that is lost in the middle looks like the end, and all after it, though confirmed,
    # would be overwritten. The one begun with the number of `mark` is torn: it was not confirmed.
    for at, head in _heads(content):
        if head.journal_id == mark.journal_id and head.sequence > mark.sequence:
            raise JournalDamaged(
                f"record {mark.sequence} at byte {mark.offset} is lost, though record "
                f"{head.sequence} was begun at byte {at}"
            )


def records_left(content: bytes, first_sequence: int = 0) -> list[Record]:
    """The records from a sequence number on that are whole, in order, whatever else is lost."""
    found = []
    for at, head in _heads(content):
        if head.sequence >= first_sequence:
            # It says itself what it follows, because that may be lost; so a record that does not
            # continue its chain passes here.
            begin = Mark(head.journal_id, head.sequence, at, head.previous)
            with suppress(JournalDamaged):
                record = _record_at(content, at, begin)
                if record is not None:
                    found.append(record)
    return sorted(found, key=lambda record: record.end.sequence)


def torn_end(content: bytes, mark: Mark) -> bytes:
    """What there is of a record that was begun at `mark`, where the records end."""
    for at, head in _heads(content):
        if (head.journal_id, head.sequence) == (mark.journal_id, mark.sequence):
            return content[at : at + _size(head.length)]
    return b""


def _encoded(before: Mark, body: bytes) -> tuple[bytes, int]:
    """The bytes of the record that goes at `before`, and its checksum."""
    sectors = _size(len(body)) // SECTOR_BYTES
    padded = body.ljust(sectors * _PART_BYTES - _HEAD.size, b"\0")
    crc = _checksum(before, len(body), padded)
    checked = _CHECKED.pack(before.journal_id, before.sequence, crc, before.chain, len(body))
    content = _MAGIC + _STAMP.pack(crc32c(checked)) + checked + padded
    stamp = _stamp(before.journal_id, before.sequence)
    if sectors == 1:
        return content + stamp, crc
    parts = [content[at : at + _PART_BYTES] for at in range(0, len(content), _PART_BYTES)]
    return stamp.join(parts) + stamp, crc


def _size(length: int) -> int:
    """How many bytes of the file a record with a body of `length` bytes takes."""
    return -(-(_HEAD.size + length) // _PART_BYTES) * SECTOR_BYTES


def _stamp(journal_id: int, sequence: int) -> bytes:
    return _STAMP.pack(crc32c(_STAMPED.pack(journal_id, sequence)))


def _checksum(before: Mark, length: int, padded: bytes) -> int:
    """The checksum of a record and the one before it, which chains them."""
    # 0 stands for the checksum itself. `before.chain` makes a record that is whole, but follows
    # another one than this, fail as well.
    fields = (before.journal_id, before.sequence, 0, before.chain, length)
    return crc32c(padded, crc32c(_CHECKED.pack(*fields)))


def _filled_bytes(size: int) -> int:
    """How much of a file of that size is filled; a crash while it grew may have left more."""
    if size >= MAX_BYTES:
        return size
    filled = min(FIRST_BYTES, MAX_BYTES)
    while 2 * filled <= size:
        filled *= 2
    return filled


def _check_size(content: bytes, mark: Mark) -> None:
    """Raises `JournalDamaged` if a part of the file is missing that was filled before it was
    used."""
    filled = _filled_bytes(len(content))
    # A record after the filled part was written when the file was larger, so the cut took a part
    # that was used. Zeros there are only what a crash left while the file grew.
    used = [at for at, head in _heads(content, filled) if head.journal_id == mark.journal_id]
    if used or mark.offset > filled or len(content) < filled:
        raise JournalDamaged(f"it is cut short: it ends at byte {len(content)}")


def _record(content: bytes, mark: Mark) -> Record | None:
    """The record at `mark`; None when there is none, or a torn one. Raises `JournalDamaged`."""
    return _record_at(content, mark.offset, mark) or _record_at(content, 0, mark)


def _record_at(content: bytes, at: int, mark: Mark) -> Record | None:
    head = _head_at(content, at, mark)
    if head is None:
        return None
    end = at + _size(head.length)
    if end > _filled_bytes(len(content)):
        raise JournalDamaged(f"it is cut short: the record at byte {at} ends at byte {end}")
    # The stamps before the checksum, which is wrong for a torn record too: that one was never
    # confirmed, and must not keep a node from starting after each loss of power.
    for sector in range(at + SECTOR_BYTES, end, SECTOR_BYTES):
        if not _is_stamped(content, sector, head.stamp):
            return None
    parts = [content[sector : sector + _PART_BYTES] for sector in range(at, end, SECTOR_BYTES)]
    padded = b"".join(parts)[_HEAD.size :]
    if head.previous != mark.chain:
        raise JournalDamaged(f"the record at byte {at} does not follow the one before it")
    if head.crc != _checksum(mark, head.length, padded):
        raise JournalDamaged(f"the record at byte {at} has changed")
    return Record(padded[: head.length], Mark(mark.journal_id, mark.sequence + 1, end, head.crc))


def _head_at(content: bytes, at: int, mark: Mark) -> _Head | None:
    """The head of the record of `mark`, if its first sector is at `at`. Raises `JournalDamaged`."""
    if not _is_stamped(content, at, _stamp(mark.journal_id, mark.sequence)):
        return None
    # With its stamp the whole sector was written, so a head that is wrong was changed later.
    magic, crc, *fields = _HEAD.unpack_from(content, at)
    head = _Head(*fields)
    is_whole = magic == _MAGIC and crc == crc32c(_CHECKED.pack(*head))
    if not is_whole or (head.journal_id, head.sequence) != (mark.journal_id, mark.sequence):
        raise JournalDamaged(f"the head of the record at byte {at} has changed")
    return head


def _is_stamped(content: bytes, sector: int, stamp: bytes) -> bool:
    """Whether a sector was written with that stamp. Raises `JournalDamaged` when a bit of it
    changed."""
    found = content[sector + _PART_BYTES : sector + SECTOR_BYTES]
    if len(found) == len(stamp):
        difference = int.from_bytes(found, "big") ^ int.from_bytes(stamp, "big")
        # A stamp of one wrong bit would else read as "not written": a flipped bit in the last
        # record would silently undo a confirmed write. That an older stamp differs so has odds of
        # 2**-27.
        if difference.bit_count() == 1:
            raise JournalDamaged(f"a bit of the sector at byte {sector} has changed")
    return found == stamp


def _heads(content: bytes, start: int = 0) -> Iterator[tuple[int, _Head]]:
    """Where a record was begun, whether or not more of it is there."""
    for at in range(start, len(content) - SECTOR_BYTES + 1, SECTOR_BYTES):
        if content.startswith(_MAGIC, at):
            _, _, *fields = _HEAD.unpack_from(content, at)
            head = _Head(*fields)
            if content[at + _PART_BYTES : at + SECTOR_BYTES] == head.stamp:
                yield at, head
