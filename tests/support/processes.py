"""A process that tests start, wait for, signal, kill and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.support import prefork

_POLL_S = 0.02


class RunningProcess(ABC):
    """A process that leads a group of its own; inside a `with` it runs, and it is killed after."""

    DEADLINE_S = 30.0

    def __init__(self) -> None:
        self.process: prefork.Forked | subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> None:
        """Start it, and set `process`."""

    @property
    def output(self) -> str:
        """What it has printed so far, where that is kept."""
        return ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def await_alive(self, condition: Callable[[], bool], what: str) -> None:
        """Poll until something is so. Raises `AssertionError` with the output when the process
        ends before, or `DEADLINE_S` have passed."""
        deadline = time.monotonic() + self.DEADLINE_S
        while True:
            was_alive = self.is_alive  # before, because it may end while the condition is looked at
            if condition():
                return
            assert was_alive, f"it ended: {self.wait()}, not {what}: {self.output}"
            assert time.monotonic() < deadline, f"in time, not {what}: {self.output}"
            time.sleep(_POLL_S)

    def signal(self, number: int) -> None:
        """Send a signal to the whole group, a wrapper's child included."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end, `DEADLINE_S` unless told otherwise; returns the exit status."""
        assert self.process is not None
        return self.process.wait(timeout_s or self.DEADLINE_S)

    def stop(self) -> int:
        """Ask it to stop and wait; returns the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Kill its group; harmless if it has ended."""
        if self.is_alive:
            self.signal(signal.SIGKILL)
            self.wait()
