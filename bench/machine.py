"""The machine: which core does what, and what to say about it beside the figures."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError

_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}


@dataclass(frozen=True)
class Cores:
    """One core for the server and another for the load; `None` if that is impossible."""

    server: int | None
    load: int | None

    @classmethod
    def choose(cls) -> Cores:
        """The first two cores that this process may use."""
        if not hasattr(os, "sched_setaffinity"):
            return cls(None, None)
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) < 2:
            return cls(None, None)
        return cls(server=usable[0], load=usable[1])

    def describe(self) -> str:
        if self.server is None:
            return "not pinned: server and load share the machine"
        return f"server pinned to core {self.server}, load to core {self.load}"


@contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Run on one core; processes started meanwhile inherit it, with all their threads."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def allow_many_files(needed: int = 0) -> None:
    """Raise the soft limit of open files to the hard one; servers started later inherit it.

    Raises `BenchError` if that is less than one process will need.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BenchError(
            f"one process will need {needed:,} open files, and may have {hard:,}: raise the limit "
            "(as root: ulimit -Hn), or take fewer --readers"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def cpu_model() -> str:
    """The processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def file_system(path: Path) -> str:
    """The type of the file system that holds `path`, as mounted; "unknown" if not to be found."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return "unknown"
    where = path.resolve()
    kind, longest = "unknown", -1
    for mount in mounts:
        _, point, mounted_kind, *_ = mount.split()
        if where.is_relative_to(point) and len(point) > longest:
            kind, longest = mounted_kind, len(point)
    return kind


def disk_note(path: Path) -> str:
    """What the servers' data lies on, with a warning where a sync costs nothing."""
    kind = file_system(path)
    if kind in _MEMORY_FILE_SYSTEMS:
        return f"{kind} — in memory: a sync costs nothing here, the durable figures mean little"
    return f"{kind}, the same for every server"
