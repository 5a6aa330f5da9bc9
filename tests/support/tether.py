"""Processes that do not outlive the tests, even when these are killed.

A signal at the death of the parent (`PR_SET_PDEATHSIG`) would not do: it comes at the death of the
thread that forked, and does not reach what a wrapper such as strace started. So each process leads
a group of its own, and one watcher holds the end of a pipe that closes when the tests are gone; it
then kills every group that it was told of.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any


def start(command: list[str], **options: Any) -> subprocess.Popen[Any]:
    """`subprocess.Popen` in a session of its own, which ends with this process at the latest."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    hold(process.pid)
    return process


def hold(leader: int) -> None:
    """Let the group that a process leads end with this process at the latest."""
    watcher = _watcher(os.getpid()).stdin
    assert watcher is not None
    os.write(watcher.fileno(), b"%d %s\n" % (leader, _started(leader)))


@cache
def _watcher(_: int) -> subprocess.Popen[bytes]:
    """The watcher of the process with this id: a fork of the tests needs one of its own."""
    command = [sys.executable, "-I", __file__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _started(pid: int) -> bytes:
    """When a process started, which distinguishes it from a later one with its id; empty if it is
    not there."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19]
    return b""


def _watch() -> None:
    for line in sys.stdin.buffer.readlines():  # all of them: returns at the end of the tests
        pid, _, started = line.partition(b" ")
        # The id of a group is not given out again while the group has members.
        if _started(int(pid)) in (b"", started.strip()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(pid), signal.SIGKILL)


if __name__ == "__main__":
    _watch()
