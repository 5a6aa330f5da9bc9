"""How a worker knows that an answer still holds, without asking.

The group's process counts the changes of streams in a page of memory that the workers see. A
stream's count is found by a hash of its key; streams that share a count only make each other's
answers end early. The process counts a change before it tells anyone of the outcome. So if a
client knows of a write, by its answer or through someone else's, the count was raised before the
client's next request began, and no answer from before the write holds any longer: reads through
workers are as linearizable as those of the process itself (docs/workers.md has the argument).

Only a change of the streams themselves is counted. So the answers that are kept must depend on
nothing else: not on the clock, and not on whether this node may still answer for its group, which
is why a member of a cluster keeps none.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from zlib import crc32

from msgspec import Struct

from streamd.streams.commands import Append, Command, Create, Delete

_SLOTS = 1 << 16
# After the streams' counts: that of changes that may concern any stream, and whether requests have
# limits of rates.
_ANY = _SLOTS
_LIMITED = _SLOTS + 1
_BYTES = (_SLOTS + 2) * 8


class Stamp(Struct, array_like=True, frozen=True, gc=False):
    """The counts on which an answer depends: the place and count of its stream, and of any."""

    slot: int
    version: int
    any_version: int


class Versions:
    """The page, in the process that has the group. Nobody else can open it."""

    def __init__(self) -> None:
        self.fileno = os.memfd_create("streamd-versions", os.MFD_CLOEXEC)
        os.ftruncate(self.fileno, _BYTES)
        self._counts = memoryview(mmap.mmap(self.fileno, _BYTES)).cast("Q")

    def applied(self, commands: Sequence[Command]) -> None:
        """Count what commands may have changed; called before anyone learns their outcomes."""
        counts = self._counts
        for key in {_changed(command) for command in commands}:
            counts[_ANY if key is None else _slot(key)] += 1

    def stamp(self, key: bytes) -> Stamp:
        """The counts that hold for the present state of a stream."""
        slot = _slot(key)
        return Stamp(slot, self._counts[slot], self._counts[_ANY])

    def set_limited(self, limited: bool) -> None:
        """Tell workers whether requests must be charged here."""
        self._counts[_LIMITED] = limited

    def close(self) -> None:
        os.close(self.fileno)


class VersionsView:
    """The page as a worker sees it."""

    def __init__(self, descriptor: int) -> None:
        page = mmap.mmap(descriptor, _BYTES, prot=mmap.PROT_READ)
        os.close(descriptor)
        self._counts = memoryview(page).cast("Q")

    @property
    def has_limits(self) -> bool:
        """Whether the group's process must charge all requests."""
        return self._counts[_LIMITED] != 0

    def holds(self, stamp: Stamp) -> bool:
        """Whether nothing has changed since."""
        counts = self._counts
        return counts[stamp.slot] == stamp.version and counts[_ANY] == stamp.any_version


def _changed(command: Command) -> bytes | None:
    """The key of the only stream that a command may change; None if it may be any."""
    return command.key if isinstance(command, Append | Create | Delete) else None


def _slot(key: bytes) -> int:
    return crc32(key) % _SLOTS
