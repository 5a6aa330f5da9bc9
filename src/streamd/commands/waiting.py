"""Says on standard error what a command waits for, once that takes a while."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Thread

from streamd.process.exits import complain

_TOLD_AFTER_S = 1.0
# A command that waits repeatedly prints at most one line in this time.
_QUIET_S = 60.0


class _Watch:
    """Gets what is waited for, and None when that is over. Any thread may call it."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._waits: dict[object, tuple[float, str]] = {}
        self._quiet_until = float("-inf")
        self._thread: Thread | None = None

    def __call__(self, key: object, what: str | None) -> None:
        with self._changed:
            if what is None:
                self._waits.pop(key, None)
                return
            since, _ = self._waits.get(key, (time.monotonic(), ""))
            self._waits[key] = since, what
            if len(self._waits) == 1:
                self._changed.notify()
            if self._thread is None:
                self._thread = Thread(target=self._run, name="streamd-watch", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        with self._changed:
            while True:
                if not self._waits:
                    self._changed.wait()
                    continue
                now = time.monotonic()
                since, what = min(self._waits.values())
                due = max(since + _TOLD_AFTER_S, self._quiet_until)
                if due <= now:
                    complain(what)
                    self._quiet_until = now + _QUIET_S
                else:
                    self._changed.wait(due - now)


watch = _Watch()


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Inside, a command waits for something that takes several requests."""
    key = object()
    watch(key, f"waiting for {what}")
    try:
        yield
    finally:
        watch(key, None)
