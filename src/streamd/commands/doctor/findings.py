"""What a check gets, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from streamd.hosts.inspection.facts import NodeFacts


class Level(StrEnum):
    """How good or bad a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(NamedTuple):
    """What a check found, about one `node` or all of them, and what to do: a command if one does
    it."""

    level: Level
    found: str
    node: int | None = None
    cure: str | None = None


class ClockOffset(NamedTuple):
    """How far a node's clock is ahead of that of the node that was asked, give or take
    `error_ms`."""

    offset_ms: float
    error_ms: float


class Examined(NamedTuple):
    """What there is to know, by the ids of nodes. `silent` nodes did not answer, for these reasons;
    those of `too_old` releases did, and have no facts.

    `now_ms` is the time by the clock of the node that was asked. `status` and `cold` are the
    leader's reports of a running cluster, None before a start; `cold` also without a cold store,
    and if it could not be had, for the reason `cold_error`.
    `faults` and `warnings` are those of a configuration.
    """

    nodes: Mapping[int, NodeFacts]
    now_ms: int
    silent: Mapping[int, str] = {}
    too_old: Sequence[int] = ()
    clocks: Mapping[int, ClockOffset] = {}
    status: Mapping[str, Any] | None = None
    cold: Mapping[str, Any] | None = None
    cold_error: str | None = None
    faults: Sequence[str] = ()
    warnings: Sequence[str] = ()


Check = Callable[[Examined], Iterator[Finding]]


def ok(found: str, node: int | None = None) -> Finding:
    """Nothing is to be done."""
    return Finding(Level.OK, found, node)


def warn(found: str, node: int | None = None, cure: str | None = None) -> Finding:
    """It works, and may not for long, or not as it should."""
    return Finding(Level.WARN, found, node, cure)


def fail(found: str, node: int | None = None, cure: str | None = None) -> Finding:
    """It does not work, or loses data."""
    return Finding(Level.FAIL, found, node, cure)


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def span(seconds: float) -> str:
    """A time for people, in its largest unit."""
    for unit, length_s in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
