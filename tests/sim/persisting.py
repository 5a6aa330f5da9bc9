"""Every write to a disk, led through the simulated one.

There it may be the last act of a process, or fail with an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

import pytest

from streamd.storage.binding import plyvel

T = TypeVar("T")


class Crashed(BaseException):
    """The process has ended in the middle of a call, perhaps with the machine's power."""

    def __init__(self, *, powerless: bool) -> None:
        super().__init__()
        self.powerless = powerless


class Writing(Protocol):
    """Hears of each write."""

    def persist(self, write: Callable[[], T]) -> T:
        """Write a file or the name of one."""

    def overwrite(self, write: Callable[[], T], file: Path, at: int, content: bytes) -> T:
        """Write into a file from byte `at` on; not synced."""

    def sync(self, sync: Callable[[], T], file: Path) -> T:
        """Make durable what was written to a file."""

    def persist_rows(self, write: Callable[[], T], database: Path, *, synced: bool) -> T:
        """Write a batch to LevelDB's own log."""

    def renamed(self, source: Path, target: Path) -> None:
        """Rename a file or directory."""


class PersistPoints:
    """Knows whose code is running: one process at a time, as long as it does not wait."""

    def __init__(self) -> None:
        self._disk: Writing | None = None

    @contextmanager
    def of(self, disk: Writing) -> Iterator[None]:
        """Code inside this block writes to `disk`."""
        before, self._disk = self._disk, disk
        try:
            yield
        finally:
            self._disk = before

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The stores write through this object, as long as one looks on."""
        calls = {name: getattr(os, name) for name in dir(os) if not name.startswith("__")}
        calls |= {"fdatasync": self._sync(os.fdatasync), "fsync": self._sync(os.fsync)}
        calls["rename"] = self._rename
        calls["pwrite"] = self._pwrite
        open_database = plyvel.DB

        def open_watched(name: str, **options: Any) -> _Database:
            return _Database(open_database(name, **options), self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("streamd.storage.files.os", SimpleNamespace(**calls))
            patch.setattr(plyvel, "DB", open_watched)
            yield

    def rows(self, write: Callable[[], None], database: str, synced: bool) -> None:
        if self._disk is None:
            write()
        else:
            self._disk.persist_rows(write, Path(database), synced=synced)

    def _sync(self, call: Callable[[int], None]) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            if self._disk is None:
                call(descriptor)
            else:
                self._disk.sync(lambda: call(descriptor), _file_of(descriptor))

        return sync

    def _pwrite(self, descriptor: int, content: bytes, at: int) -> int:
        def write() -> int:
            return os.pwrite(descriptor, content, at)

        if self._disk is None:
            return write()
        return self._disk.overwrite(write, _file_of(descriptor), at, content)

    def _rename(self, source: Path, target: Path) -> None:
        if self._disk is None:
            os.rename(source, target)
        else:
            disk = self._disk

            def rename() -> None:
                os.rename(source, target)
                disk.renamed(source, target)

            disk.persist(rename)


def _file_of(descriptor: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))


class _Database:
    """An open LevelDB whose writes are observed."""

    def __init__(self, db: plyvel.DB, points: PersistPoints) -> None:
        self._db = db
        self._points = points

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def put(self, key: bytes, value: bytes, *, sync: bool = False) -> None:
        self._points.rows(lambda: self._db.put(key, value, sync=sync), self._db.name, sync)

    def write_batch(self, *, sync: bool = False) -> _Batch:
        return _Batch(self._db.write_batch(sync=sync), self._db.name, sync, self._points)


class _Batch:
    def __init__(self, batch: Any, database: str, synced: bool, points: PersistPoints) -> None:
        self._batch = batch
        self._database = database
        self._synced = synced
        self._points = points
        self.put = batch.put
        self.delete = batch.delete

    def write(self) -> None:
        self._points.rows(self._batch.write, self._database, self._synced)
