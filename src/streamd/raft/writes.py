"""Readies that are being stored: what waits for them, and how long the disk has taken."""

from __future__ import annotations

from collections import deque

from streamd.raft.interface import Ready
from streamd.raft.messages import HardState, Message


class Write:
    """One Ready under way, and later messages that must not overtake it."""

    __slots__ = ("completion", "hard_state", "held", "with_entries")

    def __init__(self, ready: Ready, hard_state: HardState) -> None:
        self.completion = ready.completion
        self.hard_state = hard_state
        self.with_entries = bool(ready.entries)
        self.held: list[Message] = []


class Writes:
    """Writes in the order in which they were handed out, which is the order in which they end."""

    def __init__(self, stall_ticks: int) -> None:
        self._under_way: deque[Write] = deque()
        self._stall_ticks = stall_ticks
        self._ticks = 0

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def have_stalled(self) -> bool:
        """Whether the disk has been busy with the oldest write for an election timeout."""
        return self._ticks >= self._stall_ticks

    @property
    def include_entries(self) -> bool:
        return any(write.with_entries for write in self._under_way)

    def tick(self) -> None:
        if self._under_way:
            self._ticks += 1

    def begin(self, ready: Ready, hard_state: HardState) -> None:
        self._under_way.append(Write(ready, hard_state))

    def end(self, completion: tuple[int, int]) -> Write:
        """Raises `ValueError` for anything but the completion of the oldest write."""
        expected = self._under_way[0].completion if self._under_way else None
        if expected != completion:
            raise ValueError(f"expected {expected} to be stored, not {completion}")
        self._ticks = 0
        return self._under_way.popleft()

    def hold(self, messages: list[Message]) -> bool:
        """Keep messages until the last write under way has ended; False if there is none."""
        if self._under_way:
            self._under_way[-1].held += messages
        return bool(self._under_way)
