"""The core's interface: its inputs, its outputs, and its refusals."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

import msgspec

from streamd.raft.messages import Entry, HardState, Message


class Role(IntEnum):
    """The roles of thesis figure 3.3, and the pre-candidate of section 9.6."""

    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one node. Times are in ticks; the shell decides how long a tick lasts."""

    election_timeout_ticks: int = 10
    heartbeat_interval_ticks: int = 1
    # Proposals beyond this are refused with `Overloaded`.
    max_uncommitted_bytes: int = 64 * 1024 * 1024
    # Payload handed out for applying in one `Ready`.
    max_committed_bytes: int = 8 * 1024 * 1024
    # Payload of one AppendRequest, and the unanswered requests allowed per follower.
    max_append_bytes: int = 1024 * 1024
    max_appends_in_flight: int = 64
    max_in_flight_bytes: int = 16 * 1024 * 1024


class LogReader(Protocol):
    """The stored part of the log. The core reads only what it knows to be stored."""

    @property
    def first_index(self) -> int:
        """The oldest entry kept; 1 before any compaction, even while the log is empty."""

    @property
    def last_index(self) -> int:
        """The newest entry, or `first_index - 1` when there is none."""

    def term(self, index: int) -> int:
        """The term of the entry, from `first_index - 1` (the last one removed) on."""

    def entries(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        """Entries from `lo` up to, not including, `hi`.

        Fewer if their payloads exceed `max_bytes`, but at least one.
        """


class ReadState(msgspec.Struct, frozen=True, gc=False):
    """The answer to `Core.read(context)`: linearizable once `index` has been applied."""

    context: int
    index: int


class SoftState(msgspec.Struct, frozen=True, gc=False):
    """A change that is not stored. `leader_id` is 0 while none is known.

    Unanswered reads that were asked for under another leader or term are lost: ask again.
    """

    role: Role
    leader_id: int
    term: int


class PeerStatus(msgspec.Struct, frozen=True, gc=False):
    """What a leader knows about a follower. `state` is "probe", "replicate" or "snapshot"."""

    match_index: int
    next_index: int
    state: str
    ticks_since_heard: int


class Ready(msgspec.Struct):
    """Duties for the shell, each handed out once.

    The next `Ready` may be taken while this one is still being stored. But Readies are stored in
    the order in which they were taken, and `Core.stored(*ready.completion)` is called in that
    order for each one that has something to store.
    """

    # Store both in one atomic, synced write. An entry at or below the last stored index
    # replaces that entry and all after it.
    hard_state: HardState | None = None
    entries: list[Entry] = []
    # Send now, even before the entries are stored.
    messages: list[Message] = []
    # Send only once this Ready is stored; empty unless there is something to store.
    messages_after_store: list[Message] = []
    # Apply in this order, then call `Core.applied`. All of these entries are on this node's disk.
    committed: list[Entry] = []
    reads: list[ReadState] = []
    # Set when role, leader or term changed since the last Ready that set it.
    soft_state: SoftState | None = None
    # Followers that need a snapshot, each until `Core.snapshot_sent` or `snapshot_failed`.
    snapshots: list[int] = []

    @property
    def must_store(self) -> bool:
        return self.hard_state is not None or bool(self.entries)

    @property
    def completion(self) -> tuple[int, int]:
        """(term, index) of the last entry to store, or (the hard state's term, 0)."""
        if self.entries:
            last = self.entries[-1]
            return last.term, last.index
        assert self.hard_state is not None, "this Ready has nothing to store"
        return self.hard_state.term, 0


class CoreRefused(Exception):
    """The core refused a request; nothing has changed."""


class NotLeader(CoreRefused):
    """Only the leader does this. `leader_id` is the node to ask, 0 when no leader is known."""

    def __init__(self, leader_id: int) -> None:
        super().__init__(
            f"not the leader; node {leader_id} is" if leader_id else "no leader is known"
        )
        self.leader_id = leader_id


class Overloaded(CoreRefused):
    """Too much is proposed but not committed. Nothing was appended; try again later."""

    def __init__(self, uncommitted_bytes: int, max_uncommitted_bytes: int) -> None:
        super().__init__(
            f"{uncommitted_bytes} bytes wait to be committed, the limit is {max_uncommitted_bytes}"
        )
        self.uncommitted_bytes = uncommitted_bytes
        self.max_uncommitted_bytes = max_uncommitted_bytes


class TransferInProgress(CoreRefused):
    """Leadership is being transferred to node `to`. Nothing was appended; try again soon."""

    def __init__(self, to: int) -> None:
        super().__init__(f"leadership is being transferred to node {to}")
        self.to = to


class InvalidTransfer(CoreRefused):
    """Leadership cannot be transferred to this node: it has no vote."""


class ChangeInProgress(CoreRefused):
    """The configuration cannot change yet: the last change is not committed, or no entry of the
    leader's own term is."""


class InvalidConfiguration(CoreRefused):
    """The proposed configuration is not one that a group can have."""


class RaftViolation(Exception):
    """Raft rules out what happened: a disk lost confirmed data, two nodes use one id, or there is a
    bug. Continuing could lose data; the process must stop."""
