"""The command line as a shell would run it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import prefork, tether

_TIMEOUT_S = 60
_MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
sys.stderr.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
"""


class Shell:
    """Runs `streamd` against one server."""

    def __init__(self, url: str) -> None:
        self.environment = {**os.environ, "STREAMD_URL": url}

    def run(self, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run to the end, however it ends."""
        return prefork.run(arguments, environment=self.environment, given=given)

    def __call__(self, *arguments: str, given: bytes = b"") -> bytes:
        """Run a command that must succeed with nothing on standard error. Returns its output."""
        done = self.run(*arguments, given=given)
        assert (done.returncode, without_waits(done.stderr)) == (0, b""), arguments
        return done.stdout

    def fails(self, status: int, *arguments: str, given: bytes = b"") -> str:
        """Run a command that must fail with one sentence on standard error. Returns the
        sentence."""
        done = self.run(*arguments, given=given)
        assert done.returncode == status, done.stderr
        errors = without_waits(done.stderr)
        assert errors.startswith(b"streamd: ")
        assert errors.count(b"\n") == 1
        return errors.decode().removeprefix("streamd: ").rstrip("\n")

    def peak_memory_kb(self, *arguments: str, given: Path, into: Path) -> int:
        """Run what must succeed between two files; the most memory it had, resident.

        A process between measures it: a child is counted with what its parent had at its birth.
        """
        command = [sys.executable, "-c", _MEASURE, sys.executable, "-m", "streamd", *arguments]
        with given.open("rb") as source, into.open("wb") as target:
            done = subprocess.run(
                command,
                env=self.environment,
                stdin=source,
                stdout=target,
                stderr=subprocess.PIPE,
                timeout=_TIMEOUT_S,
                check=True,
            )
        return int(without_waits(done.stderr))

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command that runs until it or the block ends, with pipes at both ends."""
        with tether.start(
            [sys.executable, "-m", "streamd", *arguments],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        ) as process:
            try:
                yield process
            finally:
                process.kill()


def without_waits(errors: bytes) -> bytes:
    """What is on standard error, but for what a command says while it waits."""
    lines = errors.splitlines(keepends=True)
    return b"".join(
        line
        for line in lines
        if not line.startswith(b"streamd: waiting for ") and not line.endswith(b"; trying again\n")
    )


def heard(process: subprocess.Popen[bytes], size: int) -> bytes:
    """The next `size` bytes of output. Raises `AssertionError` when they do not come."""
    assert process.stdout is not None
    got = b""
    deadline = time.monotonic() + _TIMEOUT_S
    while len(got) < size:
        ready, _, _ = select.select([process.stdout], [], [], deadline - time.monotonic())
        piece = os.read(process.stdout.fileno(), size - len(got)) if ready else b""
        assert piece, f"only {got!r} came"
        got += piece
    return got
