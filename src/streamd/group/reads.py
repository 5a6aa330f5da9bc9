"""Reads of a group: when its state, in memory or in the store, includes what a reader must see."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import trio

from streamd.group.admission import Admission
from streamd.group.proposals import Unavailable
from streamd.group.state_flusher import StateFlusher
from streamd.raft.core import Core, NotLeader, ReadState
from streamd.streams.state import State

# How long a read may wait for a leader to confirm it.
READ_TIMEOUT_S = 10.0
# A question whose answer was lost is asked again after this many ticks.
_ASK_AGAIN_TICKS = 10


class ReadIndex:
    """Linearizable reads: waits until this node has applied the read index (thesis 6.4).

    It batches the core's reads: all readers that arrive while one question is under way share the
    next. `changed` is called when there is something to ask.

    A reader never joins a question that was asked before it arrived: that read index may be older
    than a write that was acknowledged in between.
    """

    def __init__(self, core: Core, changed: Callable[[], None]) -> None:
        self._core = core
        self._changed = changed
        self._gathering: list[trio.Event] = []
        self._asked: dict[int, tuple[int, list[trio.Event]]] = {}
        self._applying: list[tuple[int, int, list[trio.Event]]] = []
        self._contexts = count(1)
        self._ticks = 0

    async def wait(self, timeout_s: float) -> bool:
        """Wait until the read index is applied here; False if that took too long."""
        passed = trio.Event()
        self._gathering.append(passed)
        self._changed()
        try:
            with trio.move_on_after(timeout_s):
                await passed.wait()
        finally:
            if not passed.is_set() and passed in self._gathering:
                self._gathering.remove(passed)
        return passed.is_set()

    def ask(self) -> None:
        """Ask once for all waiting readers, if a leader is known."""
        if not self._gathering:
            return
        context = next(self._contexts)
        try:
            self._core.read(context)
        except NotLeader:
            return
        self._asked[context] = (self._ticks, self._gathering)
        self._gathering = []

    def answer(self, reads: list[ReadState]) -> None:
        """Take the core's answers; their readers continue once the index is applied."""
        for read in reads:
            asked = self._asked.pop(read.context, None)
            if asked is not None:
                heapq.heappush(self._applying, (read.index, read.context, asked[1]))

    def applied(self, index: int) -> None:
        """Wake the readers whose read index is at most `index`."""
        while self._applying and self._applying[0][0] <= index:
            _, _, waiting = heapq.heappop(self._applying)
            for passed in waiting:
                passed.set()

    def ask_again(self) -> None:
        """Ask again: the core forgets its questions when the leader or the term changes."""
        for _, waiting in self._asked.values():
            self._gathering += waiting
        self._asked = {}

    def tick(self) -> None:
        """Let a tick pass; repeat a question that has been unanswered for long."""
        self._ticks += 1
        late = [c for c, (at, _) in self._asked.items() if self._ticks - at > _ASK_AGAIN_TICKS]
        for context in late:
            self._gathering += self._asked.pop(context)[1]


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
