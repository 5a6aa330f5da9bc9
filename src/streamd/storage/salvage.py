"""How a node with peers handles a damaged log: keep what is proved, and record what is lost.

The kept entries go into a new database, because LevelDB would trip over the damaged tables again;
the damaged log stays beside it for an investigation. The other nodes still hold everything lost,
as long as this one claims nothing that it no longer has.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from streamd.process.cures import with_cure
from streamd.raft.chain import ChainPosition
from streamd.raft.messages import Entry, HardState
from streamd.storage.errors import LogCorrupt, StorageError, StorageFailed
from streamd.storage.files import is_there, rename_durably, sync_directory
from streamd.storage.leveldb import repair_database
from streamd.storage.log_engine import MAX_INDEX, LogEngine, OpenEngine, open_engine, proved
from streamd.storage.log_evidence import LogEvidence

_BATCH_BYTES = 4 * 1024 * 1024


class LogFiles:
    """Where a log's rows and its evidence are, and the directories of a salvage."""

    def __init__(
        self, directory: Path, floor_file: Path, open_engine: OpenEngine = open_engine
    ) -> None:
        self.directory = directory
        self.open_engine = open_engine
        self.evidence = LogEvidence(floor_file)
        # The log as it was found, the copy that LevelDB may repair, and what is kept of it.
        self.damaged = directory.with_name(directory.name + ".damaged")
        self.copy = directory.with_name(directory.name + ".copy")
        self.kept = directory.with_name(directory.name + ".kept")


def finish_salvage(files: LogFiles) -> None:
    """Complete or undo a salvage that a crash cut short. Raises `StorageFailed`."""
    try:
        if not is_there(files.kept):
            return
        if is_there(files.directory):
            shutil.rmtree(files.kept)
        else:
            rename_durably(files.kept, files.directory)
    except OSError as error:
        raise StorageFailed(f"{files.kept} cannot be put in place: {with_cure(error)}") from error


def salvage(files: LogFiles, group_id: int, damage: StorageError) -> None:
    """Replace a damaged log with its proved part; each step can be repeated.

    Raises `damage` again when even that is unsafe: the last vote must be known, and the log must
    be the one that the floor was written for. Raises `StorageFailed`.
    """
    evidence = files.evidence
    try:
        hard_state = evidence.vote()
        if hard_state is None:
            raise damage
        try:
            floor = evidence.floor()
        except LogCorrupt:
            floor = ChainPosition()
        shutil.rmtree(files.kept, ignore_errors=True)
        last, highest_index = _keep_proved(files, group_id, hard_state, floor, damage)
        shutil.rmtree(files.copy)
        evidence.note_lost(max(floor.index, highest_index, last.index), str(damage), last)
        evidence.note_floor(last)
        move_aside(files)
        rename_durably(files.kept, files.directory)
    except OSError as error:
        raise StorageFailed(f"{files.directory} cannot be salvaged: {with_cure(error)}") from error


def move_aside(files: LogFiles) -> None:
    """Keep a log for an investigation; it replaces an earlier one. Raises `OSError`."""
    if is_there(files.damaged):
        shutil.rmtree(files.damaged)
    rename_durably(files.directory, files.damaged)


def _keep_proved(
    files: LogFiles,
    group_id: int,
    hard_state: HardState,
    floor: ChainPosition,
    damage: StorageError,
) -> tuple[ChainPosition, int]:
    """Write the part that is kept. Returns its end, and the highest index ever seen."""
    try:
        found = _open_damaged(files, group_id)
    except LogCorrupt:
        raise damage from None
    kept = files.open_engine(files.kept, group_id)
    try:
        last = _copy(found, kept, group_id, hard_state, floor)
        if last is None:
            raise damage
        highest_index = last.index
        with suppress(StorageError):
            for index in found.indexes(last.index + 1, MAX_INDEX):
                highest_index = index
    finally:
        kept.close()
        found.close()
    sync_directory(files.kept)
    return last, highest_index


def _open_damaged(files: LogFiles, group_id: int) -> LogEngine:
    """A copy of the damaged log, from which all is read that can be. Raises `StorageError`."""
    _copy_directory(files)
    try:
        return files.open_engine(files.copy, group_id, paranoid=False)
    except StorageError:
        _copy_directory(files)
        repair_database(files.copy)
        return files.open_engine(files.copy, group_id, paranoid=False)


def _copy_directory(files: LogFiles) -> None:
    shutil.rmtree(files.copy, ignore_errors=True)
    shutil.copytree(files.directory, files.copy, ignore=shutil.ignore_patterns("LOCK"))


def _copy(
    found: LogEngine, kept: LogEngine, group_id: int, hard_state: HardState, floor: ChainPosition
) -> ChainPosition | None:
    """Copy entries as long as each proves to be the one that was written after the last.

    Where the floor names an entry of another term, the newer entries were lost, and older ones that
    they had replaced are back: those before it may stay, as a leader compares and replaces them.
    None if they belong to another log than the one that the floor was written for: within a log,
    entries with the same index and term are the same (thesis 3.5).
    """
    last = ChainPosition()
    with suppress(LogCorrupt):
        last = found.base()
    kept.restart_after(last)
    kept.write([], hard_state)
    batch: list[tuple[Entry, ChainPosition]] = []
    size = 0
    with suppress(LogCorrupt):
        for entry, position in proved(found, group_id, last):
            if position.index == floor.index and position != floor:
                if position.term == floor.term:
                    return None
                break
            batch.append((entry, position))
            last = position
            size += len(entry.payload)
            if size >= _BATCH_BYTES:
                kept.write(batch)
                batch, size = [], 0
    kept.write(batch)
    return last
