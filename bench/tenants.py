"""`python -m bench.tenants`: what a noisy tenant at its limit costs the others.

One tenant may append a hundred times a second and tries to append far more often, in each way of
`bench.flood`. The others, 32 connections, append as fast as they can: alone, beside the noisy one,
alone again, and so on. Server and load have a core each, and the noisy client's share of the load's
core is shown: where it is large, the others' rate says more about that core than about the server.
So the table also has the server's processor time for each append of the others, with all that the
noisy one costs counted in.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import click

from bench import wrk
from bench.lines import print_table
from bench.machine import Cores, allow_many_files
from bench.secured import Flood, Secured, flooded, fresh, running

_DATA_DIR = Path(__file__).parents[1] / "build" / "bench-tenants"
_GOOD, _NOISY = "/v1/stream/good/s", "/v1/stream/noisy/s"
_CONNECTIONS = 32
LIMIT_PER_S = 100
_BAR = 0.10


class Noise(NamedTuple):
    """What the noisy tenant does, on how many connections, and whether it has a limit; `settings`
    are the server's."""

    name: str
    behaviour: str
    connections: int
    limited: bool = True
    settings: str = ""


NOISES = (
    Noise("asks again at once, 64 connections", "ask", 64),
    Noise("asks again at once, 1,000 connections", "ask", 1000),
    Noise("sends without waiting, 64 connections", "pipeline", 64),
    Noise("connects for each request, and leaves", "churn", 64),
    Noise(
        "the same, 100 new connections/s of an address",
        "churn",
        64,
        settings="max_new_connections_per_address_per_s = 100",
    ),
    Noise("asks again at once, 64 connections, no limit", "ask", 64, limited=False),
)


class Sample(NamedTuple):
    """The others' appends in one run, and what they cost the server."""

    rate_per_s: float
    cpu_us: float
    served_per_s: float = 0.0
    refused_per_s: float = 0.0
    load_share: float = 0.0


class Tenants:
    """A server, and the tokens of both sides."""

    def __init__(self, server: Secured, cores: Cores, duration_s: float) -> None:
        self._server = server
        self._cores = cores
        self._duration_s = duration_s
        for path in (_GOOD, _NOISY):
            server.make_stream(path)
        self._good = server.make_token("good", ["append:good/*"])
        self._noisy = server.make_token("noisy", ["append:noisy/*"])

    def sample(self, noise: Noise | None) -> Sample:
        """What the others get, with the noise or alone."""
        limits = {"requests_per_s": LIMIT_PER_S, "connections": 10_000}
        self._server.limit(
            "identities", "noisy", **(limits if noise is None or noise.limited else {})
        )
        if noise is None:
            noisy: AbstractContextManager[Flood] = nullcontext(Flood({}, 0.0))
        else:
            noisy = flooded(
                self._server, self._cores, noise.behaviour,
                target=_NOISY, connections=noise.connections, token=self._noisy,
            )  # fmt: skip
        with noisy as flood:
            before = self._server.process.cpu_s()
            result = wrk.load(
                f"http://127.0.0.1:{self._server.port}{_GOOD}",
                connections=_CONNECTIONS,
                duration_s=self._duration_s,
                core=self._cores.load,
                script="append.lua",
                arguments=(100, self._good),
            )
            spent_s = self._server.process.cpu_s() - before
        return Sample(
            result.rate_per_s,
            spent_s / result.requests * 1e6,
            flood.got.get("204", 0) / self._duration_s,
            flood.got.get("429", 0) / self._duration_s,
            flood.cpu_s / self._duration_s,
        )

    def compare(self, noise: Noise, rounds: int) -> str:
        """A line of the table; progress goes to standard error."""
        alone, beside = [], []
        for number in range(rounds):
            alone.append(self.sample(None))
            beside.append(self.sample(noise))
            click.echo(f"{noise.name}, round {number + 1}: {alone[-1]} {beside[-1]}", err=True)
        rates = [statistics.median(one.rate_per_s for one in each) for each in (alone, beside)]
        times = [statistics.median(one.cpu_us for one in each) for each in (alone, beside)]
        got = [
            statistics.median(getattr(one, name) for one in beside)
            for name in ("served_per_s", "refused_per_s", "load_share")
        ]
        return (
            f"| {noise.name} | {got[0]:,.0f}/s | {got[1]:,.0f}/s | {rates[0]:,.0f}/s | "
            f"{rates[1]:,.0f}/s ({rates[1] / rates[0] - 1:+.0%}) | {times[0]:.1f} µs | "
            f"{times[1]:.1f} µs ({times[1] / times[0] - 1:+.0%}) | {got[2]:.0%} |"
        )


def measure(rounds: int, duration_s: float) -> Iterator[str]:
    """The lines of the table."""
    yield ("| the noisy tenant | served | refused | others alone | beside it | server's time "
           "for their append | beside it | its share of the load's core |")  # fmt: skip
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    cores = Cores.choose()
    for noise in NOISES:
        with running(fresh(_DATA_DIR), cores.server, settings=noise.settings) as server:
            tenants = Tenants(server, cores, duration_s)
            tenants.sample(None)  # warm-up
            yield tenants.compare(noise, rounds)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=3, show_default=True)
@click.option("--duration-s", default=4.0, show_default=True)
def main(rounds: int, duration_s: float) -> None:
    """Measure tenants beside a noisy one; the bar is 10 % of their rate while that has a limit."""
    wrk.require()
    allow_many_files()
    print_table(measure(rounds, duration_s), _DATA_DIR)


if __name__ == "__main__":
    main()
