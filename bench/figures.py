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


@dataclass(frozen=True)
class LoadFigures:
    """What a measurement by wrk gives. `cpu` is the server's processor time by wrk's requests."""

    rate: Figure
    p50: Figure
    p99: Figure
    p99_9: Figure
    cpu: Figure

    @classmethod
    def of(cls, name: str, title: str) -> LoadFigures:
        """The figures of the measurement with this name."""
        return cls(
            Figure(f"{name}.rate", title, "1/s"),
            _costs(f"{name}.p50", f"{title}: p50", "ms"),
            _costs(f"{name}.p99", f"{title}: p99", "ms"),
            _costs(f"{name}.p99.9", f"{title}: p99.9", "ms"),
            _costs(f"{name}.cpu", f"{title}: processor time of each", "µs"),
        )

    @property
    def all(self) -> tuple[Figure, ...]:
        return (self.rate, self.p50, self.p99, self.p99_9, self.cpu)


@dataclass(frozen=True)
class FanOutFigures:
    """What messages to many give. `cpu` is the server's processor time by deliveries."""

    p50: Figure
    p99: Figure
    cpu: Figure

    @classmethod
    def of(cls, name: str, title: str) -> FanOutFigures:
        """The figures of the measurement with this name."""
        return cls(
            _costs(f"{name}.p50", f"{title}: p50", "ms"),
            _costs(f"{name}.p99", f"{title}: p99", "ms"),
            _costs(f"{name}.cpu", f"{title}: processor time of each delivery", "µs"),
        )

    @property
    def all(self) -> tuple[Figure, ...]:
        return (self.p50, self.p99, self.cpu)


def _costs(key: str, title: str, unit: str) -> Figure:
    return Figure(key, title, unit, lower_is_better=True)


APPEND_1 = LoadFigures.of("append-1", "append 100 B, 1 connection")
APPEND_64 = LoadFigures.of("append-64", "append 100 B, one stream, 64 connections")
APPEND_500 = LoadFigures.of("append-500-streams", "append 256 B over 500 streams, 64 connections")
CREATE = LoadFigures.of("create", "create a stream, 64 connections")
SMALL_READ = LoadFigures.of("small-read", "read a stream of 100 B, 64 connections")
CATCH_UP_RATE = Figure("catch-up.rate", "catch up on 10 MB, 1 connection", "MB/s")
SSE_100 = FanOutFigures.of("sse-100", "SSE to 100 subscribers")
SSE_1000 = FanOutFigures.of("sse-1000", "SSE to 1000 subscribers")
IDLE_COUNT = Figure("idle-streams.count", "idle streams created", "streams", comparable=False)
IDLE_START = _costs("idle-streams.start", "start with them, to the first 200", "s")
IDLE_MEMORY = _costs("idle-streams.memory", "resident memory with them", "MB")
APPEND_1_LOADED = LoadFigures.of("append-1-loaded", "loaded node: append 100 B, 1 connection")
APPEND_64_LOADED = LoadFigures.of(
    "append-64-loaded", "loaded node: append 100 B, one stream, 64 connections"
)

ALL = (
    *APPEND_1.all,
    *APPEND_64.all,
    *APPEND_500.all,
    *CREATE.all,
    *SMALL_READ.all,
    CATCH_UP_RATE,
    *SSE_100.all,
    *SSE_1000.all,
    IDLE_COUNT,
    IDLE_START,
    IDLE_MEMORY,
    *APPEND_1_LOADED.all,
    *APPEND_64_LOADED.all,
)
"""In the order of the table's rows."""


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of them do not exceed (nearest rank)."""
    if not values:
        raise ValueError("no values")
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]
