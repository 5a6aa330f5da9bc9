"""The Raft log on disk, as the rest of the node knows it, and how to open one.

Nothing outside this package names a class of log. Another kind of log satisfies `LogStorage` and
is opened here; one that only keeps its rows elsewhere satisfies `LogEngine` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from streamd.raft.chain import ChainPosition
from streamd.raft.interface import LogReader
from streamd.raft.messages import Entry, HardState
from streamd.storage.log_store import LogStore


class LogStorage(LogReader, Protocol):
    """One group's log. Every call blocks except those of `LogReader`, `holds`, `cut` and
    `is_filling`.

    One thread writes; the event loop may read beside it, and other threads free space, settle
    entries and note how far the log reaches. After a disk error this call and every later one that
    blocks raise `StorageFailed`.
    """

    @property
    def hard_state(self) -> HardState:
        """The stored hard state."""

    @property
    def lost_below(self) -> ChainPosition | None:
        """The highest entry that the log is known to have had, if stored entries were found
        missing.

        Until the leader has committed past it, this node must neither vote nor count as holding
        anything below: it may have acknowledged what it lost.
        """

    def holds(self, index: int, term: int) -> bool:
        """Whether that entry is in the log, or the last one removed from its beginning."""

    def size_after(self, index: int) -> int:
        """About how many bytes the entries after `index` take, those on disk as compressed there.

        May block.
        """

    def position(self, index: int) -> ChainPosition:
        """The position of an entry, from `first_index - 1` to `last_index`. Raises `LogCorrupt`."""

    def append(self, entries: Sequence[Entry], hard_state: HardState | None) -> None:
        """Store entries and hard state in one synced write.

        Entries are consecutive; the first may replace a stored entry, which removes all after it.
        """

    @property
    def is_filling(self) -> bool:
        """Whether `settle` is due, so that no append has to wait for room."""

    @property
    def stalled_s(self) -> float:
        """For how many seconds, in all, appends had to wait because nothing had settled."""

    def settle(self) -> None:
        """Make room for further appends, some of it, beside the thread that appends."""

    def begin_cut(self, through_index: int) -> None:
        """Make durable that the log begins after `through_index`; readers see that after `cut`.

        A crash in between may leave some of the entries; the next start removes them.
        """

    def cut(self) -> bool:
        """Move the log's beginning after the index given to `begin_cut`. Returns whether
        `remove_cut` is due now.

        Only the thread that reads beside the writer calls it: the log's beginning must not move
        between that thread's look at `first_index` and its reading.
        """

    def remove_cut(self) -> None:
        """Remove the entries before the log's beginning."""

    def free_some(self) -> bool:
        """Give some of the space of removed entries back to the disk, if they take much of it.

        Returns whether to call it again.
        """

    def reset(self, position: ChainPosition) -> None:
        """Make the log empty, to continue after an entry that only the state holds."""

    def note_regained(self) -> None:
        """Note, durably, that the leader has committed past the loss: the node is a full member."""

    def sync_floor(self) -> None:
        """Note, durably, how far the log reaches; beside the thread that appends, if need be."""

    def check_reaches(self, applied_index: int) -> None:
        """Raises `StateLagsLog` when the log no longer has entries that the state lacks."""

    def fit_to_state(self, applied_index: int, applied_term: int) -> None:
        """Check that there is no gap between the log and the state, which ends at `applied_index`.

        A log that ends before the state has lost entries. With peers it starts over after the
        state, which holds only committed entries; alone it raises `LogBelowFloor`. With peers, a
        log that has another entry at the state's end fell back to entries that had been replaced,
        and starts over as well. Raises `StateLagsLog` when the log no longer has entries that the
        state lacks.
        """

    def set_aside(self, why: str) -> LogStorage:
        """Close this log, move it to where a damaged one is kept, and return an empty one.

        Everything in this log counts as lost. Durable.
        """

    def close(self) -> None:
        """Note the floor and release the log; after a failure, only release it."""


def open_log(
    directory: Path, floor_file: Path, *, group_id: int = 0, alone: bool = True
) -> LogStorage:
    """Open and verify the log, entry by entry. Blocks.

    A node that is `alone` raises `LogCorrupt` or `LogBelowFloor` when the log is not what was
    written. One with peers keeps what it can prove, sets `lost_below`, and moves the damaged log
    aside. Raises `StorageFailed` when the log cannot be read at all.
    """
    return LogStore.open(directory, floor_file, group_id=group_id, alone=alone)


def reset_log(
    directory: Path, floor_file: Path, *, index: int, term: int, chain: int, group_id: int = 0
) -> None:
    """`LogStorage.reset` for a log that is not open, whatever it holds. Raises `StorageError`."""
    position = ChainPosition(index, term, chain)
    LogStore.reset_closed(directory, floor_file, position, group_id=group_id)
