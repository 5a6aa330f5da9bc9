"""A store stops at its first error."""

from __future__ import annotations

from pathlib import Path

from streamd.process.cures import cure
from streamd.storage.errors import LogCorrupt, StorageError, StorageFailed


class FailStop:
    """As a context manager it runs a call of one store: raises its `StorageError`, or
    `StorageFailed` for an `OSError`, and the same again for every later call."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._failure: StorageError | None = None

    @property
    def failed(self) -> bool:
        """Whether a call has failed."""
        return self._failure is not None

    def __enter__(self) -> None:
        if self._failure is not None:
            raise self._failure

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, StorageError):
            self._failure = error
        elif isinstance(error, OSError):
            self._failure = failed(self._directory, str(error), error.errno)
            raise self._failure from error


def failed(directory: Path, what: str, number: int | None) -> StorageFailed:
    """The error for a read or write that the system refused, with its error number."""
    return StorageFailed(
        f"{directory}: {what}. Nothing was acknowledged after this. {cure(number)}"
    )


def corrupt(directory: Path, what: str) -> LogCorrupt:
    """The error for stored bytes that are not the ones written."""
    return LogCorrupt(f"{directory} is corrupt: {what}")
