"""The figures to reach, and whether they were reached."""

from __future__ import annotations

from dataclasses import dataclass

from bench import figures
from bench.figures import Figure
from bench.results import Results

OURS = "streamd"
_MEMORY = "node-memory"
_FILE = "node-file"
_RUST = "rust"
_IDLE_STREAMS = 100_000


@dataclass(frozen=True)
class Bar:
    """A limit for streamd's figure: relative to a peer's, or absolute without a peer."""

    title: str
    figure: Figure
    limit: float
    peer: str | None = None
    needs_idle_streams: int = 0
    """With fewer streams than these the bar says nothing."""

    def describe(self) -> str:
        if self.peer is None:
            return f"< {self.limit:g} {self.figure.unit}"
        return f"{'≤' if self.figure.lower_is_better else '≥'} {self.limit:g} × {self.peer}"


@dataclass(frozen=True)
class Verdict:
    """A bar with what was measured: a ratio, or a value in the figure's unit; `None`: nothing."""

    bar: Bar
    measured: float | None

    @property
    def met(self) -> bool | None:
        """`None` if it was not measured."""
        if self.measured is None:
            return None
        if self.bar.peer is None:
            return self.measured < self.bar.limit
        if self.bar.figure.lower_is_better:
            return self.measured <= self.bar.limit
        return self.measured >= self.bar.limit


BARS = (
    Bar("append, 64 connections", figures.APPEND_64_RATE, 3, _MEMORY),
    Bar("append, 64 connections", figures.APPEND_64_RATE, 0.9, _RUST),
    Bar("append over 500 streams", figures.APPEND_500_RATE, 2, _MEMORY),
    Bar("append over 500 streams", figures.APPEND_500_RATE, 0.8, _RUST),
    Bar("append, 1 connection, p50", figures.APPEND_1_LATENCY, 0.2, _FILE),
    Bar("append, 1 connection, p50", figures.APPEND_1_LATENCY, 1.5, _RUST),
    Bar("small read", figures.SMALL_READ_RATE, 2, _MEMORY),
    Bar("small read", figures.SMALL_READ_RATE, 0.7, _RUST),
    Bar("create", figures.CREATE_RATE, 1.2, _MEMORY),
    Bar("create", figures.CREATE_RATE, 3, _RUST),
    Bar("SSE to 1000 subscribers, p99", figures.SSE_1000_P99, 0.12, _MEMORY),
    Bar("SSE to 1000 subscribers, p99", figures.SSE_1000_P99, 1, _RUST),
    Bar("catch-up of 10 MB", figures.CATCH_UP_RATE, 1, _RUST),
    Bar(
        "start with 100,000 idle streams",
        figures.IDLE_START,
        2,
        needs_idle_streams=_IDLE_STREAMS,
    ),
    Bar(
        "memory with 100,000 idle streams",
        figures.IDLE_MEMORY,
        300,
        needs_idle_streams=_IDLE_STREAMS,
    ),
)


def evaluate(results: Results) -> list[Verdict]:
    """All bars, including those that were not measured."""
    return [Verdict(bar, _measured(bar, results)) for bar in BARS]


def _measured(bar: Bar, results: Results) -> float | None:
    if bar.needs_idle_streams > (results.value(figures.IDLE_COUNT, OURS) or 0):
        return None
    if bar.peer is None:
        return results.value(bar.figure, OURS)
    return results.ratio(bar.figure, OURS, bar.peer)
