"""Whether the cold store answers, as all calls of a node together tell."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import trio

from streamd.objectstore.errors import ColdUnavailable

log = structlog.get_logger("streamd.objectstore")


class StoreHealth:
    """A circuit breaker. Open while the store is away: then one reader at a time is let through, to
    find out whether it is back, and the others fail at once. Whatever call is answered closes it.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._answered_at = -math.inf
        self._away_since: float | None = None
        self._error = ""
        self._probing = False
        # For metrics: attempts that failed and were made again, and times that the store went away.
        self.retries = 0
        self.outages = 0

    @property
    def away_s(self) -> float | None:
        """For how long the store has not answered, in seconds; None while it does."""
        return None if self._away_since is None else trio.current_time() - self._away_since

    def answered(self) -> None:
        """Hear that the store answered, be it with a refusal."""
        self._answered_at = trio.current_time()
        if self._away_since is not None:
            log.info("the cold store answers again", away_s=round(self.away_s or 0.0, 1))
            self._away_since = None

    def gave_up(self, begun_at: float, error: ColdUnavailable) -> None:
        """Hear that a call has failed for good, which began at that time on Trio's clock.

        If the store answered other calls since then, it is not away.
        """
        if self._answered_at > begun_at:
            return
        self._error = str(error)
        if self._away_since is None:
            self._away_since = trio.current_time()
            self.outages += 1
            log.warning("the cold store does not answer", error=self._error)

    @contextmanager
    def admitting(self) -> Iterator[None]:
        """Let a reader ask the store. Raises `ColdUnavailable` while it is known to be away and
        another is asking."""
        if self._away_since is None:
            yield
            return
        if self._probing:
            raise ColdUnavailable(
                f"{self._place} has not answered for {self.away_s:.1f} s: {self._error}"
            )
        self._probing = True
        try:
            yield
        finally:
            self._probing = False
