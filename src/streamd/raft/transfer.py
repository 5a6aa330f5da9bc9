"""The transfer of leadership to a chosen voter (thesis 3.10)."""

from __future__ import annotations


class Transfer:
    """Lasts from the request until the target leads, or one election timeout has passed.

    Nothing is proposed meanwhile, so the target catches up. Then it is asked to campaign, again
    with every tick, because the message may be lost.
    """

    __slots__ = ("_ticks_left", "to")

    def __init__(self, to: int, election_timeout_ticks: int) -> None:
        self.to = to
        self._ticks_left = election_timeout_ticks

    def tick(self) -> bool:
        """Whether to keep trying."""
        self._ticks_left -= 1
        return self._ticks_left > 0
