"""A load of wrk on one server, and the figures that it gives."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from bench import wrk
from bench.client import Client
from bench.errors import RunFailed
from bench.figures import LoadFigures
from bench.process import ServerProcess, Spent
from bench.results import Values
from bench.trial import Trial

_CONNECTIONS = 64
_WARM_UP_S = 1.0


@dataclass(frozen=True)
class Load:
    """What wrk does: the same in the warm-up and in the run."""

    target: str
    connections: int = _CONNECTIONS
    script: str = wrk.GET
    arguments: tuple[object, ...] = ()

    def warm_up(self, trial: Trial, server: ServerProcess) -> None:
        # On a slow disk it may be too short for any answer; the run itself decides.
        with suppress(RunFailed):
            self._run(trial, server, _WARM_UP_S)

    def measure(self, trial: Trial, server: ServerProcess, figures: LoadFigures) -> Values:
        """Load the server for the trial's duration. Raises `RunFailed` if any request failed."""
        spent = Spent(server)
        result = self._run(trial, server, trial.duration_s)
        used_us = spent.us_each(result.requests)
        return {
            figures.rate: result.rate_per_s,
            figures.p50: result.latency_ms[50.0],
            figures.p99: result.latency_ms[99.0],
            figures.p99_9: result.latency_ms[99.9],
            **trial.processor_time(figures.cpu, used_us),
        }

    def _run(self, trial: Trial, server: ServerProcess, duration_s: float) -> wrk.WrkResult:
        return wrk.load(
            f"http://127.0.0.1:{server.port}{self.target}",
            connections=self.connections,
            duration_s=duration_s,
            core=trial.cores.load,
            script=self.script,
            arguments=self.arguments,
        )


def append_to_one(
    trial: Trial, server: ServerProcess, figures: LoadFigures, *, connections: int
) -> Values:
    """Create a stream and append 100 bytes at a time to it. Raises `RunFailed`."""
    target = trial.target("one")
    load = Load(target, connections, "append.lua", (100,))
    with Client(server.port) as client:
        client.expect("PUT", target, 201, content_type="application/octet-stream")
    load.warm_up(trial, server)
    return load.measure(trial, server, figures)
