"""A small JSON object in a file that processes of one machine share, and a kill leaves whole."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class KeptFile:
    """An object whose values are all of one kind, `contents` in words; `is_value` knows them."""

    def __init__(
        self, path: str | os.PathLike[str], contents: str, is_value: Callable[[object], bool]
    ) -> None:
        self._path = Path(path)
        self._contents = contents
        self._is_value = is_value

    @contextmanager
    def change(self) -> Iterator[dict[str, Any]]:
        """The object, for this process alone; on disk with its changes at the end of the block.

        A block that raises changes nothing. It may block for a moment. Raises `OSError`, and
        `ValueError` if the file is damaged.
        """
        # Appending mode creates the file and never truncates it. The lock is on a file of its own,
        # because the other one is replaced.
        with self._path.with_name(f"{self._path.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = self._read()
            yield found
            self._replace(found)

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self._path} is damaged: {error}") from error
        if not isinstance(found, dict) or not all(map(self._is_value, found.values())):
            raise ValueError(f"{self._path} is damaged: it does not map {self._contents}")
        return found

    def _replace(self, changed: dict[str, Any]) -> None:
        partial = self._path.with_name(f".{self._path.name}.part")
        with partial.open("w") as file:
            json.dump(changed, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
