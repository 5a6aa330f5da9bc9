"""`python -m bench.crowd`: a good client beside ten thousand connections of a hostile one.

The good client appends two hundred times a second on one connection, and connects again now and
then. The hostile one comes from another address with a token of its own. It holds its connections
in each way of `bench.flood`, first without limits and then with them: a hundred connections and
appends a second for its token, and two thirds of the node's connections for its address.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from bench.client import Client
from bench.errors import RunFailed
from bench.lines import print_table
from bench.machine import Cores, allow_many_files, pinned
from bench.secured import BINARY, Secured, flooded, fresh, running

_DATA_DIR = Path(__file__).parents[1] / "build" / "bench-crowd"
_GOOD, _HOSTILE = "/v1/stream/good/s", "/v1/stream/hostile/s"
_PACE_S = 0.005
_APPENDS_EACH = 50
_BEHAVIOURS = {
    "idle": "connections without a request",
    "half": "half a request on each",
    "ask": "appends on each, the next when one is answered",
    "pipeline": "appends on each, without waiting",
}


class Sample(NamedTuple):
    """Latencies of a good client's appends, connecting included, and how many were not served."""

    latencies_ms: list[float]
    failed: int
    cpu_share: float
    """The processor time of the server, in cores."""

    def percentile(self, percent: float) -> float:
        ordered = sorted(self.latencies_ms) or [float("nan")]
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def sample(server: Secured, token: str, duration_s: float) -> Sample:
    latencies, failed = [], 0
    started = time.monotonic()
    before_s = server.process.cpu_s()
    while time.monotonic() < started + duration_s:
        try:
            with Client(server.port, timeout_s=10.0, token=token) as client:
                for _ in range(_APPENDS_EACH):
                    began = time.monotonic()
                    client.expect("POST", _GOOD, 204, content_type=BINARY, body=b"x" * 100)
                    latencies.append((time.monotonic() - began) * 1000)
                    time.sleep(_PACE_S)
        except (OSError, RunFailed):
            failed += 1
            time.sleep(_PACE_S)
    elapsed_s = time.monotonic() - started
    return Sample(latencies, failed, (server.process.cpu_s() - before_s) / elapsed_s)


def row(name: str, limits: str, found: Sample) -> str:
    p50, p99 = found.percentile(50), found.percentile(99)
    return (
        f"| {name} | {limits} | {p50:.1f} ms | {p99:.1f} ms | {found.failed} | "
        f"{found.cpu_share:.2f} |"
    )


def measure(connections: int, duration_s: float) -> Iterator[str]:
    """The lines of the table."""
    yield f"| {connections:,} hostile connections | limits | p50 | p99 | not served | cores |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    cores = Cores.choose()
    for limited in (False, True):
        words = "with" if limited else "without"
        settings = "" if limited else "max_connections_per_address = 15000"
        with running(fresh(_DATA_DIR), cores.server, settings=settings) as server:
            for path in (_GOOD, _HOSTILE):
                server.make_stream(path)
            good = server.make_token("good", ["append:good/*"])
            hostile = server.make_token("hostile", ["append:hostile/*"])
            if limited:
                server.limit("identities", "hostile", connections=100, requests_per_s=100)
            with pinned(cores.load):
                sample(server, good, 1.0)  # warm-up
                yield row("nobody else", words, sample(server, good, duration_s))
                for behaviour, name in _BEHAVIOURS.items():
                    with flooded(
                        server, cores, behaviour,
                        target=_HOSTILE, connections=connections, token=hostile,
                    ):  # fmt: skip
                        found = sample(server, good, duration_s)
                    yield row(name, words, found)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--connections", default=10_000, show_default=True)
@click.option("--duration-s", default=5.0, show_default=True)
def main(connections: int, duration_s: float) -> None:
    """Measure a good client's appends beside a hostile client with many connections."""
    allow_many_files()
    print_table(measure(connections, duration_s), _DATA_DIR)


if __name__ == "__main__":
    main()
