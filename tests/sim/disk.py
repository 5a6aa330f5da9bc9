"""A node's directory: what is left of it after a kill or a loss of power."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

from streamd.storage.binding import plyvel
from tests.sim.persisting import Crashed
from tests.sim.torn_pages import Tear, pages, torn
from tests.sim.watch import InvariantBroken
from tests.support.directories import copy_in_use, sizes

T = TypeVar("T")

# Most writes are smaller than a page.
_SECTOR_BYTES = 512


class Trap(Enum):
    """What happens at a write."""

    CRASH_BEFORE = "crashes before a write"
    CRASH_AFTER = "crashes after a write"
    CRASH_DURING = "crashes during a write"
    IO_ERROR = "EIO"
    FULL = "ENOSPC"

    @property
    def is_crash(self) -> bool:
        return self in (Trap.CRASH_BEFORE, Trap.CRASH_DURING, Trap.CRASH_AFTER)


_ERRNO = {Trap.IO_ERROR: errno.EIO, Trap.FULL: errno.ENOSPC}


class _Overwrite(NamedTuple):
    """Bytes written into a file, and what was there before."""

    at: int
    old: bytes
    new: bytes


class Disk:
    """The directory of one node, under a new path after each crash: a thread that wrote to the
    old one may continue to, as a process does that is being killed."""

    def __init__(self, base: Path, random: Random, counted: Counter[str]) -> None:
        self._base = base
        self._random = random
        self._counted = counted
        self._generation = 0
        # Whether a bit was ever flipped.
        self.is_damaged = False
        # How much of LevelDB's log files is known to be on disk, by their paths.
        self._synced_bytes: dict[Path, int] = {}
        # The same at the last write of the log's floor.
        self._floored_bytes: dict[Path, int] = {}
        # What was written into journals: not synced, since the last batch of their databases, and
        # as of when the log's floor was last written.
        self._unsynced: dict[Path, list[_Overwrite]] = {}
        self._journaled: dict[Path, list[_Overwrite]] = {}
        self._floored_journal: dict[Path, list[_Overwrite]] = {}
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
        """Make something happen after so many writes, of all or of one database; to the power as
        well, or only to the process."""
        self._trap, self._writes_to_trap = (trap, powerless), writes
        self._trapped = self.path / database if database is not None else None

    def disarm(self) -> None:
        self._trap = None

    # -- writes -------------------------------------------------------------------------------

    def persist(self, write: Callable[[], T]) -> T:
        return self._persist(write, self.path)

    def overwrite(self, write: Callable[[], T], file: Path, at: int, content: bytes) -> T:
        """Raises `InvariantBroken` for a write to a journal that has failed before (I9)."""
        if file.parent in self._failed:
            raise InvariantBroken(f"{file.name} is written again after an error")
        with file.open("rb") as before:
            before.seek(at)
            old = before.read(len(content)).ljust(len(content), b"\0")
        result = write()
        if self.path in file.parents:
            writes = self._unsynced.setdefault(file.relative_to(self.path), [])
            writes.append(_Overwrite(at, old, content))
        return result

    def sync(self, sync: Callable[[], T], file: Path) -> T:
        name = file.relative_to(self.path) if self.path in file.parents else file
        if name not in self._unsynced:
            return self.persist(sync)

        def sync_journal() -> T:
            result = sync()
            self._journaled.setdefault(name, []).extend(self._unsynced.pop(name))
            return result

        return self._persist(sync_journal, file.parent)

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
                unsynced()  # The write reached the kernel.
            text = os.strerror(_ERRNO[kind])
            if unsynced is not None:
                raise plyvel.IOError(f"IO error: {where}: {text}")
            raise OSError(_ERRNO[kind], text)
        if kind is Trap.CRASH_AFTER:
            write()
        elif kind is Trap.CRASH_DURING and unsynced is not None:
            unsynced()
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
        """Bytes synced in the original count as synced in the copy."""
        if self.path not in source.parents:
            return  # It was left; see `_mark_synced`.
        old, new = source.relative_to(self.path), target.relative_to(self.path)
        everything: list[dict[Path, Any]] = [self._synced_bytes, self._unsynced, self._journaled]
        for known in everything:
            for file in [file for file in known if new in (file, *file.parents)]:
                del known[file]
            for file in [file for file in known if old in file.parents]:
                known[new / file.relative_to(old)] = known.pop(file)
        if target.name == "floor":
            self._floored_bytes = dict(self._synced_bytes)
            self._floored_journal = {file: [*writes] for file, writes in self._journaled.items()}

    def _mark_synced(self, database: Path) -> None:
        if self.path not in database.parents:
            return  # A process that is being killed left it; nothing returns to it.
        self._journaled.pop(database.relative_to(self.path) / "journal", None)
        for file, size in sizes(database, "*.log").items():
            self._synced_bytes[file.relative_to(self.path)] = size

    # -- afterwards ---------------------------------------------------------------------------

    def leave(self, *, powerless: bool) -> None:
        """Continue in a copy of what a kill or a loss of power leaves."""
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
        """Change a bit of what is synced of a database's log; False when there is nothing."""
        journal = self.path / directory / "journal"
        writes = self._journaled.get(journal.relative_to(self.path))
        if writes:
            write = self._random.choice(writes)
            content = bytearray(journal.read_bytes())
            place = write.at + self._random.randrange(len(write.new))
            content[place] ^= 1 << self._random.randrange(8)
            journal.write_bytes(content)
            self.is_damaged = True
            return True
        for file in sorted((self.path / directory).glob("*.log"), reverse=True):
            content = bytearray(file.read_bytes())
            synced = self._synced_bytes.get(file.relative_to(self.path), 0)
            if synced:
                place = self._random.randrange(synced)
                content[place] ^= 1 << self._random.randrange(8)
                file.write_bytes(content)
                self.is_damaged = True
                return True
        return False

    def cut_short(self, directory: str) -> bool:
        """Cut a database's log below where it was when the floor was written; False when it has
        nothing there."""
        journal = self.path / directory / "journal"
        name = journal.relative_to(self.path)
        needed = self._journaled.get(name, [])
        known = [write for write in self._floored_journal.get(name, []) if write in needed]
        if known:
            write = self._random.choice(known)
            os.truncate(journal, write.at + self._random.randrange(len(write.new)))
            self.is_damaged = True
            return True
        for file in sorted((self.path / directory).glob("*.log"), reverse=True):
            floored = self._floored_bytes.get(file.relative_to(self.path), 0)
            if floored:
                os.truncate(file, self._random.randrange(floored))
                self.is_damaged = True
                return True
        return False

    def _lose_unsynced(self) -> None:
        """Leave any of the unsynced pages, or none."""
        size = _SECTOR_BYTES
        blocks = [block for file in self._logs() for block in pages(file.read_bytes(), size)[1:]]
        for file in self._logs():
            name = file.relative_to(self.path)
            written = file.read_bytes()
            synced = written[: self._synced_bytes.get(name, 0)]
            if len(synced) < len(written):
                tear = self._random.choice([*Tear])
                left = torn(synced, written, self._random, blocks, tear, size)
                file.write_bytes(left)
                self._synced_bytes[name] = len(left)
                self._counted["unsynced writes lost"] += left == synced
                self._counted["torn tails"] += left not in (synced, written)

        for name, writes in self._unsynced.items():
            if (self.path / name).exists():
                self._tear_overwritten(self.path / name, writes)
        self._unsynced.clear()

    def _tear_overwritten(self, file: Path, writes: Sequence[_Overwrite]) -> None:
        content = bytearray(file.read_bytes())
        whole = bytes(content)
        for write in writes:
            tear = self._random.choice([*Tear])
            end = write.at + len(write.new)
            content[write.at : end] = torn(
                write.old, write.new, self._random, tear=tear, page_bytes=_SECTOR_BYTES
            )
        file.write_bytes(content)
        before = bytearray(whole)
        for write in reversed(writes):
            before[write.at : write.at + len(write.old)] = write.old
        self._counted["unsynced writes lost"] += content == before
        self._counted["torn tails"] += content not in (before, whole)

    def _logs(self) -> list[Path]:
        return sorted(self.path.glob("*/*.log"))
