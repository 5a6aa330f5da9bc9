"""Where consumers keep the position up to which they have handled a stream."""

from __future__ import annotations

import os
import threading
from typing import Protocol

from streamd.client.errors import ConsumerFenced
from streamd.client.kept_file import KeptFile
from streamd.client.names import BadName, parse_name


class Positions(Protocol):
    """Keeps the position of each consumer, such as in a table of a database.

    `consumer` is a text for one name and stream, `owner` a text for one start of it, and `position`
    a text that means something to the library alone. Calls come from any thread, and may block.
    """

    def take_over(self, consumer: str, owner: str) -> str | None:
        """Let only `owner` keep positions from now on. Returns the last one that was kept."""
        ...

    def keep(self, consumer: str, owner: str, position: str) -> None:
        """Keep a position in place of the one before, at once with all that the store survives.

        Raises `ConsumerFenced` if another owner took over meanwhile.
        """
        ...


class MemoryPositions:
    """Keeps positions as long as this object lives, for tests and for restarts within a process."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._positions: dict[str, str] = {}
        self._lock = threading.Lock()

    def take_over(self, consumer: str, owner: str) -> str | None:
        """Let only `owner` keep positions from now on. Returns the last one."""
        with self._lock:
            self._owners[consumer] = owner
            return self._positions.get(consumer)

    def keep(self, consumer: str, owner: str, position: str) -> None:
        """Keep a position. Raises `ConsumerFenced`."""
        with self._lock:
            if self._owners.get(consumer) != owner:
                raise ConsumerFenced(consumer)
            self._positions[consumer] = position


class FilePositions:
    """Keeps positions in a file, as JSON, which consumers of one machine may share.

    A position is on disk before `keep` returns. All methods raise `OSError`, and `ValueError` if
    the file is damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = KeptFile(path, "consumers to positions", _is_entry)

    def take_over(self, consumer: str, owner: str) -> str | None:
        """Let only `owner` keep positions from now on. Returns the last one."""
        with self._file.change() as entries:
            position: str | None = entries.get(consumer, {}).get("position")
            entries[consumer] = {"owner": owner, "position": position}
        return position

    def keep(self, consumer: str, owner: str, position: str) -> None:
        """Keep a position. Raises `ConsumerFenced`."""
        with self._file.change() as entries:
            if entries.get(consumer, {}).get("owner") != owner:
                raise ConsumerFenced(consumer)
            entries[consumer] = {"owner": owner, "position": position}


def _is_entry(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    position = value.get("position")
    return isinstance(value.get("owner"), str) and (position is None or isinstance(position, str))


class StreamPositions:
    """Keeps positions in a stream of the consumer's server, so that any machine can take over.

    The stream `name`, which is in a bucket, is created on first use. Consumers may share it. When
    one of them has kept `compact_every` positions, a snapshot of each consumer's last position
    replaces all of them. Raises `BadName`, and `ValueError`.
    """

    def __init__(self, name: str, *, compact_every: int = 1000) -> None:
        self.name = parse_name(name)
        if not self.name.is_in_bucket:
            raise BadName(f"{name} is not in a bucket of its own: name it BUCKET/STREAM for this")
        if compact_every < 1:
            raise ValueError("compact_every is at least 1")
        self.compact_every = compact_every
