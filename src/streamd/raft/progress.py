"""What a leader knows about one follower's log."""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from streamd.raft.messages import NO_LIFE


class Flow(StrEnum):
    """How a leader sends to a follower: one append at a time, pipelined, or a snapshot."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """Where to continue sending, and whether to wait for an answer first.

    While it *probes* the leader looks for the place where the logs agree, with one unanswered
    request at a time. Once the follower has accepted one, the leader *replicates*: it sends
    requests without waiting for answers, limited in number and size. A follower that needs
    entries that the leader's log no longer holds gets a *snapshot*, and meanwhile no requests.
    """

    __slots__ = (
        "_in_flight",
        "_in_flight_bytes",
        "_max_in_flight",
        "_max_in_flight_bytes",
        "answered_round",
        "flow",
        "life",
        "match_index",
        "next_index",
        "probe_unanswered",
        "ticks_since_heard",
        "told_commit_index",
    )

    def __init__(self, next_index: int, max_in_flight: int, max_in_flight_bytes: int) -> None:
        self.match_index = 0
        self.next_index = next_index
        self.flow = Flow.PROBE
        self.probe_unanswered = False
        # A new follower has one election timeout to answer before it counts as gone.
        self.ticks_since_heard = 0
        self.answered_round = 0
        # What the follower last called its process.
        self.life = NO_LIFE
        # The commit index that the follower will have heard of if nothing is lost.
        self.told_commit_index = 0
        # The last index and the size of every unanswered request.
        self._in_flight: deque[tuple[int, int]] = deque()
        self._in_flight_bytes = 0
        self._max_in_flight = max_in_flight
        self._max_in_flight_bytes = max_in_flight_bytes

    @property
    def paused(self) -> bool:
        if self.flow is Flow.REPLICATE:
            return (
                len(self._in_flight) >= self._max_in_flight
                or self._in_flight_bytes >= self._max_in_flight_bytes
            )
        return self.flow is Flow.SNAPSHOT or self.probe_unanswered

    def sent(self, last_index: int, size: int = 0) -> None:
        """Note a request that ends at `last_index` and has `size` bytes of payload."""
        if self.flow is not Flow.REPLICATE:
            self.probe_unanswered = True
        elif last_index >= self.next_index:
            self.next_index = last_index + 1
            self._in_flight.append((last_index, size))
            self._in_flight_bytes += size

    def accepted(self, match_index: int) -> bool:
        """Whether that was news. An old answer never moves anything back."""
        while self._in_flight and self._in_flight[0][0] <= match_index:
            self._in_flight_bytes -= self._in_flight.popleft()[1]
        news = match_index > self.match_index
        self.match_index = max(self.match_index, match_index)
        self.next_index = max(self.next_index, match_index + 1)
        assert self.match_index < self.next_index
        if self.flow is Flow.PROBE:
            self.flow = Flow.REPLICATE
            self.probe_unanswered = False
            self.next_index = self.match_index + 1
            return True
        return news

    def rejected(self, prev_index: int, next_index: int) -> bool:
        """Whether to probe again, at `next_index`. An answer to anything but the last probe, or one
        that the follower's log has since passed, says nothing new."""
        if self.flow is Flow.SNAPSHOT:
            return False
        if self.flow is Flow.REPLICATE:
            if prev_index <= self.match_index:
                return False
            self.probe(self.match_index + 1)
        else:
            if prev_index != self.next_index - 1:
                return False
            self.probe(max(self.match_index + 1, min(next_index, prev_index)))
        return True

    def lost(self, next_index: int) -> None:
        """The follower lost what it confirmed; look again for the place where the logs agree."""
        self.match_index = 0
        self.probe(next_index)

    def probe(self, next_index: int) -> None:
        self.flow = Flow.PROBE
        self.probe_unanswered = False
        self.next_index = next_index
        self._in_flight.clear()
        self._in_flight_bytes = 0

    def await_snapshot(self) -> None:
        self.probe(self.next_index)
        self.flow = Flow.SNAPSHOT

    def snapshot_failed(self) -> None:
        """Wait for the follower's next sign of life, then try again."""
        self.flow = Flow.PROBE
        self.probe_unanswered = True
