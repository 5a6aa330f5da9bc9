"""Faults at exact system calls, by strace."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def can_trace() -> bool:
    """Whether strace is here and the system lets it trace."""
    if shutil.which("strace") is None:
        return False
    probe = ["strace", "-f", "-o", "/dev/null", "-e", "inject=sync:error=EIO", "true"]
    return subprocess.run(probe, capture_output=True).returncode == 0


needs_strace = pytest.mark.skipif(
    not can_trace(), reason="fault injection needs strace and the right to trace processes"
)


def injecting(syscall: str, fault: str, when: str, output: Path) -> list[str]:
    """The command prefix that brings `fault` about at the occurrences `when` of a system call.

    strace counts them by thread; the log's writer works in one thread as long as nothing else
    blocks beside it.
    """
    return [
        *("strace", "-f", "-qq", "-o", str(output)),
        *("-e", f"trace={syscall}", "-e", f"inject={syscall}:{fault}:when={when}"),
    ]
