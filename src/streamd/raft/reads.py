"""ReadIndex: linearizable reads without a log entry (thesis 6.4).

For reads at a follower the leader finds the index, and the follower reads its own state:

```
 follower                          leader                       others
   │ read(7), read(8)                │                             │
   ├── ReadRequest(round 1) ───────▶ │ note the commit index       │
   │                                 ├── Heartbeat(round 4) ─────▶ │
   │                                 │ ◀─── HeartbeatReply(4) ─────┤
   │ ◀── ReadReply(round 1, index) ──┤ a majority still follows    │
   │ read 7 and 8 once index is applied                            │
```
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import NamedTuple

from streamd.raft.interface import ReadState
from streamd.raft.messages import ReadReply, ReadRequest
from streamd.raft.state import State


class RemoteRead(NamedTuple):
    """A round of reads at a follower, in the follower's numbering."""

    life: int
    round: int


class _Gathered:
    """Reads that arrive between two rounds. Only the newest of each follower's rounds counts: its
    answer also answers those before it."""

    __slots__ = ("contexts", "remote")

    def __init__(self) -> None:
        self.contexts: list[int] = []
        self.remote: dict[int, RemoteRead] = {}


class Round(NamedTuple):
    """Reads that one round of heartbeats confirms, and the commit index at its start."""

    number: int
    commit_index: int
    contexts: list[int]
    remote: dict[int, RemoteRead]


class ReadQueue:
    """Reads that wait until a majority confirms that the leader still leads.

    All reads that arrived since the last round share the next one.
    """

    def __init__(self) -> None:
        self.round = 0
        # Whether reads have arrived since the last round. Asked for four times in each append.
        self.has_gathered = False
        self._gathered = _Gathered()
        self._rounds: deque[Round] = deque()

    def add(self, context: int) -> None:
        self.has_gathered = True
        self._gathered.contexts.append(context)

    def add_remote(self, node_id: int, read: RemoteRead) -> None:
        self.has_gathered = True
        self._gathered.remote[node_id] = read

    def begin_round(self, commit_index: int) -> None:
        """Begin a round for the reads that have arrived; it needs heartbeats."""
        self.round += 1
        gathered, self._gathered = self._gathered, _Gathered()
        self.has_gathered = False
        self._rounds.append(Round(self.round, commit_index, gathered.contexts, gathered.remote))

    def confirmed(self, round_number: int) -> list[Round]:
        """The rounds up to this one, each once."""
        done: list[Round] = []
        while self._rounds and self._rounds[0].number <= round_number:
            done.append(self._rounds.popleft())
        return done


class ForwardedReads:
    """Reads that wait for one leader in one term; a change of either drops them."""

    def __init__(self, state: State, random: Random) -> None:
        self._state = state
        self._random = random
        self._life = 0
        self._round = 0
        self._gathered: list[int] = []
        self._waiting: dict[int, list[int]] = {}
        self._ticks = 0

    def add(self, context: int) -> None:
        self._gathered.append(context)

    def drop(self) -> None:
        """Forget the reads: their leader is gone, and its late answers no longer match a round."""
        self._gathered.clear()
        self._waiting.clear()

    def send(self) -> None:
        """Ask for all reads that arrived since the last round."""
        if not self._gathered:
            return
        self._life = self._life or 1 + self._random.getrandbits(62)
        self._round += 1
        self._waiting[self._round] = self._gathered
        self._gathered = []
        self._ticks = 0
        self._ask()

    def tick(self) -> None:
        """Ask again while answers are missing: for the newest round, which answers all."""
        if self._waiting:
            self._ticks += 1
            if self._ticks > self._state.settings.heartbeat_interval_ticks:
                self._ticks = 0
                self._ask()

    def _ask(self) -> None:
        state = self._state
        state.messages.append(
            ReadRequest(state.node_id, state.leader_id, state.term, self._life, self._round)
        )

    def on_reply(self, reply: ReadReply) -> None:
        if reply.life != self._life or reply.round not in self._waiting:
            return
        for number in [number for number in self._waiting if number <= reply.round]:
            for context in self._waiting.pop(number):
                self._state.reads.append(ReadState(context, reply.index))
