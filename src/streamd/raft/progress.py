"""What a leader knows of one follower's log."""

from __future__ import annotations

from collections import deque


class Progress:
    """Where to continue sending, and whether to wait for an answer first.

    While *probing* the leader looks for the place where the logs agree and has one request
    unanswered at a time. Once the follower accepted one, it *replicates*: requests follow each
    other without waiting, a bounded number of them unanswered.
    """

    __slots__ = (
        "_in_flight",
        "_max_in_flight",
        "answered_round",
        "heard",
        "match_index",
        "next_index",
        "probe_unanswered",
        "replicating",
    )

    def __init__(self, next_index: int, max_in_flight: int) -> None:
        self.match_index = 0
        self.next_index = next_index
        self.replicating = False
        self.probe_unanswered = False
        # Whether the follower said anything since the leader last counted who does.
        self.heard = False
        self.answered_round = 0
        # The last index of every request sent and not answered.
        self._in_flight: deque[int] = deque()
        self._max_in_flight = max_in_flight

    @property
    def paused(self) -> bool:
        if self.replicating:
            return len(self._in_flight) >= self._max_in_flight
        return self.probe_unanswered

    def sent(self, last_index: int) -> None:
        """A request left that ends at `last_index`."""
        if not self.replicating:
            self.probe_unanswered = True
        elif last_index >= self.next_index:
            self.next_index = last_index + 1
            self._in_flight.append(last_index)

    def accepted(self, match_index: int) -> bool:
        """Whether that was news. An old answer never moves anything back."""
        while self._in_flight and self._in_flight[0] <= match_index:
            self._in_flight.popleft()
        news = match_index > self.match_index
        self.match_index = max(self.match_index, match_index)
        self.next_index = max(self.next_index, match_index + 1)
        if not self.replicating:
            self.replicating = True
            self.probe_unanswered = False
            self.next_index = self.match_index + 1
            return True
        return news

    def rejected(self, prev_index: int, next_index: int) -> bool:
        """Whether to probe again, at `next_index`. An answer to anything but the last probe, or
        one that the follower has overtaken, says nothing new."""
        if self.replicating:
            if prev_index <= self.match_index:
                return False
            self.replicating = False
            self._in_flight.clear()
            self.next_index = self.match_index + 1
        elif prev_index != self.next_index - 1:
            return False
        else:
            self.next_index = max(self.match_index + 1, min(next_index, prev_index))
        self.probe_unanswered = False
        return True

    def make_room(self) -> None:
        """Let one more request go although others are unanswered: they may be lost."""
        self.probe_unanswered = False
        if self.replicating and self.paused:
            self._in_flight.popleft()
