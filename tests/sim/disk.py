"""A node's directory: what is left of it when its process or its power is gone."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from random import Random
from typing import TypeVar

from streamd.storage.binding import plyvel
from tests.sim.persisting import Crashed
from tests.sim.watch import InvariantBroken
from tests.support.directories import copy_in_use, sizes

T = TypeVar("T")

# LevelDB's own log: blocks of records, each with a checksum, its length and its type.
_BLOCK_BYTES = 32 * 1024
_HEAD_BYTES = 7


class Trap(Enum):
    """What happens at a point at which something is written."""

    CRASH_BEFORE = "crashes before a write"
    CRASH_AFTER = "crashes after a write"
    IO_ERROR = "EIO"
    FULL = "ENOSPC"

    @property
    def is_crash(self) -> bool:
        return self in (Trap.CRASH_BEFORE, Trap.CRASH_AFTER)


_ERRNO = {Trap.IO_ERROR: errno.EIO, Trap.FULL: errno.ENOSPC}


class Disk:
    """The directory of one node, under a new path after each crash: whoever wrote to the old one
    may go on doing so, as a process does that is being killed."""

    def __init__(self, base: Path, random: Random, counted: Counter[str]) -> None:
        self._base = base
        self._random = random
        self._counted = counted
        self._generation = 0
        # Whether a bit was ever flipped.
        self.is_damaged = False
        # How much of LevelDB's log files is known to be on disk, by their paths.
        self._synced_bytes: dict[Path, int] = {}
        self._trap: tuple[Trap, bool] | None = None
        # The only database whose writes count on the way to it, or None.
        self._trapped: Path | None = None
        self._writes_to_trap = 0
        # Where a write has failed in this life.
        self._failed: set[Path] = set()

    @property
    def path(self) -> Path:
        return self._base / str(self._generation)

    @property
    def has_failed(self) -> bool:
        """Whether a write of this life was answered with an error."""
        return bool(self._failed)

    # -- traps --------------------------------------------------------------------------------

    def set_trap(
        self, trap: Trap, writes: int, *, powerless: bool, database: str | None = None
    ) -> None:
        """Have something happen at the write that is so many away, of all or of a database; to
        the power as well, or only to the process."""
        self._trap, self._writes_to_trap = (trap, powerless), writes
        self._trapped = self.path / database if database is not None else None

    def disarm(self) -> None:
        self._trap = None

    # -- writes -------------------------------------------------------------------------------

    def persist(self, write: Callable[[], T]) -> T:
        return self._persist(write, self.path)

    def persist_rows(self, write: Callable[[], T], database: Path, *, synced: bool) -> T:
        """Raises `InvariantBroken` for a write to a database that has failed before (I9)."""
        if database in self._failed:
            raise InvariantBroken(f"{database.name} is written again after an error")

        def write_rows() -> T:
            result = write()
            if synced:
                self._mark_synced(database)
            return result

        return self._persist(write_rows, database, unsynced=write)

    def _persist(
        self, write: Callable[[], T], where: Path, unsynced: Callable[[], T] | None = None
    ) -> T:
        trap = self._sprung(where)
        if trap is None:
            return write()
        kind, powerless = trap
        self._counted[kind.value] += 1
        if kind in _ERRNO:
            self._failed.add(where)
            if unsynced is not None and self._random.random() < 0.5:
                unsynced()  # It got as far as the kernel.
            text = os.strerror(_ERRNO[kind])
            if unsynced is not None:
                raise plyvel.IOError(f"IO error: {where}: {text}")
            raise OSError(_ERRNO[kind], text)
        if kind is Trap.CRASH_AFTER:
            write()
        self.leave(powerless=powerless)
        raise Crashed(powerless=powerless)

    def _sprung(self, where: Path) -> tuple[Trap, bool] | None:
        if self._trap is None or (self._trapped is not None and self._trapped != where):
            return None
        self._writes_to_trap -= 1
        if self._writes_to_trap > 0:
            return None
        trap, self._trap = self._trap, None
        return trap

    def renamed(self, source: Path, target: Path) -> None:
        """What was synced there is synced here."""
        old, new = source.relative_to(self.path), target.relative_to(self.path)
        for file in [file for file in self._synced_bytes if new in file.parents]:
            del self._synced_bytes[file]
        for file in [file for file in self._synced_bytes if old in file.parents]:
            self._synced_bytes[new / file.relative_to(old)] = self._synced_bytes.pop(file)

    def _mark_synced(self, database: Path) -> None:
        if self.path not in database.parents:
            return  # It was left, by a process that is being killed: nobody comes back to it.
        for file, size in sizes(database, "*.log").items():
            self._synced_bytes[file.relative_to(self.path)] = size

    # -- afterwards ---------------------------------------------------------------------------

    def leave(self, *, powerless: bool) -> None:
        """Go on in a copy as a kill, or the loss of power, leaves it."""
        old = self.path
        self._generation += 1
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._trap = None
        self._failed.clear()
        if old.exists():
            copy_in_use(old, self.path)
        if powerless:
            self._lose_unsynced()

    def wipe(self) -> None:
        shutil.rmtree(self._base, ignore_errors=True)

    def flip_bit(self, directory: str) -> bool:
        """Change a bit of what is synced of a database's log; False when there is nothing.

        Not of a record's length: LevelDB takes such a one at its end for a torn write, and
        nothing but the floor tells that more had been there.
        """
        for file in sorted((self.path / directory).glob("*.log"), reverse=True):
            content = bytearray(file.read_bytes())
            places = _places(content, self._synced_bytes.get(file.relative_to(self.path), 0))
            if places:
                content[self._random.choice(places)] ^= 1 << self._random.randrange(8)
                file.write_bytes(content)
                self.is_damaged = True
                return True
        return False

    def _lose_unsynced(self) -> None:
        """Cut what was not synced, anywhere; each database for itself, and often all of it."""
        for file in sorted(self.path.glob("*/*.log")):
            name = file.relative_to(self.path)
            kept = self._synced_bytes.get(name, 0)
            size = file.stat().st_size
            if size > kept:
                cut = self._random.choice((kept, size, self._random.randint(kept, size)))
                os.truncate(file, cut)
                self._synced_bytes[name] = cut
                self._counted["unsynced writes lost"] += cut < size
                self._counted["torn tails"] += kept < cut < size


def _places(content: bytes, synced: int) -> list[int]:
    """Bytes of records in LevelDB's log format, but for those that say how long they are."""
    places: list[int] = []
    at = 0
    while at + _HEAD_BYTES <= synced:
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        length = int.from_bytes(content[at + 4 : at + 6], "little")
        if left < _HEAD_BYTES:
            at += left
            continue
        places += [*range(at, at + 4), *range(at + 6, min(at + _HEAD_BYTES + length, synced))]
        at += _HEAD_BYTES + length
    return places
