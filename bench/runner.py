"""Runs the measurements in rounds, the servers taking turns."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError, ToolMissing
from bench.machine import Cores
from bench.measurements import Measurement
from bench.results import Results, Values
from bench.servers import Server
from bench.trial import Trial


@dataclass(frozen=True)
class Plan:
    """What to run, and how long."""

    measurements: Sequence[Measurement]
    servers: Sequence[Server]
    rounds: int
    duration_s: float
    idle_streams: int
    live_streams: int
    readers: int
    data_dir: Path
    """Below it each trial gets a directory, which is removed after it."""
    cores: Cores


def turns(servers: Sequence[Server], round_index: int) -> list[Server]:
    """The servers in the order of a round: each begins in turn, so that none is always first."""
    first = round_index % len(servers)
    return [*servers[first:], *servers[:first]]


def run(plan: Plan, say: Callable[[str], None]) -> Results:
    """Run everything; a trial that fails costs its own figures only.

    `say` is told of each trial. Raises `ToolMissing`.
    """
    results = Results()
    for round_index in range(plan.rounds):
        for measurement in plan.measurements:
            for server in turns(plan.servers, round_index):
                label = f"round {round_index + 1}/{plan.rounds} {measurement.name} {server.name}"
                started = time.monotonic()
                try:
                    values = _try(plan, measurement, server, results)
                except ToolMissing:
                    raise
                except (BenchError, OSError) as error:
                    results.fail(server.name, measurement.figures, f"{label}: {error}")
                    say(f"{label}: FAILED: {error}")
                    continue
                results.add(server.name, values)
                say(f"{label}: {_brief(values)} [{time.monotonic() - started:.1f} s]")
    return results


def _try(plan: Plan, measurement: Measurement, server: Server, results: Results) -> Values:
    plan.data_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trial-", dir=plan.data_dir) as own:
        return measurement.run(
            Trial(
                server=server,
                cores=plan.cores,
                data_dir=Path(own),
                duration_s=plan.duration_s,
                idle_streams=plan.idle_streams,
                live_streams=plan.live_streams,
                readers=plan.readers,
                results=results,
            )
        )


def _brief(values: Values) -> str:
    return ", ".join(
        f"{figure.key.partition('.')[2]} {value:,.3f} {figure.unit}"
        for figure, value in values.items()
    )
