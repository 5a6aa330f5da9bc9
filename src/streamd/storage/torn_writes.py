"""Databases whose last write a power failure tore, made whole before LevelDB opens them.

LevelDB appends to two files: its log of batches, and the manifest, which lists the tables. All our
batches are synced, one after the other, and so are LevelDB's own writes to the manifest. Its tables
are synced before the manifest names them, a new manifest before `CURRENT` does, and the directory
before a database is used. So only the end of the newest log and the end of the manifest can be
torn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import Struct

import structlog

from streamd.storage.errors import LogCorrupt
from streamd.storage.files import cut_durably, is_there, remove_durably, write_durably
from streamd.storage.leveldb_format import FileDamaged, Records, whole_size

_CURRENT = "CURRENT"
_MANIFEST_NAME = re.compile(r"MANIFEST-(\d+)\n")
_BATCH_HEAD = Struct("<QI")
# A deletion, and a row.
_TAGS = (b"\0", b"\1")
# A deletion of the empty key.
_SMALLEST_CHANGE_BYTES = 2
# The first fields of the manifest, in this order (LevelDB's version_edit.cc).
_COMPARATOR, _LOG_NUMBER, _PREVIOUS_LOG, _NEXT_FILE, _LAST_SEQUENCE = 1, 2, 9, 3, 4

log = structlog.get_logger("streamd.storage")


IsKey = Callable[[bytes], bool]


def cut_torn_tails(directory: Path, is_key: IsKey | None) -> None:
    """Cut off an unfinished write to the database in `directory`, which must not be open.

    `is_key` tells the database's own keys from those of any other. Without it the database may
    return to its state after any earlier batch, because something else can replace what is lost:
    then damage to its logs is cut off as well. What is cut stays in a file beside the directory,
    with `.torn` after its name.
    Raises `LogCorrupt` for other damage to what had been synced, `OSError`.
    """
    manifest = _manifest(directory)
    if manifest is None:
        return
    edits = Edits(int(manifest.name.partition("-")[2]))
    content = manifest.read_bytes()
    size, damage = _whole_size(content, edits)
    if damage:
        raise LogCorrupt(f"{manifest} is corrupt: {damage}")
    if not edits.count:
        _undo_creation(directory, manifest)
        return
    _cut(directory, [(manifest, content, size)])
    logs = [(file, file.read_bytes()) for file in _logs(directory, edits.log_number)]
    batches = Batches(edits.last_sequence, sum(len(content) for _, content in logs), is_key)
    cuts: list[tuple[Path, bytes, int]] = []
    for file, content in logs:
        size, damage = (0, "") if cuts else _whole_size(content, batches)
        if size < len(content) and file is not logs[-1][0]:
            damage = damage or f"it ends at byte {size}"
        if damage and is_key is not None:
            raise LogCorrupt(f"{file} is corrupt: {damage}")
        if cuts or damage or size < len(content):
            cuts.append((file, content, size))
    if is_key is None and batches.fall_short:
        # Its own batches can be replaced; an older file's would be taken for new ones.
        cuts = [(file, content, 0) for file, content in logs]
    _cut(directory, cuts)


def cut_unproved_batches(directory: Path) -> None:
    """Cut each of LevelDB's logs at the first record that its checksum does not prove.

    For a copy that is to be repaired. Raises `OSError`.
    """
    for file in _logs(directory, 0):
        content = file.read_bytes()
        size, _ = _whole_size(content, _AnyBatches())
        if size < len(content):
            cut_durably(file, size)


class _AnyBatches:
    """Batches that only their checksums prove."""

    def take(self, record: bytes) -> bool:
        return len(record) >= _BATCH_HEAD.size

    def is_later(self, beginning: bytes, distance: int) -> bool:
        return False


class Edits:
    """The manifest's records. Each says which file number and which sequence number come next.

    A manifest takes a file number itself, so older files have lower numbers.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.count = 0
        self.log_number = 0
        self.last_sequence = 0

    def take(self, record: bytes) -> bool:
        # The first record lists the tables as they were, and may name no numbers.
        if not self._is_ours(record) and (self.count or record[:1] != bytes([_COMPARATOR])):
            return False
        numbers = _numbers(record)
        self.count += 1
        self.log_number = numbers.get(_LOG_NUMBER, self.log_number)
        self.last_sequence = numbers.get(_LAST_SEQUENCE, self.last_sequence)
        return True

    def is_later(self, beginning: bytes, distance: int) -> bool:
        return self._is_ours(beginning)

    def _is_ours(self, record: bytes) -> bool:
        return _numbers(record).get(_NEXT_FILE, 0) > self._number


class Batches:
    """The records of one database's logs, one log after the other: batches of changes.

    Each change has a sequence number, and there is no gap between those of two batches.
    """

    def __init__(self, last_sequence: int, size: int, is_key: IsKey | None) -> None:
        """`last_sequence` is the manifest's, `size` that of the logs in bytes: the manifest may
        already count some of the batches in them."""
        self._is_key = is_key
        self._last_sequence = last_sequence
        self._lowest = max(1, last_sequence + 1 - size // _SMALLEST_CHANGE_BYTES)
        self._highest = last_sequence + 1

    @property
    def fall_short(self) -> bool:
        """Whether they end before a batch that the manifest counts.

        The manifest counts a batch whose write failed, too. Or these are not the log's own batches
        but those of an older file, in a block that a new log was given.
        """
        return self._lowest == self._highest <= self._last_sequence

    def take(self, record: bytes) -> bool:
        if len(record) < _BATCH_HEAD.size:
            return False
        sequence, count = _BATCH_HEAD.unpack_from(record)
        if not self._lowest <= sequence <= self._highest:
            return False
        self._lowest = self._highest = sequence + count
        return True

    def is_later(self, beginning: bytes, distance: int) -> bool:
        if len(beginning) < _BATCH_HEAD.size:
            return False
        sequence, _ = _BATCH_HEAD.unpack_from(beginning)
        if distance:
            most = self._highest + distance // _SMALLEST_CHANGE_BYTES
            is_later = self._highest <= sequence <= most
        else:
            # There is a gap before it: an earlier log is missing or has lost its end.
            is_later = sequence > self._highest
        return bool(is_later) and self._is_own(beginning)

    def _is_own(self, beginning: bytes) -> bool:
        """False for a block that belonged to another file before."""
        tag = beginning[_BATCH_HEAD.size :][:1]
        size, at = _varint(beginning, _BATCH_HEAD.size + 1)
        key = beginning[at : at + size]
        is_own = self._is_key is None or self._is_key(key)
        return is_own and tag in _TAGS and len(key) == size


def _manifest(directory: Path) -> Path | None:
    """The manifest in use; None if there is none, which LevelDB reports itself."""
    try:
        match = _MANIFEST_NAME.fullmatch((directory / _CURRENT).read_text("ascii", "replace"))
    except FileNotFoundError:
        return None
    file = directory / match[0].strip() if match is not None else None
    return file if file is not None and is_there(file) else None


def _logs(directory: Path, first: int) -> list[Path]:
    """The logs from number `first` on, which LevelDB will replay, in order."""
    numbered = [(int(file.stem), file) for file in directory.glob("*.log") if file.stem.isdigit()]
    return [file for number, file in sorted(numbered) if number >= first]


def _whole_size(content: bytes, records: Records) -> tuple[int, str]:
    """How many bytes are whole, and what is wrong if the rest is more than torn."""
    try:
        return whole_size(content, records), ""
    except FileDamaged as damage:
        return damage.size, str(damage)


def _cut(directory: Path, cuts: Sequence[tuple[Path, bytes, int]]) -> None:
    """Cut files to these sizes, the last one first, so that an interrupted cut is repeated."""
    cuts = [(file, content, size) for file, content, size in cuts if size < len(content)]
    if not cuts:
        return
    removed = b"".join(content[size:] for _, content, size in cuts)
    write_durably(directory.with_name(directory.name + ".torn"), removed)
    for file, content, size in reversed(cuts):
        cut_durably(file, size)
        log.warning(
            "the end of a file was removed: a write that a loss of power cut short",
            file=str(file),
            whole_bytes=size,
            removed_bytes=len(content) - size,
        )


def _undo_creation(directory: Path, manifest: Path) -> None:
    """Start over with a database that was never open.

    Not every LevelDB syncs a database's first manifest. All of them replace it with a synced one
    before the database is open.
    """
    if manifest.name != "MANIFEST-000001" or any(directory.glob("*.ldb")):
        raise LogCorrupt(f"{manifest} is corrupt: no record in it is whole")
    for file in directory.glob("*.log"):
        file.unlink()
    remove_durably(directory / _CURRENT)


def _numbers(record: bytes) -> dict[int, int]:
    """The numbers that an edit of the manifest begins with, by their tags."""
    found: dict[int, int] = {}
    at = 0
    while at < len(record):
        tag, at = record[at], at + 1
        if tag not in (_COMPARATOR, _LOG_NUMBER, _PREVIOUS_LOG, _NEXT_FILE, _LAST_SEQUENCE):
            break
        found[tag], at = _varint(record, at)
        if tag == _COMPARATOR:
            at += found[tag]
    return found


def _varint(record: bytes, at: int) -> tuple[int, int]:
    """A number in seven bits a byte, lowest first, and where it ends; 0 when it is cut off."""
    value = shift = 0
    while at < len(record):
        byte, at = record[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at
    return 0, at
