"""Logs to damage: written by the real store, and copied as a crash would leave them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from streamd.raft.messages import Entry, EntryKind, HardState
from streamd.storage.log_storage import LogStorage
from streamd.storage.log_store import LogStore
from tests.support.directories import copy_in_use


def entry(index: int, term: int = 1, payload: bytes | None = None) -> Entry:
    if payload is None:
        payload = b"payload of entry %d, " % index * 8
    return Entry(index, term, EntryKind.COMMANDS, payload)


def open_log(directory: Path, *, alone: bool = True) -> LogStore:
    return LogStore.open(directory / "log", directory / "floor", alone=alone)


def fill(log: LogStorage, count: int, *, term: int = 1) -> list[Entry]:
    """Append `count` entries, one synced write each."""
    made = [entry(log.last_index + 1 + i, term) for i in range(count)]
    for each in made:
        log.append([each], HardState(term, 1))
    return made


def read_all(log: LogStorage) -> Sequence[Entry]:
    if log.last_index < log.first_index:
        return []
    return log.entries(log.first_index, log.last_index + 1, 1 << 30)


def compact(log: LogStorage, through_index: int) -> None:
    """Compact the log, with no concurrent reader."""
    log.begin_cut(through_index)
    if log.cut():
        log.remove_cut()


def copy_of(directory: Path, to: Path) -> Path:
    """Copy what is on the disk over an earlier copy."""
    shutil.rmtree(to, ignore_errors=True)
    return copy_in_use(directory, to)
