"""Applies committed entries to the machine and settles the proposals in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamd.group.drafts import PendingEntry
from streamd.group.log_formats import LOG_FORMAT
from streamd.group.packages import OwnPackages
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.raft.interface import RaftViolation
from streamd.raft.membership import departed
from streamd.raft.messages import Entry, EntryKind
from streamd.streams.codec import decode_batch
from streamd.streams.commands import Command
from streamd.streams.content import UNDECODABLE
from streamd.streams.machine import Machine

Applied = Callable[[Sequence[Command]], None]


class Applier:
    """Keeps the commands of log entries that are not applied yet, by index.

    An entry proposed here keeps its waiting proposals until its index commits: the term then tells
    whether this entry committed, or another leader's in its place (thesis 3.5).
    """

    def __init__(self, machine: Machine, node_id: int, packages: OwnPackages) -> None:
        self._machine = machine
        self._node_id = node_id
        self._packages = packages
        self._pending: dict[int, PendingEntry] = {}
        # Gets the commands of each entry, before anyone learns their outcomes.
        self.applied: Applied = lambda _: None

    def proposed(self, index: int, pending: PendingEntry) -> None:
        """Remember an entry that this node has just proposed."""
        self._pending[index] = pending

    def rows_wanted(self, entries: Sequence[Entry]) -> list[bytes]:
        """Rows that the entries will read and that are not in memory. Raises `RaftViolation`."""
        wanted: list[bytes] = []
        for entry in entries:
            if entry.kind == EntryKind.COMMANDS:
                wanted += self._machine.state.missing(self.pending(entry).commands)
        return wanted

    def pending(self, entry: Entry) -> PendingEntry:
        """The commands of an entry, as proposed here or as another leader sent them.

        Raises `RaftViolation` for commands that this release does not know: skipping them would
        make this replica differ from one that knows them.
        """
        pending = self._pending.get(entry.index)
        if pending is not None and pending.term == entry.term:
            return pending
        self._fail_replaced(entry.index)
        try:
            decoded = decode_batch(entry.payload)
        except UNDECODABLE as error:
            raise RaftViolation(
                f"log entry {entry.index} has a command that this release of streamd does not know"
                f" ({error}): start the release that wrote it, or a later one"
            ) from error
        pending = self._pending[entry.index] = PendingEntry(
            entry.term, decoded.now_ms, decoded.commands, decoded.packages
        )
        return pending

    def apply(self, entry: Entry) -> None:
        """Apply a committed entry and settle its proposals. Raises `RaftViolation`."""
        machine = self._machine
        applied_index = machine.state.header.applied_index
        assert entry.index == applied_index + 1, (entry.index, applied_index)
        if entry.kind == EntryKind.COMMANDS:
            pending = self.pending(entry)
            outcomes = machine.apply(
                entry.index, entry.term, pending.now_ms, pending.commands, pending.packages
            )
            self.applied(pending.commands)
            pending.settle(outcomes, self._node_id, self._packages)
        elif entry.kind == EntryKind.CONFIGURATION:
            gone = departed(machine.state.header.configuration, entry.payload)
            machine.configure(entry.index, entry.term, entry.payload, gone)
            self._fail_replaced(entry.index)
        else:
            machine.apply(entry.index, entry.term, 0, [])
            self._fail_replaced(entry.index)
        self._pending.pop(entry.index, None)
        if machine.state.header.features > LOG_FORMAT:
            raise RaftViolation(
                f"log entry {entry.index} raises the feature level to "
                f"{machine.state.header.features}, and this release of streamd understands the log "
                f"up to level {LOG_FORMAT}: start the release that wrote it, or a later one"
            )

    def _fail_replaced(self, index: int) -> None:
        replaced = self._pending.get(index)
        if replaced is not None:
            replaced.fail(Unavailable("another leader's entry replaced it"))

    def fail_all(self, error: OutcomeUnknown) -> None:
        """Settle all proposals with an error. Their entries may still commit and be applied."""
        for pending in self._pending.values():
            pending.fail(error)

    def reset(self, error: OutcomeUnknown) -> None:
        """Forget all entries: a Raft snapshot replaced the log."""
        self.fail_all(error)
        self._pending = {}
