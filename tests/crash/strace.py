"""Faults at exact system calls, by strace."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.tools import ATTACHING, STRACE, needs, skip_without

_ATTACH_TIMEOUT_S = 10.0
_POLL_S = 0.01


def can_trace() -> bool:
    """Whether strace is here and the system lets it trace."""
    if shutil.which("strace") is None:
        return False
    probe = ["strace", "-f", "-o", "/dev/null", "-e", "inject=sync:error=EIO", "true"]
    return subprocess.run(probe, capture_output=True).returncode == 0


needs_strace = needs(STRACE, can_trace())


def injecting(syscall: str, fault: str, when: str, output: Path) -> list[str]:
    """The command prefix that causes `fault` at the occurrences `when` of a system call.

    strace counts them by thread; the log's writer works in one thread as long as nothing else
    blocks beside it.
    """
    return [
        *("strace", "-f", "-qq", "-o", str(output)),
        *("-e", f"trace={syscall}", "-e", f"inject={syscall}:{fault}:when={when}"),
    ]


@contextmanager
def injecting_into(
    pid: int, syscall: str, fault: str, files: Iterable[Path], output: Path
) -> Iterator[None]:
    """Cause `fault` from now on at every such call of a running process to one of `files`.

    Skips the test where only descendants may be traced.
    """
    paths = [word for file in files for word in ("-P", str(file))]
    tracer = subprocess.Popen(
        [
            *("strace", "-f", "-qq", "-o", str(output), "-p", str(pid), *paths),
            *("-e", f"trace={syscall}", "-e", f"inject={syscall}:{fault}:when=1+"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + _ATTACH_TIMEOUT_S
        while not _is_traced(pid):
            if tracer.poll() is not None:
                assert tracer.stderr is not None
                said = tracer.stderr.read()
                assert "not permitted" in said, said
                skip_without(ATTACHING, said)
            assert time.monotonic() < deadline, f"strace did not attach to {pid}"
            time.sleep(_POLL_S)
        yield
    finally:
        tracer.terminate()
        tracer.communicate()


def _is_traced(pid: int) -> bool:
    """Whether all threads of a process are traced."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        statuses = [(task / "status").read_text() for task in tasks.iterdir()]
    except FileNotFoundError:
        return False
    return all("TracerPid:\t0\n" not in status for status in statuses)
