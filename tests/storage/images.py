"""Logs to be damaged: made for real, and copied as a crash would leave them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from streamd.raft.messages import Entry, EntryKind, HardState
from streamd.storage.log_store import LogStore


def entry(index: int, term: int = 1, payload: bytes | None = None) -> Entry:
    if payload is None:
        payload = b"payload of entry %d, " % index * 8
    return Entry(index, term, EntryKind.COMMANDS, payload)


def open_log(directory: Path, *, alone: bool = True) -> LogStore:
    return LogStore.open(directory / "log", directory / "floor", alone=alone)


def fill(log: LogStore, count: int, *, term: int = 1) -> list[Entry]:
    """Append `count` entries, one synced write each."""
    made = [entry(log.last_index + 1 + i, term) for i in range(count)]
    for each in made:
        log.append([each], HardState(term, 1))
    return made


def crash_image(directory: Path, to: Path) -> Path:
    """What the disk holds of an open store: nothing is flushed or closed for the copy.

    LevelDB tidies up in a thread of its own; a copy during which it did is no image of any moment,
    and is made again.
    """
    while True:
        before = _tables(directory)
        with suppress(shutil.Error, FileNotFoundError):
            shutil.copytree(directory, to, ignore=shutil.ignore_patterns("LOCK"))
            if _tables(directory) == before:
                return to
        shutil.rmtree(to)


def _tables(directory: Path) -> set[tuple[Path, int]]:
    """The files below a directory and their sizes."""
    return {(file, file.stat().st_size) for file in directory.rglob("*") if file.is_file()}


def read_all(log: LogStore) -> Sequence[Entry]:
    if log.last_index < log.first_index:
        return []
    return log.entries(log.first_index, log.last_index + 1, 1 << 30)


def copy_of(directory: Path, to: Path) -> Path:
    """`crash_image`, in place of an earlier one."""
    shutil.rmtree(to, ignore_errors=True)
    return crash_image(directory, to)
