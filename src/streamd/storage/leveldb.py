"""LevelDB as the stores use it: opened strictly, its errors final.

Reads verify checksums and the log is read with ``paranoid_checks``: by default a flipped bit in
LevelDB's own log silently drops every record behind it. Then LevelDB would refuse a log whose last
write was torn by a loss of power as well, so that is cut off before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from streamd.storage.binding import plyvel
from streamd.storage.errors import RESTORE_HINT, LogCorrupt, StorageError, StorageFailed
from streamd.storage.files import sync_directory
from streamd.storage.tears import IsKey, cut_torn_tails


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

    A write that a loss of power cut short is removed first; see `cut_torn_tails` for `is_key`.
    Not `paranoid`, it opens a damaged one with what LevelDB can read of it, and deletes the rest.
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
        # LevelDB does not, after it has renamed CURRENT.
        sync_directory(directory)
        sync_directory(directory.parent)
        return db
    except plyvel.CorruptionError as error:
        raise LogCorrupt(f"{directory} is corrupt: {_text(error)}. {RESTORE_HINT}") from error
    except (plyvel.Error, OSError) as error:
        # LevelDB reports a missing or damaged MANIFEST or CURRENT as an invalid argument.
        raise StorageFailed(
            f"{directory} cannot be opened: {_text(error)}. {RESTORE_HINT}"
        ) from error


def _text(error: Exception) -> str:
    """An error's message; plyvel hands LevelDB's on as bytes."""
    return " ".join(
        part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part)
        for part in error.args
    )


def _refuse_orphans(directory: Path) -> None:
    """Raises `StorageFailed` for a database without its root.

    LevelDB would take the directory for a new one, and delete the tables it finds there.
    """
    if (directory / "CURRENT").exists():
        return
    if any(file.suffix in (".ldb", ".log") for file in directory.iterdir()):
        raise StorageFailed(f"{directory} has data but no CURRENT file. {RESTORE_HINT}")


class FailStop:
    """Turns the first error of a store into the last thing it ever does."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._failure: StorageError | None = None

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def fail(self, error: StorageError) -> NoReturn:
        """Raise `error`, and ever after."""
        self._failure = error
        raise error

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Run one storage call. Raises `StorageFailed` or `LogCorrupt`, and ever after."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except plyvel.CorruptionError as error:
            what = _text(error)
            self._failure = LogCorrupt(f"{self._directory} is corrupt: {what}. {RESTORE_HINT}")
            raise self._failure from error
        except (plyvel.Error, OSError) as error:
            self._failure = StorageFailed(
                f"{self._directory}: {_text(error)}. Nothing was acknowledged after this; free or "
                "repair the disk, then start again."
            )
            raise self._failure from error
