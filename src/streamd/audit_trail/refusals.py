"""Bounds how many refusals are recorded one by one."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

WINDOW_S = 10.0
# In one window: entries of one kind, entries of all kinds, and kinds that are told apart.
MAX_OF_A_KIND = 10
MAX_ENTRIES = 200
MAX_KINDS = 100


class Kind(NamedTuple):
    """What refusals have in common. `OTHERS` stands for the kinds beyond `MAX_KINDS`."""

    status: int | None
    code: str | None
    client: str | None
    who: str | None


OTHERS = Kind(None, None, None, None)


class RefusalLimit:
    """Says which refusals get an entry of their own, and counts the others by kind.

    Times are in s, by any one clock. A window begins with the first refusal after the one before.
    """

    def __init__(self) -> None:
        self._ends = 0.0
        self._recorded: Counter[Kind] = Counter()
        self._more: Counter[Kind] = Counter()

    def admits(self, kind: Kind, now: float) -> bool:
        """Whether a refusal gets an entry of its own."""
        if not self._recorded:
            self._ends = now + WINDOW_S
        is_known = kind in self._recorded
        if not is_known and len(self._recorded) >= MAX_KINDS:
            kind = OTHERS
        elif self._recorded[kind] < MAX_OF_A_KIND and self._recorded.total() < MAX_ENTRIES:
            self._recorded[kind] += 1
            return True
        self._more[kind] += 1
        return False

    @property
    def ends(self) -> float:
        """When the window ends; infinite while there is none."""
        return self._ends if self._recorded else float("inf")

    def end(self) -> list[tuple[Kind, int]]:
        """End the window. Returns the kinds of which refusals got no entry, and how many."""
        more = list(self._more.items())
        self._recorded.clear()
        self._more.clear()
        return more
