"""Counts of observations by upper bound, and of those lately."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from prometheus_client.core import HistogramMetricFamily

_HOUR_MINUTES = 60


class Histogram:
    """Counts observations by upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count so many observations of a value."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add what another histogram with these bounds has counted."""
        self.counts = [mine + more for mine, more in zip(self.counts, counts, strict=True)]
        self.total += total

    def take(self) -> tuple[list[int], float]:
        """The counts and the total so far, which begin again at 0."""
        taken = self.counts, self.total
        self.counts, self.total = [0] * len(self.counts), 0.0
        return taken

    def within(self, counts: Sequence[int], share: float) -> float | None:
        """The bound to which this share of so many observations kept; None if it is above all
        bounds. There must be an observation."""
        wanted, below = share * sum(counts), 0
        for bound, count in zip(self.bounds, counts, strict=False):
            below += count
            if below >= wanted:
                return bound
        return None

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        buckets: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            below += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), below))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self.total)


class RecentCounts:
    """What a histogram has counted lately: its counts are noted once a minute, and kept for an
    hour. So a minute more or less is in what it says."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._noted: deque[list[int]] = deque([list(histogram.counts)], maxlen=_HOUR_MINUTES + 1)

    def note(self) -> None:
        """Call it once a minute."""
        self._noted.append(list(self._histogram.counts))

    def since(self, minutes: int) -> list[int]:
        """Counts of the last minutes and the one that has begun, or since the start."""
        before = self._noted[max(0, len(self._noted) - 1 - minutes)]
        return [now - then for now, then in zip(self._histogram.counts, before, strict=True)]
