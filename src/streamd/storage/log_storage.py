"""The Raft log on disk, as the rest of the node knows it, and how to open one.

Nothing outside this package names a class of log: another kind of log satisfies `LogStorage` and
is opened here. One that only keeps its rows elsewhere satisfies `LogEngine` instead.
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
    """One group's log. Every call blocks but those of `LogReader`, `holds` and `cut`.

    One thread writes; the event loop may read beside it. Every call that blocks raises
    `StorageFailed` after an error of the disk, and so do all later ones.
    """

    @property
    def hard_state(self) -> HardState:
        """The hard state that is stored."""

    @property
    def lost_below(self) -> ChainPosition | None:
        """The highest entry known to have been here, once stored entries were found missing.

        Until the leader has committed past it, this node must neither vote nor count as holding
        anything below: it may have acknowledged what it lost.
        """

    def holds(self, index: int, term: int) -> bool:
        """Whether that entry is in the log, or the last one removed from its beginning."""

    def size_after(self, index: int) -> int:
        """About how many bytes the entries after `index` have, those on disk as compressed there.

        May block.
        """

    def position(self, index: int) -> ChainPosition:
        """The place of an entry, from `first_index - 1` to `last_index`. Raises `LogCorrupt`."""

    def append(self, entries: Sequence[Entry], hard_state: HardState | None) -> None:
        """Store entries and hard state in one synced write.

        Entries follow each other; the first may replace an entry, which removes all after it.
        """

    def begin_cut(self, through_index: int) -> None:
        """Make durable that the log begins after `through_index`; readers see that with `cut`.

        A crash in between leaves some of the entries, which the next start removes.
        """

    def cut(self) -> bool:
        """Let the log begin where `begin_cut` said; whether `remove_cut` is due now.

        Only the thread that reads beside the writer calls it: where the log begins must not move
        between that thread's look at `first_index` and its reading.
        """

    def remove_cut(self) -> None:
        """Remove the entries before the log's beginning."""

    def reset(self, position: ChainPosition) -> None:
        """Make the log empty, to continue after an entry that only the state holds."""

    def note_regained(self) -> None:
        """The leader has committed past all that was lost: be a full member again, durably."""

    def sync_floor(self) -> None:
        """Note, durably, how far the log reaches."""

    def check_reaches(self, applied_index: int) -> None:
        """Raises `StateLagsLog` when entries that the state lacks were removed."""

    def fit_to_state(self, applied_index: int, applied_term: int) -> None:
        """Check that there is no gap between the log and the state, which ends at `applied_index`.

        A log that ends before the state has lost entries. With peers it begins again after the
        state, which holds only committed entries; alone it raises `LogBelowFloor`. Raises
        `StateLagsLog` when entries that the state lacks were removed.
        """

    def set_aside(self, why: str) -> LogStorage:
        """Close this log, keep it where a damaged one would be, and return an empty one.

        All that this one has counts as lost. Durable.
        """

    def close(self) -> None:
        """Note the floor and release the log; after a failure, only release it."""


def open_log(
    directory: Path, floor_file: Path, *, group_id: int = 0, alone: bool = True
) -> LogStorage:
    """Open and verify the log, entry by entry. Blocks.

    A node that is `alone` raises `LogCorrupt` or `LogBelowFloor` when the log is not what was
    written. One with peers keeps what it can prove, sets `lost_below`, and moves the damaged log
    aside. `StorageFailed` when it cannot be read at all.
    """
    return LogStore.open(directory, floor_file, group_id=group_id, alone=alone)


def reset_log(
    directory: Path, floor_file: Path, *, index: int, term: int, chain: int, group_id: int = 0
) -> None:
    """`LogStorage.reset` for a log that is not open, whatever is in it. Raises `StorageError`."""
    position = ChainPosition(index, term, chain)
    LogStore.reset_closed(directory, floor_file, position, group_id=group_id)
