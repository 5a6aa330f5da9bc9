"""The figures: what each is called, its unit, and which way is better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One row of the table."""

    key: str
    title: str
    unit: str
    lower_is_better: bool = False
    comparable: bool = True
    """Whether a ratio between two servers says anything."""


APPEND_1_LATENCY = Figure(
    "append-1.p50", "append 100 B, 1 connection: p50", "ms", lower_is_better=True
)
APPEND_1_RATE = Figure("append-1.rate", "append 100 B, 1 connection", "1/s")
APPEND_64_RATE = Figure("append-64.rate", "append 100 B, one stream, 64 connections", "1/s")
APPEND_500_RATE = Figure(
    "append-500-streams.rate", "append 256 B over 500 streams, 64 connections", "1/s"
)
CREATE_RATE = Figure("create.rate", "create a stream, 64 connections", "1/s")
SMALL_READ_RATE = Figure("small-read.rate", "read a stream of 100 B, 64 connections", "1/s")
CATCH_UP_RATE = Figure("catch-up.rate", "catch up on 10 MB, 1 connection", "MB/s")
SSE_100_P50 = Figure("sse-100.p50", "SSE to 100 subscribers: p50", "ms", lower_is_better=True)
SSE_100_P99 = Figure("sse-100.p99", "SSE to 100 subscribers: p99", "ms", lower_is_better=True)
SSE_1000_P50 = Figure("sse-1000.p50", "SSE to 1000 subscribers: p50", "ms", lower_is_better=True)
SSE_1000_P99 = Figure("sse-1000.p99", "SSE to 1000 subscribers: p99", "ms", lower_is_better=True)
IDLE_COUNT = Figure("idle-streams.count", "idle streams created", "streams", comparable=False)
IDLE_START = Figure(
    "idle-streams.start", "start with them, to the first 200", "s", lower_is_better=True
)
IDLE_MEMORY = Figure("idle-streams.memory", "resident memory with them", "MB", lower_is_better=True)

ALL = (
    APPEND_1_LATENCY,
    APPEND_1_RATE,
    APPEND_64_RATE,
    APPEND_500_RATE,
    CREATE_RATE,
    SMALL_READ_RATE,
    CATCH_UP_RATE,
    SSE_100_P50,
    SSE_100_P99,
    SSE_1000_P50,
    SSE_1000_P99,
    IDLE_COUNT,
    IDLE_START,
    IDLE_MEMORY,
)
"""In the order of the table's rows."""


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of them do not exceed (nearest rank)."""
    if not values:
        raise ValueError("no values")
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]
