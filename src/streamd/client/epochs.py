"""Where a producer's epochs come from: each is greater than all before (protocol section 5.2.1)."""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol

from streamd.client.kept_file import KeptFile


class Epochs(Protocol):
    """Gives each start of a producer its epoch.

    With an epoch that was used before, the first append of a start would pass for a repetition.
    """

    def next(self, producer_id: str, least: int) -> int:
        """An epoch for a producer, at least `least` and greater than all that this returned for the
        producer before. It survives whatever the store survives."""
        ...


class ClockEpochs:
    """The time in milliseconds. Two starts at once, or a clock that was set back, are resolved by
    the server's refusal."""

    def next(self, producer_id: str, least: int) -> int:
        """The time, or `least` if that is later."""
        return max(least, time.time_ns() // 1_000_000)


class MemoryEpochs:
    """Counts from 0 in this process."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self._lock = threading.Lock()

    def next(self, producer_id: str, least: int) -> int:
        """One more than the last for this producer, and at least `least`."""
        with self._lock:
            epoch = max(least, self._next.get(producer_id, 0))
            self._next[producer_id] = epoch + 1
        return epoch


class FileEpochs:
    """Counts in a file, as JSON, which processes of one machine may share.

    An epoch is on disk before it is used, so no restart uses it again.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = KeptFile(path, "producers to epochs", _is_count)

    def next(self, producer_id: str, least: int) -> int:
        """One more than the last for this producer, and at least `least`. It may block for a
        moment. Raises `OSError`, and `ValueError` if the file is damaged: another count might give
        an epoch that was used."""
        with self._file.change() as counts:
            epoch: int = max(least, counts.get(producer_id, 0))
            counts[producer_id] = epoch + 1
        return epoch


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
