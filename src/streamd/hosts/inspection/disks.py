"""File systems: their kind and room, and how long a synced write takes on one."""

from __future__ import annotations

import math
import os
import re
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from streamd.hosts.inspection.facts import DiskFacts, SyncFacts

_DEFAULT_LOW_BYTES = 256 * 1024 * 1024
_SMALL_SHARE = 16
_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(r"\\([0-7]{3})")
_SYNCS = 200
_SYNCS_WITHIN_S = 3.0
# About what an append of a small record writes.
_SYNCED_BYTES = 4096


class DiskSpace(NamedTuple):
    """Space of a file system in bytes; `free` is what an unprivileged process may still use."""

    free: int
    total: int


def disk_space(path: Path) -> DiskSpace:
    """The space of the file system that `path` is on. Blocks. Raises `OSError`."""
    found = os.statvfs(path)
    return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def low_bytes(configured: int | None, total: int) -> int:
    """With how many free bytes a file system of that size is low: `storage.min_free_bytes`, or
    256 MiB, or a sixteenth of a small one."""
    if configured is not None:
        return configured
    return min(_DEFAULT_LOW_BYTES, total // _SMALL_SHARE)


def existing(path: Path) -> Path:
    """The path itself, or the nearest directory above it that exists: where a start creates it."""
    found = path.absolute()
    while not found.exists() and found != found.parent:
        found = found.parent
    return found


def disk(directory: Path, min_free_bytes: int | None, mounts: Path = _MOUNTS) -> DiskFacts:
    """The file system that a directory is on or will be, with `storage.min_free_bytes`. Blocks."""
    place = existing(directory)
    try:
        space = disk_space(place)
        kind = kind_of(place.resolve(), mounts.read_text())
    except OSError as error:
        return DiskFacts(str(directory), error=str(error))
    least = low_bytes(min_free_bytes, space.total)
    return DiskFacts(str(directory), kind, space.free, space.total, least)


def kind_of(path: Path, mounts: str) -> str:
    """The kind of the file system at an absolute path without links, by the text of a
    ``mountinfo`` (proc(5)); empty if none is listed. Of two at one place the later one counts."""
    kind, depth = "", -1
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, described = before.split(), after.split()
        if len(fields) > 4 and described:
            at = Path(_ESCAPE.sub(lambda octal: chr(int(octal[1], 8)), fields[4]))
            if path.is_relative_to(at) and len(at.parts) >= depth:
                kind, depth = described[0], len(at.parts)
    return kind


def measure_syncs(directory: Path) -> SyncFacts:
    """Write and sync a file without a name in the directory, or in that above it which exists, up
    to 200 times or for 3 s. Blocks. Raises `OSError`."""
    place = existing(directory)
    block = bytes(_SYNCED_BYTES)
    took: list[float] = []
    with tempfile.TemporaryFile(dir=place) as file:
        ends_at = time.perf_counter() + _SYNCS_WITHIN_S
        while len(took) < _SYNCS and time.perf_counter() < ends_at:
            began = time.perf_counter()
            os.write(file.fileno(), block)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    took.sort()
    return SyncFacts("measured now", len(took), took[math.ceil(0.99 * len(took)) - 1])
