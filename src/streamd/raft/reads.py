"""ReadIndex: linearizable reads without a log entry (thesis 6.4)."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class _Round(NamedTuple):
    number: int
    commit_index: int
    contexts: list[int]


class ReadQueue:
    """Reads that wait for a majority to confirm that the leader still leads.

    All reads that came since the last round share the next one.
    """

    def __init__(self) -> None:
        self.round = 0
        self._gathering: list[int] = []
        self._rounds: deque[_Round] = deque()

    def add(self, context: int) -> None:
        self._gathering.append(context)

    def begin_round(self, commit_index: int) -> bool:
        """Whether there is a round to send heartbeats for."""
        if not self._gathering:
            return False
        self.round += 1
        self._rounds.append(_Round(self.round, commit_index, self._gathering))
        self._gathering = []
        return True

    def confirmed(self, round_number: int) -> list[tuple[int, int]]:
        """The (context, commit index) of the reads in rounds up to this one, each once."""
        answers: list[tuple[int, int]] = []
        while self._rounds and self._rounds[0].number <= round_number:
            done = self._rounds.popleft()
            answers += [(context, done.commit_index) for context in done.contexts]
        return answers
