"""The processes in which Spark runs Python, found by what they are connected to."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_ESTABLISHED = "01"


def kill_workers(port: int) -> int:
    """Kill the Python workers of this process's Spark that are connected to a port of this
    machine. Returns how many."""
    inodes = _connected_to(port)
    killed = 0
    for pid in _descendants(os.getpid()):
        with suppress(OSError):
            if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes() and any(
                os.readlink(link).removeprefix("socket:").strip("[]") in inodes
                for link in Path(f"/proc/{pid}/fd").iterdir()
            ):
                os.kill(pid, signal.SIGKILL)
                killed += 1
    return killed


def _connected_to(port: int) -> set[str]:
    """The inodes of sockets whose other end is the port."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == _ESTABLISHED and int(fields[2].partition(":")[2], 16) == port:
            found.add(fields[9])
    return found


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            children = [int(child) for child in (task / "children").read_text().split()]
            for child in children:
                found += [child, *_descendants(child)]
    return found
