"""Signals that stop a command which still holds input."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

# How long a stopped command may take to store what it has read. Docker waits 10 s for its end.
_GRACE_S = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """A signal has stopped the process. Its message, if any, is for the user."""

    def __init__(self, number: signal.Signals, message: str = "") -> None:
        super().__init__(message)
        self.number = number


class Stops:
    """Inside its block, the first signal ends only the input: what was read can still be stored.

    A second signal, or the end of the time for that, raises `Stopped` wherever the main thread
    is. A signal that the parent has chosen to ignore stays ignored.
    """

    def __init__(self) -> None:
        self._first: signal.Signals | None = None
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stops:
        self._woken, self._wake = os.pipe()
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, self._stop)
        self._former[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, former in self._former.items():
            signal.signal(number, former)
        os.close(self._woken)
        os.close(self._wake)

    def fileno(self) -> int:
        """The descriptor that `select` finds readable once a signal has come."""
        return self._woken

    def check(self) -> None:
        """Raise `Stopped` if a signal has come."""
        if self._first is not None:
            raise Stopped(self._first)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._first is not None:
            raise Stopped(self._first)
        self._first = signal.Signals(number)
        signal.setitimer(signal.ITIMER_REAL, _GRACE_S, _GRACE_S)
        os.write(self._wake, b"\0")
