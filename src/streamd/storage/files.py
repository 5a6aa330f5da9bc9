"""Small files and directories that a crash leaves either as they were or as they should be."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import TypeVar

import msgspec
from crc32c import crc32c

from streamd.storage.errors import LogCorrupt
from streamd.streams.content import UNDECODABLE

_CHECKSUM = Struct(">I")

T = TypeVar("T")


def is_there(path: Path) -> bool:
    """Whether a file or directory exists. Raises `OSError` where that cannot be seen: what is
    unreadable for a moment must not be taken for missing."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def write_durably(file: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace a file so that after any crash it has its old content or its new, whole."""
    fresh = file.with_name(file.name + ".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        sync_data(descriptor)
    finally:
        os.close(descriptor)
    os.rename(fresh, file)
    sync_directory(file.parent)


def write_at(descriptor: int, at: int, content: bytes) -> None:
    """Write to an open file from byte `at` on; not durable before `sync_data`."""
    written = os.pwrite(descriptor, content, at)
    while written < len(content):
        written += os.pwrite(descriptor, content[written:], at + written)


def sync_data(descriptor: int) -> None:
    """Make durable what was written to an open file, and its size."""
    os.fdatasync(descriptor)


def cut_durably(file: Path, size: int) -> None:
    """Cut a file to its first `size` bytes; no crash undoes it."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_durably(file: Path) -> None:
    """Remove a file, if it exists; no crash brings it back."""
    file.unlink(missing_ok=True)
    sync_directory(file.parent)


def rename_durably(source: Path, target: Path) -> None:
    """Rename within one directory; no crash undoes it."""
    os.rename(source, target)
    sync_directory(target.parent)


def sync_directory(directory: Path) -> None:
    """Make a directory's list of files durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def directory_bytes(directory: Path) -> int:
    """How many bytes the files in a directory have together; some may vanish meanwhile."""
    found = 0
    with os.scandir(directory) as files:
        for file in files:
            with suppress(FileNotFoundError):
                found += file.stat().st_size
    return found


def write_checked(file: Path, value: object) -> None:
    """Replace a file, durably, with an encoded value and its checksum."""
    content = msgspec.msgpack.encode(value)
    write_durably(file, content + _CHECKSUM.pack(crc32c(content)))


def read_checked(file: Path, kind: type[T]) -> T | None:
    """What `write_checked` wrote; None when there is no file. Raises `LogCorrupt`."""
    if not is_there(file):
        return None
    raw = file.read_bytes()
    content, checksum = raw[: -_CHECKSUM.size], raw[-_CHECKSUM.size :]
    if checksum != _CHECKSUM.pack(crc32c(content)):
        raise LogCorrupt(f"the file {file} is damaged")
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except UNDECODABLE as error:
        raise LogCorrupt(f"the file {file} cannot be read: {error}") from error
