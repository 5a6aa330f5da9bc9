"""What a log store needs of the engine that keeps its rows.

The engine stores what it is given and says when the disk fails. Whether the rows are the ones
that were written, and whether any are missing, the `LogStore` decides from the chain of checksums
and the evidence beside the log, so a new engine inherits both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from streamd.raft.chain import ChainPosition
from streamd.raft.messages import Entry, HardState
from streamd.storage.errors import LogCorrupt
from streamd.storage.journaled_log import JournaledLog
from streamd.storage.leveldb_log import MAX_INDEX

__all__ = ["MAX_INDEX", "LogEngine", "OpenEngine", "open_engine", "proved"]


class LogEngine(Protocol):
    """The rows of one log. Every call blocks and raises `StorageFailed` or `LogCorrupt`.

    One thread writes; another may read beside it, a third one free space, and a fourth one settle.
    """

    @property
    def directory(self) -> Path:
        """Where the rows are, for error messages."""

    def hard_state(self) -> HardState:
        """The hard state last written; the default one without any."""

    def base(self) -> ChainPosition:
        """The last entry removed from the log's beginning; index 0 without any."""

    def position(self, index: int) -> ChainPosition | None:
        """The position that entry `index` was written with; None without such an entry."""

    def rows(self, lo: int, hi: int) -> Iterator[tuple[Entry, ChainPosition]]:
        """The stored entries in [`lo`, `hi`) with their positions, in order."""

    def indexes(self, lo: int, hi: int) -> Iterator[int]:
        """The indexes of the stored entries in [`lo`, `hi`), without reading the entries."""

    def stored_size(self, lo: int, hi: int) -> int:
        """Approximate bytes on disk of the entries in [`lo`, `hi`)."""

    def write(
        self,
        entries: Sequence[tuple[Entry, ChainPosition]],
        hard_state: HardState | None = None,
        *,
        replaced: range = range(0),
    ) -> None:
        """Put entries and hard state: all or nothing, and synced.

        `replaced` are the indexes of the log's last entries, which the first of `entries` begins
        to take the place of.
        """

    @property
    def is_filling(self) -> bool:
        """Whether `settle` is due, so that no write has to wait for room. Blocks for nothing."""

    @property
    def stalled_s(self) -> float:
        """For how many seconds, in all, writes had to wait because nothing had settled."""

    def settle(self) -> None:
        """Make room for further writes, some of it, beside the thread that writes."""

    def begin_after(self, base: ChainPosition) -> None:
        """Let the log begin after `base`, synced; the entries before stay until `remove`."""

    def restart_after(self, base: ChainPosition) -> None:
        """Remove all entries after `base` and begin after it: both or neither, and synced."""

    def remove(self, indexes: Sequence[int]) -> None:
        """Remove entries before the base; a crash may bring them back."""

    def disk_bytes(self) -> int:
        """How much of the disk the files take, with the space of removed entries."""

    def free(self, end: int, max_bytes: int) -> None:
        """Give back the disk space of removed entries before `end`, about `max_bytes` of it."""

    def close(self) -> None:
        """Release the directory; a repetition does nothing."""


class OpenEngine(Protocol):
    """Opens or creates the rows of a group's log.

    Unless `paranoid`, it opens damaged rows with what can be read, and may delete the rest.
    Raises `LogCorrupt`, `StorageFailed`.
    """

    def __call__(self, directory: Path, group_id: int, *, paranoid: bool = True) -> LogEngine: ...


# The engine of every node's log.
open_engine: OpenEngine = JournaledLog


def proved(
    engine: LogEngine, group_id: int, last: ChainPosition, hi: int = MAX_INDEX
) -> Iterator[tuple[Entry, ChainPosition]]:
    """Entries after `last` and before `hi`, or to the end, each proved by the one before it.

    Raises `LogCorrupt` at the first entry that is missing or not the one that was written.
    """
    for entry, stored in engine.rows(last.index + 1, hi):
        missing = last.index + 1
        if entry.index != missing or (last := last.next(group_id, entry)) != stored:
            raise LogCorrupt(
                f"entry {missing} of the log in {engine.directory} is missing or damaged"
            )
        yield entry, last
    if hi != MAX_INDEX and last.index + 1 < hi:
        raise LogCorrupt(f"entry {last.index + 1} of the log in {engine.directory} is missing")
