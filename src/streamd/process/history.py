"""What a node did in the last hour: a row of numbers every few seconds, for the console's charts.

The rows are in a ring of fixed size. Rates and latencies are those of the time since the row
before, so that a reader need not know when counters began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Protocol

from streamd.process.histograms import Histogram

INTERVAL_S = 5.0
_ROWS = int(3600 / INTERVAL_S)

# Gauges that a row takes over; a node without a cold store lacks some.
_GAUGES = (
    "raft_term",
    "raft_role",
    "raft_commit_index",
    "streams",
    "http_connections",
    "disk_free_bytes",
    "cold_hot_bytes",
    "archive_lag_seconds",
)
_WRITES = frozenset(("stream", "batch"))
COLUMNS = (
    "at_ms",
    "writes_per_s",
    "reads_per_s",
    "errors_per_s",
    "in_bytes_per_s",
    "out_bytes_per_s",
    "append_p50_ms",
    "append_p99_ms",
    "fsync_p50_ms",
    "fsync_p99_ms",
    "loop_lag_p99_ms",
    *_GAUGES,
)

Row = tuple[float | None, ...]


class Counts(Protocol):
    """What a node has counted since its start (`Metrics`)."""

    requests: dict[tuple[str, str, int], int]
    append_latency: Histogram
    fsync_latency: Histogram
    loop_lag: Histogram
    bytes_in: int
    bytes_out: int
    gauges: dict[str, tuple[str, Callable[[], float]]]


class LastHour:
    """The rows of the last hour, each with a value for each of `COLUMNS`: None where nothing was
    measured, such as the latency of appends when there were none. Times are in ms of wall time."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque(maxlen=_ROWS)
        self._before: _Counters | None = None

    def note(self, metrics: Counts, at_ms: int, now_s: float) -> None:
        """Add a row, from the second call on; `now_s` is a time that never goes back."""
        counters, before = _Counters(metrics, now_s), self._before
        self._before = counters
        if before is not None and now_s > before.now_s:
            gauges = (_value(metrics, name) for name in _GAUGES)
            self._rows.append((at_ms, *counters.since(before), *gauges))

    def after(self, at_ms: int) -> dict[str, object]:
        """The rows after a time, by columns."""
        skipped = sum(1 for row in self._rows if (row[0] or 0) <= at_ms)
        rows = list(islice(self._rows, skipped, None))
        columns = {name: [row[at] for row in rows] for at, name in enumerate(COLUMNS)}
        return {"interval_ms": round(INTERVAL_S * 1000), "columns": columns}


class _Counters:
    """What had been counted at a moment."""

    def __init__(self, metrics: Counts, now_s: float) -> None:
        self.now_s = now_s
        self.writes, self.reads, self.errors = _requests(metrics.requests)
        self.bytes_in, self.bytes_out = metrics.bytes_in, metrics.bytes_out
        self._histograms = (metrics.append_latency, metrics.fsync_latency, metrics.loop_lag)
        self._counts = [list(histogram.counts) for histogram in self._histograms]

    def since(self, before: _Counters) -> tuple[float | None, ...]:
        """The columns from `writes_per_s` to `loop_lag_p99_ms`."""
        passed_s = self.now_s - before.now_s
        appends, fsyncs, lags = (
            [now - then for now, then in zip(counts, earlier, strict=True)]
            for counts, earlier in zip(self._counts, before._counts, strict=True)
        )
        append, fsync, lag = self._histograms
        return (
            (self.writes - before.writes) / passed_s,
            (self.reads - before.reads) / passed_s,
            (self.errors - before.errors) / passed_s,
            (self.bytes_in - before.bytes_in) / passed_s,
            (self.bytes_out - before.bytes_out) / passed_s,
            quantile_ms(append, appends, 0.5),
            quantile_ms(append, appends, 0.99),
            quantile_ms(fsync, fsyncs, 0.5),
            quantile_ms(fsync, fsyncs, 0.99),
            quantile_ms(lag, lags, 0.99),
        )


def quantile_ms(histogram: Histogram, counts: Sequence[int], share: float) -> float | None:
    """The value in ms that this share of the observations in `counts` does not exceed, between the
    bounds of its interval by proportion; None without observations."""
    wanted = share * sum(counts)
    if wanted <= 0:
        return None
    below, low = 0, 0.0
    for bound, count in zip(histogram.bounds, counts, strict=False):
        if count and below + count >= wanted:
            return 1000 * (low + (bound - low) * (wanted - below) / count)
        below, low = below + count, bound
    return 1000 * low


def _requests(counted: Mapping[tuple[str, str, int], int]) -> tuple[int, int, int]:
    """Writes to streams, reads of them, and answers that say that the server failed."""
    writes = reads = errors = 0
    for (label, method, status), count in counted.items():
        if status >= 500:
            errors += count
        elif label in _WRITES and method in ("POST", "PUT"):
            writes += count
        elif label == "stream" and method == "GET":
            reads += count
    return writes, reads, errors


def _value(metrics: Counts, name: str) -> float | None:
    found = metrics.gauges.get(name)
    return None if found is None else float(found[1]())
