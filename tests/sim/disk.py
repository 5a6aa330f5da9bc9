"""A node's directory: what is left of it when its process or its power is gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

_DATABASES = ("log", "state", "incoming")
# After these calls the named databases are on disk as they are; after the others perhaps not.
_SYNCS = {
    "_write_blocking": ("log",),
    "append": ("log",),
    "write": ("state",),
    "_reclaim_some": ("state",),
    "begin": ("incoming",),
    "take": ("incoming",),
    "finish": ("incoming",),
    "install": _DATABASES,
}


class Disk:
    """The directory of one node, under a new path after each crash: whoever wrote to the old one
    may go on doing so, as a process does that is being killed."""

    def __init__(self, base: Path, random: Random) -> None:
        self._base = base
        self._random = random
        self._generation = 0
        # How much of each database's newest log file is known to be on disk, by its path.
        self._synced_bytes: dict[Path, int] = {}

    @property
    def path(self) -> Path:
        return self._base / str(self._generation)

    def called(self, call: str) -> None:
        """A blocking call has ended."""
        for database in _SYNCS.get(call, ()):
            for file in self._logs(database):
                self._synced_bytes[file.relative_to(self.path)] = file.stat().st_size

    def leave(self, *, powerless: bool) -> Path:
        """Go on in a copy as a kill, or the loss of power, leaves it; returns the old path."""
        old = self.path
        self._generation += 1
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if old.exists():
            _copy(old, self.path)
        if powerless:
            self._lose_unsynced()
        return old

    def wipe(self) -> None:
        shutil.rmtree(self._base, ignore_errors=True)

    def _logs(self, database: str) -> list[Path]:
        return sorted((self.path / database).glob("*.log"))

    def _lose_unsynced(self) -> None:
        """Cut what was not synced, anywhere; each database for itself, and often all of it."""
        for database in _DATABASES:
            for file in self._logs(database):
                kept = self._synced_bytes.get(file.relative_to(self.path), 0)
                size = file.stat().st_size
                if size > kept:
                    cut = self._random.choice((kept, size, self._random.randint(kept, size)))
                    with file.open("rb+") as opened:
                        opened.truncate(cut)
        self._synced_bytes.clear()


def _copy(old: Path, new: Path) -> None:
    """LevelDB may be tidying up in a thread of its own: take it between two changes."""
    while True:
        before = _listing(old)
        try:
            shutil.copytree(old, new)
        except (shutil.Error, FileNotFoundError):
            pass
        else:
            if _listing(old) == before:
                return
        shutil.rmtree(new, ignore_errors=True)


def _listing(path: Path) -> list[tuple[Path, int]]:
    while True:
        try:
            return sorted((file, file.stat().st_size) for file in path.rglob("*"))
        except FileNotFoundError:
            continue
