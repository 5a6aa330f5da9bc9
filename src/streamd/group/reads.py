"""Reads of a group: when its state, in memory or in the store, includes what a reader must see."""

from __future__ import annotations

from collections.abc import Callable

from streamd.group.admission import Admission
from streamd.group.proposals import Unavailable
from streamd.group.read_index import ReadIndex
from streamd.group.state_flusher import StateFlusher
from streamd.raft.core import Core
from streamd.streams.state import State

# How long a read may wait for a leader to confirm it.
READ_TIMEOUT_S = 10.0


class GroupReads:
    """Says when to read; the reading itself needs no group.

    Invariants:

    - After `catch_up`, `state` includes every write that any node acknowledged before the call.
    - `state` is the machine's: it changes at each turn, so a reader that waits in the midst of a
      read may see a later state afterwards, never an earlier one.
    - The store is older than `state`. After `stored` it has all that was applied before the call.
    """

    def __init__(
        self,
        core: Core,
        state: State,
        admission: Admission,
        flusher: StateFlusher,
        wake: Callable[[], None],
    ) -> None:
        self.state = state
        # Gets the core's answers in the group's turns.
        self.index = ReadIndex(core, wake)
        self._core = core
        self._admission = admission
        self._flusher = flusher

    def may_read_now(self) -> bool:
        """Whether reading the present state is linearizable without a round to the peers."""
        # A node that restarts commits its whole log a turn before it has applied it.
        index = self._core.local_read_index()
        return index is not None and index <= self._core.applied_index

    async def catch_up(self, timeout_s: float = READ_TIMEOUT_S) -> None:
        """Return once the state includes everything acknowledged before the call, so that a read
        of it is linearizable. A leader that is the only voter asks no peer.

        Raises `Unavailable` when no leader confirms it in time.
        """
        if self.may_read_now():
            return
        self._admission.must_be_member()
        if not await self.index.wait(timeout_s):
            raise Unavailable("no leader confirmed that the state is up to date")

    async def stored(self) -> int:
        """Wait until the store has all that was applied before the call; returns log time then."""
        log_ms = self.state.header.log_ms
        await self._flusher.stored(self.state.header.applied_index)
        return log_ms
