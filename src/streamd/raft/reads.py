"""ReadIndex: linearizable reads without a log entry (thesis 6.4)."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


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

    def __bool__(self) -> bool:
        return bool(self.contexts or self.remote)


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
        self._gathered = _Gathered()
        self._rounds: deque[Round] = deque()

    def add(self, context: int) -> None:
        self._gathered.contexts.append(context)

    def add_remote(self, node_id: int, read: RemoteRead) -> None:
        self._gathered.remote[node_id] = read

    def begin_round(self, commit_index: int) -> bool:
        """Whether there is a round that needs heartbeats."""
        if not self._gathered:
            return False
        self.round += 1
        gathered, self._gathered = self._gathered, _Gathered()
        self._rounds.append(Round(self.round, commit_index, gathered.contexts, gathered.remote))
        return True

    def confirmed(self, round_number: int) -> list[Round]:
        """The rounds up to this one, each once."""
        done: list[Round] = []
        while self._rounds and self._rounds[0].number <= round_number:
            done.append(self._rounds.popleft())
        return done
