"""Where an audit trail is written to: a file, a JSON value in each line, or another sink."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from streamd.process.cures import cure
from streamd.process.threads import RunBlocking

_OWN = 0o600


class SinkFailed(Exception):
    """Entries could not be stored; the message says why."""


class Sink(Protocol):
    """Stores entries, JSON values without line breaks."""

    async def open(self) -> None:
        """Get ready to write. Raises `SinkFailed` if what is configured cannot work."""
        ...

    async def write(self, entries: Sequence[bytes], *, durable: bool) -> None:
        """Store entries; `durable` ones survive a crash of the machine once this returns.

        Raises `SinkFailed`: some of them may be stored nevertheless.
        """
        ...

    async def reopen(self) -> None:
        """Write to what has the name now. Raises `SinkFailed`, and then goes on as before."""
        ...

    async def close(self) -> None: ...


class FileSink:
    """Appends to the file at `path`, which only the node's own user may read.

    A line that a full disk cut off gets a line break when there is room again, so that it does not
    take the next entry with it.
    """

    def __init__(self, path: Path, run_blocking: RunBlocking) -> None:
        self._path = path
        self._run_blocking = run_blocking
        self._descriptor: int | None = None
        self._is_torn = False

    async def open(self) -> None:
        await self._run_blocking(self._open)

    async def write(self, entries: Sequence[bytes], *, durable: bool) -> None:
        await self._run_blocking(self._write, b"".join(one + b"\n" for one in entries), durable)

    async def reopen(self) -> None:
        await self._run_blocking(self._open)

    async def close(self) -> None:
        await self._run_blocking(self._close)

    def _open(self) -> None:
        try:
            descriptor = _opened(self._path)
            size = os.fstat(descriptor).st_size
            is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        except OSError as error:
            advice = cure(error.errno)
            raise SinkFailed(f"{self._path}: {error.strerror}. {advice}") from None
        self._close()
        self._descriptor, self._is_torn = descriptor, is_torn

    def _write(self, data: bytes, durable: bool) -> None:
        assert self._descriptor is not None, "it is open"
        try:
            left = b"\n" + data if self._is_torn else data
            while left:
                written = os.write(self._descriptor, left)
                self._is_torn = left[written - 1 : written] != b"\n"
                left = left[written:]
            if durable:
                os.fsync(self._descriptor)
        except OSError as error:
            raise SinkFailed(f"{self._path}: {error.strerror}") from None

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _opened(path: Path) -> int:
    """A descriptor that appends to the file. Raises `OSError`."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, _OWN)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "not a regular file")
    # Durable as an entry of its directory, too: it may have been made just now.
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return descriptor
