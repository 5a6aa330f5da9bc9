"""Linearizable reads: waits until this node has applied the read index (thesis 6.4)."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import trio

from streamd.raft.core import Core, NotLeader, ReadState

# A question whose answer was lost is asked again after this many ticks.
_ASK_AGAIN_TICKS = 10


class ReadIndex:
    """Batches the core's reads: all readers that arrive while one question is under way share the
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
