"""What a node with peers does about a damaged log: keep what is proved, and say what is lost.

The kept entries go into a fresh database, because LevelDB would trip over the damaged tables
again; the damaged log is kept beside it for whoever wants to know what happened. Everything lost
is still with the other nodes, as long as this one claims nothing that it no longer has.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import structlog

from streamd.raft.messages import HardState
from streamd.storage.binding import plyvel
from streamd.storage.errors import LogCorrupt, StorageError, StorageFailed
from streamd.storage.files import read_checked, rename_durably, sync_directory, write_checked
from streamd.storage.floor import Floor, read_floor, write_floor
from streamd.storage.leveldb import open_database
from streamd.storage.log_rows import LogRows, is_log_key

# The log is written in order, so its tables hardly overlap and a larger buffer saves no sorting.
# It would be filled, twice over, by one snapshot that an application publishes.
_WRITE_BUFFER_BYTES = 2 * 1024 * 1024
_BATCH_BYTES = 4 * 1024 * 1024

log = structlog.get_logger("streamd.storage")


class LogFiles:
    """Where a log's database is, and the files that prove it."""

    def __init__(self, directory: Path, floor: Path) -> None:
        self.directory = directory
        self.floor = floor
        self.vote = floor.with_name("vote")
        self.lost = floor.with_name("lost")
        # The log as it was found, the copy that LevelDB may repair, and what is kept of it.
        self.damaged = directory.with_name(directory.name + ".damaged")
        self.copy = directory.with_name(directory.name + ".copy")
        self.kept = directory.with_name(directory.name + ".kept")


def open_log_database(directory: Path, *, paranoid: bool = True) -> plyvel.DB:
    """Raises `LogCorrupt` or `StorageFailed`."""
    return open_database(
        directory,
        write_buffer_size=_WRITE_BUFFER_BYTES,
        compression=None,
        paranoid=paranoid,
        is_key=is_log_key,
    )


def note_lost(files: LogFiles, through_index: int, why: str, last: Floor) -> Floor:
    """Write down that entries up to `through_index` were here once. Raises `OSError`."""
    before = read_checked(files.lost, Floor) or Floor()
    lost = max(before, Floor(through_index), key=lambda floor: floor.index)
    write_checked(files.lost, lost)
    log.error(
        "the log has lost entries; until the leader has restored them this node does not vote",
        why=why,
        log=str(files.directory),
        log_ends_at=last.index,
        lost_through=lost.index,
    )
    return lost


def finish_salvage(files: LogFiles) -> None:
    """Complete or undo a salvage that a crash cut short. Raises `StorageFailed`."""
    try:
        if not files.kept.exists():
            return
        if files.directory.exists():
            shutil.rmtree(files.kept)
        else:
            rename_durably(files.kept, files.directory)
    except OSError as error:
        raise StorageFailed(f"{files.kept} cannot be put in place: {error}") from error


def salvage(files: LogFiles, group_id: int, damage: StorageError) -> None:
    """Replace a damaged log by the part of it that is proved, each step repeatable.

    Raises `damage` again when not even that is safe: the last vote must be known, and the log
    must be the one that the floor was written for. Raises `StorageFailed`.
    """
    try:
        hard_state = read_checked(files.vote, HardState)
        if hard_state is None:
            raise damage
        floor = _floor_or_none(files)
        for leftover in (files.copy, files.kept):
            shutil.rmtree(leftover, ignore_errors=True)
        shutil.copytree(files.directory, files.copy, ignore=shutil.ignore_patterns("LOCK"))
        last, highest_index = _keep_proved(files, group_id, hard_state, floor, damage)
        shutil.rmtree(files.copy)
        note_lost(files, max(floor.index, highest_index, last.index), str(damage), last)
        write_floor(files.floor, last)
        move_aside(files)
        rename_durably(files.kept, files.directory)
    except OSError as error:
        raise StorageFailed(f"{files.directory} cannot be salvaged: {error}") from error


def move_aside(files: LogFiles) -> None:
    """Keep a log for whoever wants to know, in place of an earlier one. Raises `OSError`."""
    if files.damaged.exists():
        shutil.rmtree(files.damaged)
    rename_durably(files.directory, files.damaged)


def _floor_or_none(files: LogFiles) -> Floor:
    try:
        return read_floor(files.floor)
    except LogCorrupt:
        return Floor()


def _keep_proved(
    files: LogFiles, group_id: int, hard_state: HardState, floor: Floor, damage: StorageError
) -> tuple[Floor, int]:
    """Make the database of what is kept. Returns its end, and the highest index ever seen."""
    try:
        found = open_log_database(files.copy, paranoid=False)
    except StorageError:
        raise damage from None
    kept = open_log_database(files.kept)
    try:
        source = LogRows(found, group_id, str(files.copy))
        target = LogRows(kept, group_id, str(files.kept))
        last = _copy(source, kept, target, hard_state, floor)
        if last is None:
            raise damage
        highest_index = last.index
        with suppress(plyvel.Error):
            for index in source.indexes(last.index + 1):
                highest_index = index
    finally:
        kept.close()
        found.close()
    sync_directory(files.kept)
    return last, highest_index


def _copy(
    source: LogRows,
    kept: plyvel.DB,
    target: LogRows,
    hard_state: HardState,
    floor: Floor,
) -> Floor | None:
    """Copy entries as long as each proves to be the one that was written behind the last.

    None when they are another log's than the one the floor was written for.
    """
    last = Floor()
    with suppress(plyvel.CorruptionError):
        last = source.base()
    batch = kept.write_batch(sync=True)
    target.put_hard_state(batch, hard_state)
    target.put_base(batch, last)
    size = 0
    with suppress(LogCorrupt, plyvel.CorruptionError):
        for entry, place in source.following(last):
            if place.index == floor.index and place != floor:
                return None
            target.put_entry(batch, last, entry)
            last = place
            size += len(entry.payload)
            if size >= _BATCH_BYTES:
                batch.write()
                batch = kept.write_batch(sync=True)
                size = 0
    batch.write()
    return last
