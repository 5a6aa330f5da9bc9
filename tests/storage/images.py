"""Logs to damage: written by the real store, and copied as a crash would leave them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from streamd.raft.chain import ChainPosition
from streamd.raft.messages import Entry, EntryKind, HardState
from streamd.storage import journal
from streamd.storage.journaled_log import JournaledLog
from streamd.storage.leveldb_log import LevelDBLog
from streamd.storage.log_engine import OpenEngine, open_engine
from streamd.storage.log_storage import LogStorage
from streamd.storage.log_store import LogStore
from tests.support.directories import copy_in_use


def entry(index: int, term: int = 1, payload: bytes | None = None) -> Entry:
    if payload is None:
        payload = b"payload of entry %d, " % index * 8
    return Entry(index, term, EntryKind.COMMANDS, payload)


# What a log may keep its rows in. Tests of what every log does run over both.
ENGINES: dict[str, OpenEngine] = {"journal": JournaledLog, "LevelDB": LevelDBLog}


chosen_engine = open_engine


def open_log(directory: Path, *, alone: bool = True) -> LogStore:
    return LogStore.open(
        directory / "log", directory / "floor", alone=alone, open_engine=chosen_engine
    )


def newest_file(directory: Path) -> tuple[Path, range]:
    """The file that has the newest writes to a closed log, and where in it they are."""
    file = directory / "log" / "journal"
    if not file.exists():
        (file,) = (directory / "log").glob("*.log")
        return file, range(file.stat().st_size)
    with TemporaryDirectory() as copy:
        db = LevelDBLog(copy_in_use(directory / "log", Path(copy) / "log"), 0)
        mark = db.mark()
        db.close()
    assert mark is not None
    ends = [record.end.offset for record in journal.records(file.read_bytes(), mark)]
    assert mark.offset < ends[-1], (
        "they begin before the end of the file and go on at its beginning"
    )
    return file, range(mark.offset, ends[-1])


def sabotage(
    directory: Path, removed: Sequence[int] = (), entries: Sequence[Entry] = (), chain: int = 0
) -> None:
    """Change rows of a closed log as no caller of it can."""
    JournaledLog(directory / "log", 0).close()  # LevelDB has all of them now
    db = LevelDBLog(directory / "log", 0)
    rows = [(each, ChainPosition(each.index, each.term, chain)) for each in entries]
    db.store(removed=removed, entries=rows)
    db.close()


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


def with_another_floor(directory: Path) -> Path:
    """The directory of a log of eight entries under the floor of another log, at its entry 5."""
    log = open_log(directory / "live")
    fill(log, 5)
    log.close()
    other = open_log(directory / "other")
    other.append([entry(i, payload=b"something else") for i in range(1, 9)], HardState(1, 1))
    other.close()
    floor = (directory / "live" / "floor").read_bytes()
    (directory / "other" / "floor").write_bytes(floor)
    return directory / "other"
