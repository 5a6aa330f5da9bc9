"""Objects as files of one directory: the cold store of a single node.

A file appears under its name only when it is whole and synced, and the directories that lead to
it are synced as well, so a crash leaves at most a file in ``.tmp``.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from threading import Lock

from streamd.objectstore.errors import (
    ColdRefused,
    ColdUnavailable,
    ObjectCorrupt,
    ObjectMissing,
    StoreFaulty,
)
from streamd.objectstore.objects import MAX_PAGE, ObjectInfo, check_name, check_put

# No name begins with a dot, so files in here are never listed.
_TEMPORARY = ".tmp"
# A file this many seconds old there no longer has a writer.
_LEFT_S = 3600.0
# What an operator must correct; a full or failing disk may recover by itself.
_REFUSALS = {
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}


class FsStore:
    """An `ObjectStore` in a directory, for one process at a time."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._lock = Lock()
        self._temporaries = 0

    @property
    def place(self) -> str:
        return f"the directory {self._root}"

    def put(self, name: str, content: bytes) -> None:
        """See `ObjectStore.put`."""
        check_put(name, content)
        target = self._root / name
        with self._translating(name):
            self._make_directory(target.parent)
            temporary = self._temporary()
            try:
                with open(temporary, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(temporary, target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            _sync(target.parent)

    def get(self, name: str, offset: int, length: int) -> bytes:
        check_name(name)
        with self._reading(name), open(self._root / name, "rb") as file:
            content = os.pread(file.fileno(), length, offset)
            while len(content) < length:
                more = os.pread(file.fileno(), length - len(content), offset + len(content))
                if not more:
                    raise ObjectCorrupt(f"{name} in {self.place} ends before {offset + length}")
                content += more
        return content

    def stat(self, name: str) -> ObjectInfo:
        check_name(name)
        with self._reading(name):
            found = os.stat(self._root / name)
            if not stat.S_ISREG(found.st_mode):
                raise IsADirectoryError
        return ObjectInfo(name, found.st_size, found.st_mtime_ns // 1_000_000)

    def page(self, prefix: str, *, after: str = "", limit: int = MAX_PAGE) -> list[ObjectInfo]:
        with self._translating(prefix):
            if not self._root.exists():
                return []
            return list(islice(self._walk("", prefix, after), limit))

    def delete(self, names: Sequence[str]) -> None:
        parents = set()
        with self._translating("objects"):
            for name in names:
                path = self._root / check_name(name)
                with suppress(FileNotFoundError):
                    path.unlink()
                    parents.add(path.parent)
            for parent in parents:
                _sync(parent)

    def close(self) -> None:
        """Remove what interrupted writes left; another process may be writing the younger files."""
        folder, until_s = self._root / _TEMPORARY, time.time() - _LEFT_S
        with suppress(OSError):
            for left in list(folder.iterdir()):
                if left.stat().st_mtime < until_s:
                    left.unlink()
            folder.rmdir()

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """Objects of a folder (empty, or ending with a slash) in the order of their names.

        One directory's names are in memory at a time. A folder sorts with its slash, like the names
        in it.
        """
        with os.scandir(self._root / folder) as entries:
            found = sorted(
                (entry.name + "/" if entry.is_dir() else entry.name, entry)
                for entry in entries
                if not entry.name.startswith(".")
            )
        for inner, entry in found:
            name = folder + inner
            if not inner.endswith("/"):
                if name.startswith(prefix) and name > after:
                    with suppress(FileNotFoundError):
                        status = entry.stat()
                        yield ObjectInfo(name, status.st_size, status.st_mtime_ns // 1_000_000)
            elif (name.startswith(prefix) or prefix.startswith(name)) and (
                name > after or after.startswith(name)
            ):
                yield from self._walk(name, prefix, after)

    def _temporary(self) -> Path:
        self._make_directory(self._root / _TEMPORARY)
        with self._lock:
            self._temporaries += 1
            return self._root / _TEMPORARY / f"{os.getpid()}-{self._temporaries}"

    def _make_directory(self, directory: Path) -> None:
        """Make a directory and its parents, each durably in the one that holds it."""
        if directory.is_dir():
            return
        self._make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        _sync(directory.parent)

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        with self._translating(name):
            try:
                yield
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise ObjectMissing(f"{name} is not in {self.place}") from None
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                raise StoreFaulty(f"{name} in {self.place}: {error.strerror}") from error

    @contextmanager
    def _translating(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kind = ColdRefused if error.errno in _REFUSALS else ColdUnavailable
            raise kind(f"{what} in {self.place}: {error.strerror or error}") from error


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
