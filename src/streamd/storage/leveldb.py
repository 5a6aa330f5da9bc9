"""LevelDB as the stores use it: opened strictly, its errors final.

Reads verify checksums and the log is read with ``paranoid_checks``: without them a flipped bit in
LevelDB's own log silently drops every record after it. With them LevelDB also refuses a log whose
last write a power failure tore, so that write is cut off first.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamd.process.cures import cure, number_in, with_cure
from streamd.storage.binding import plyvel
from streamd.storage.errors import DatabaseDamaged, StorageError, StorageFailed
from streamd.storage.fail_stop import FailStop, corrupt, failed
from streamd.storage.files import is_there, sync_directory
from streamd.storage.torn_writes import IsKey, cut_torn_tails, cut_unproved_batches

# What LevelDB says of a table that is shorter than its own footer. No disk fails like that.
_TOO_SHORT = ".ldb: Invalid argument"


def open_database(
    directory: Path,
    *,
    write_buffer_size: int,
    compression: str | None = "snappy",
    lru_cache_size: int | None = None,
    bloom_filter_bits: int = 0,
    paranoid: bool = True,
    is_key: IsKey | None = None,
) -> plyvel.DB:
    """Open or create a database. Sizes are in bytes. Raises `LogCorrupt` or `StorageFailed`.

    A write that a power failure cut short is removed first; see `cut_torn_tails` for `is_key`.
    Unless `paranoid`, it opens a damaged database with what LevelDB can read, and deletes the rest.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _refuse_orphans(directory)
        if paranoid:
            cut_torn_tails(directory, is_key)
        db = plyvel.DB(
            str(directory),
            create_if_missing=True,
            paranoid_checks=paranoid,
            write_buffer_size=write_buffer_size,
            compression=compression,
            lru_cache_size=lru_cache_size,
            bloom_filter_bits=bloom_filter_bits,
        )
        # LevelDB does not sync the directory after it has renamed CURRENT.
        sync_directory(directory)
        sync_directory(directory.parent)
        return db
    except plyvel.CorruptionError as error:
        raise corrupt(directory, _text(error)) from error
    except plyvel.Error as error:
        # Caught before `OSError`, because `plyvel.IOError` is one that has no number.
        text = _text(error)
        number = number_in(text)
        # LevelDB reports a missing or damaged MANIFEST or CURRENT as an invalid argument.
        if number in (None, errno.ENOENT, errno.EINVAL):
            raise DatabaseDamaged(f"{directory} cannot be opened: {text}") from error
        raise StorageFailed(f"{directory} cannot be opened: {text}. {cure(number)}") from error
    except OSError as error:
        raise StorageFailed(f"{directory} cannot be opened: {with_cure(error)}") from error


def repair_database(directory: Path) -> None:
    """Keep of a damaged database the rows that can be read, whatever lists its tables.

    LevelDB replays its logs here without their checksums, so what they do not prove goes first.
    Raises `LogCorrupt` or `StorageFailed`.
    """
    with LevelDBFailStop(directory):
        cut_unproved_batches(directory)
        plyvel.repair_db(str(directory), paranoid_checks=True)


def _text(error: Exception) -> str:
    """An error's message; plyvel passes LevelDB's on as bytes."""
    return " ".join(
        part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part)
        for part in error.args
    )


def _refuse_orphans(directory: Path) -> None:
    """Raises `LogCorrupt` for a database without its root.

    LevelDB would take the directory for a new one, and delete the tables it finds there.
    """
    if is_there(directory / "CURRENT"):
        return
    if any(file.suffix in (".ldb", ".log") for file in directory.iterdir()):
        raise corrupt(directory, "the directory has data but no CURRENT file")


@contextmanager
def translated(directory: Path) -> Iterator[None]:
    """Raises `LogCorrupt` or `StorageFailed` in place of LevelDB's errors."""
    try:
        yield
    except plyvel.Error as error:
        raise _translation(directory, error) from error


def _translation(directory: Path, error: plyvel.Error) -> StorageError:
    text = _text(error)
    if isinstance(error, plyvel.CorruptionError) or _TOO_SHORT in text:
        return corrupt(directory, text)
    return failed(directory, text, number_in(text))


class LevelDBFailStop(FailStop):
    """A `FailStop` for calls that use LevelDB directly, whose errors it translates."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, plyvel.Error):
            self._failure = _translation(self._directory, error)
            raise self._failure from error
        super().__exit__(kind, error, trace)
