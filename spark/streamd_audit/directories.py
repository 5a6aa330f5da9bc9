"""A cold store in a directory. Nothing here writes, follows a loop, or waits for a pipe."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from streamd_audit.errors import TOO_SHORT, UNREADABLE, Damaged, ObjectMissing, StoreFailed

PAGE = 1000

# What one file alone can cause; other files may be readable all the same.
_OF_ONE = frozenset((errno.EACCES, errno.EPERM, errno.ELOOP, errno.EIO, errno.ENAMETOOLONG))


class Listed(NamedTuple):
    """An object as listed: its size in bytes."""

    name: str
    size: int


class Odd(NamedTuple):
    """Something other than an object: its name as text, and what it is. `is_hidden` if all that is
    odd is a name that begins with a dot."""

    name: str
    what: str
    is_hidden: bool = False


Page = list[Listed]
Names = list[str]


class DirectoryStore:
    """Objects as files below a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        if not self._root.is_dir():
            raise StoreFailed(f"{root} is not a directory")

    @property
    def place(self) -> str:
        return str(self._root)

    def list(self, prefix: str = "", after: str = "") -> Iterator[Page]:
        found = (
            one
            for one in self._below(self._root, "", prefix, ())
            if isinstance(one, Listed) and one.name > after
        )
        while page := list(islice(found, PAGE)):
            yield page

    def odd(self, prefix: str) -> Iterator[Odd]:
        """What there is besides objects, in the order of names."""
        for one in self._below(self._root, "", prefix, ()):
            if isinstance(one, Odd):
                yield one

    def folders(self) -> Names:
        with _reading(self.place):
            return sorted(
                entry.name
                for entry in os.scandir(self._root)
                if entry.is_dir() and not entry.name.startswith(".") and _is_text(entry.name)
            )

    def size(self, name: str) -> int:
        with _reading(name):
            found = os.stat(self._path(name))
        if not stat.S_ISREG(found.st_mode):
            raise ObjectMissing(name)
        return found.st_size

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        # A pipe without a writer would block an ordinary opening for ever.
        with _reading(name), os.fdopen(os.open(self._path(name), _FLAGS), "rb", 0) as file:
            status = os.fstat(file.fileno())
            if stat.S_ISDIR(status.st_mode):
                raise ObjectMissing(name)
            if not stat.S_ISREG(status.st_mode):
                raise Damaged(UNREADABLE, f"{name} is {_kind(status.st_mode)}")
            left = max(0, status.st_size - start)
            wanted = left if length is None else length
            if left < wanted:
                raise Damaged(TOO_SHORT, f"{name} ends at byte {start + left}")
            file.seek(start)
            content = bytearray(wanted)
            view, got = memoryview(content), 0
            while got < wanted and (size := file.readinto(view[got:])):
                got += size
        if got < wanted:
            raise Damaged(TOO_SHORT, f"{name} ends at byte {start + got}")
        return bytes(content)

    def close(self) -> None:
        pass

    def _path(self, name: str) -> Path:
        if ".." in name.split("/"):
            raise ObjectMissing(name)
        return self._root / name

    def _below(
        self, directory: Path, at: str, prefix: str, above: tuple[tuple[int, int], ...]
    ) -> Iterator[Listed | Odd]:
        """What is below a directory, whose names begin with `at`, in the order of names. `above`
        are the directories that lead to it, as the file system numbers them."""
        try:
            status = os.stat(directory)
            if (status.st_dev, status.st_ino) in above:
                yield Odd(at, "a link to a folder that it lies in")
                return
            entries = list(os.scandir(directory))
        except FileNotFoundError:
            if at:
                return  # removed since its parent was listed
            raise StoreFailed(f"{self.place} is not there any more") from None
        except OSError as error:
            if not at or error.errno not in _OF_ONE:
                raise StoreFailed(f"{directory}: {error}") from error
            yield Odd(at, f"a folder that cannot be listed: {error.strerror}")
            return
        above = (*above, (status.st_dev, status.st_ino))
        # A directory is ordered as what it holds: with the slash after its name.
        named = sorted((at + each.name + ("/" if _is_dir(each) else ""), each) for each in entries)
        for name, entry in named:
            if not (name.startswith(prefix) or (name[-1:] == "/" and prefix.startswith(name))):
                continue
            if not _is_text(entry.name):
                yield Odd(_as_text(name), "a name in another encoding than UTF-8")
            elif entry.name.startswith("."):
                yield Odd(name, "a hidden name", is_hidden=True)
            elif name.endswith("/") and entry.name.endswith(_OBJECTS):
                yield Odd(name, "a folder with the name of an object")
            elif name.endswith("/"):
                yield from self._below(directory / entry.name, name, prefix, above)
            else:
                yield from _file(name, entry)


# How the names of objects end.
_OBJECTS = (".pack", ".segment", ".piece", ".manifest", ".end")
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def _file(name: str, entry: os.DirEntry[str]) -> Iterator[Listed | Odd]:
    try:
        status = entry.stat()
    except FileNotFoundError:
        if entry.is_symlink():
            yield Odd(name, "a link to nothing")
        return
    except OSError as error:
        if error.errno not in _OF_ONE:
            raise StoreFailed(f"{name}: {error}") from error
        yield Odd(name, f"a file of which nothing can be known: {error.strerror}")
        return
    if stat.S_ISREG(status.st_mode):
        yield Listed(name, status.st_size)
    else:
        yield Odd(name, _kind(status.st_mode))


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _kind(mode: int) -> str:
    known = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
             stat.S_IFBLK: "a device"}  # fmt: skip
    return known.get(stat.S_IFMT(mode), "no file")


def _is_text(name: str) -> bool:
    """Whether a name, as Python reads it from a directory, is UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _as_text(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")


class _reading:
    """Turns errors of the file system into ours."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            raise ObjectMissing(self._name) from error
        if isinstance(error, OSError):
            if error.errno in _OF_ONE or error.errno == errno.ENXIO:
                raise Damaged(UNREADABLE, f"{self._name}: {error.strerror}") from error
            raise StoreFailed(f"{self._name}: {error}") from error
