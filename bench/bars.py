"""The figures to reach, and whether they were reached."""

from __future__ import annotations

from dataclasses import dataclass

from bench import figures
from bench.figures import Figure
from bench.results import Results

OURS = "streamd"
_MEMORY = "node-memory"
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
        sign = "≤" if self.figure.lower_is_better else "≥"
        against = self.figure.unit if self.peer is None else f"× {self.peer}"
        return f"{sign} {self.limit:g} {against}"


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
        if self.bar.figure.lower_is_better:
            return self.measured <= self.bar.limit
        return self.measured >= self.bar.limit


BARS = (
    Bar("append, 64 connections, processor time", figures.APPEND_64.cpu, 1.4, _RUST),
    Bar("append, 64 connections, processor time", figures.APPEND_64.cpu, 27),
    Bar("append, 64 connections, p99", figures.APPEND_64.p99, 2, _RUST),
    Bar("append, 64 connections, p99", figures.APPEND_64.p99, 8),
    Bar("append, 64 connections, p99.9", figures.APPEND_64.p99_9, 25),
    Bar("append over 500 streams, processor time", figures.APPEND_500.cpu, 1.6, _RUST),
    Bar("append, 1 connection, processor time", figures.APPEND_1.cpu, 1.8, _RUST),
    Bar("append, 1 connection, p50", figures.APPEND_1.p50, 1.5, _RUST),
    Bar("small read", figures.SMALL_READ.rate, 2, _MEMORY),
    Bar("small read", figures.SMALL_READ.rate, 0.7, _RUST),
    Bar("create", figures.CREATE.rate, 1.2, _MEMORY),
    Bar("create", figures.CREATE.rate, 3, _RUST),
    Bar("SSE to 1000 subscribers, p99", figures.SSE_1000.p99, 0.12, _MEMORY),
    Bar("SSE to 1000 subscribers, p99", figures.SSE_1000.p99, 1, _RUST),
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
