"""Reads that renew the sliding windows of streams, noted until a sweep proposes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamd.group.proposals import Proposal, Settled
from streamd.streams.commands import Command, Outcome, Touch

# How many renewals that no leader has taken are kept for the next sweep.
_MAX_KEPT = 100_000


class Touches:
    """The latest read of each stream, by key; `now_ms` is the group's log time."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        # (stream id, log time of the read)
        self.noted: dict[bytes, tuple[int, int]] = {}

    def note(self, key: bytes, stream_id: int) -> None:
        """Note a read of a stream with a sliding window."""
        self.noted[key] = (stream_id, self._now_ms())

    def latest_ms(self, key: bytes, stream_id: int) -> int:
        """The latest read of a stream that is not in the log yet, or 0."""
        noted = self.noted.get(key)
        return noted[1] if noted is not None and noted[0] == stream_id else 0

    def take(self) -> Touch:
        """Take all, to be proposed."""
        reads = [(key, *noted) for key, noted in self.noted.items()]
        self.noted = {}
        return Touch(reads)

    def put_back(self, touch: Touch) -> None:
        """Keep what the log did not take for the next sweep. A read renews the window from its own
        time, so a late proposal is soon enough; a later read replaces it."""
        for key, stream_id, at_ms in touch.reads:
            if len(self.noted) >= _MAX_KEPT:
                return
            self.noted.setdefault(key, (stream_id, at_ms))

    def proposal(self) -> Proposal:
        """Take all as a proposal that puts them back if it fails."""
        touch = self.take()

        def tell(settled: Sequence[Settled]) -> None:
            if not isinstance(settled[0], Outcome):
                self.put_back(touch)

        return Proposal([touch], 0, 0.0, tell)


def until_now(command: Command, now_ms: int) -> Command:
    """Limit the times of reads that another node noted to `now_ms`, the leader's log time.

    By a clock an hour ahead, every read would seem to come after the stream's window had passed,
    and would renew nothing.
    """
    if not isinstance(command, Touch):
        return command
    return Touch([(key, stream_id, min(at_ms, now_ms)) for key, stream_id, at_ms in command.reads])
