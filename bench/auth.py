"""`python -m bench.auth`: what the checks of each request cost.

Three servers take turns under the same load: one that requires no tokens; one that does, and has
ten thousand of a hundred scopes each; and that with limits of rates for the sender, which are never
reached. Server and load have a core each. What counts is the server's processor time for an append.
It depends on how many share a log entry, and so on what else the machine does: hence many short
rounds, each compared by itself.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click

from bench import wrk
from bench.lines import print_table
from bench.machine import Cores
from bench.secured import Secured, fresh, running

_DATA_DIR = Path(__file__).parents[1] / "build" / "bench-auth"
_TARGET = "/v1/stream/measured/s"
_CONNECTIONS = 64
_SCOPES = ["append:measured/*", *(f"read:measured/stream-{n}-*" for n in range(99))]
# Never reached, but counted.
_LIMITS = {
    "requests_per_s": 10**9, "bytes_in_per_s": 10**12, "bytes_out_per_s": 10**12,
    "live_readers": 10**6, "connections": 10**6,
}  # fmt: skip
_NAMES = ("no tokens", "tokens", "tokens and limits")


class Sample(NamedTuple):
    """One run of the load."""

    rate_per_s: float
    cpu_us: float
    """The server's processor time for an append."""


def prepare(tokens: int, directory: Path) -> str:
    """Make two data directories with tokens, one of them with limits. Returns a token."""
    with running(directory / _NAMES[1], None) as server:
        server.make_tokens(tokens - 1, 100)
        token = server.make_token("measured", _SCOPES)
        server.make_stream(_TARGET)
    shutil.copytree(directory / _NAMES[1], directory / _NAMES[2])
    return token


def sample(server: Secured, core: int | None, token: str, duration_s: float) -> Sample:
    before = server.process.cpu_s()
    result = wrk.load(
        f"http://127.0.0.1:{server.port}{_TARGET}",
        connections=_CONNECTIONS,
        duration_s=duration_s,
        core=core,
        script="append.lua",
        arguments=(100, token),
    )
    spent_s = server.process.cpu_s() - before
    return Sample(result.rate_per_s, spent_s / result.requests * 1e6)


def measure(tokens: int, rounds: int, duration_s: float) -> dict[str, list[Sample]]:
    """Samples of each server; progress goes to standard error."""
    cores, directory = Cores.choose(), fresh(_DATA_DIR)
    token = prepare(tokens, directory)
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(
                running(
                    directory / name, cores.server, mode="none" if name == _NAMES[0] else "required"
                )
            )
            for name in _NAMES
        }
        servers[_NAMES[0]].make_stream(_TARGET)
        servers[_NAMES[2]].limit("identities", "measured", **_LIMITS)
        found: dict[str, list[Sample]] = {name: [] for name in _NAMES}
        for name in _NAMES:
            sample(servers[name], cores.load, token, 1.0)  # warm-up
        for number in range(rounds):
            # Each goes first in turn.
            for name in (*_NAMES[number % 3 :], *_NAMES[: number % 3]):
                one = sample(servers[name], cores.load, token, duration_s)
                found[name].append(one)
                click.echo(
                    f"round {number + 1}, {name}: {one.rate_per_s:,.0f}/s, {one.cpu_us:.1f} µs",
                    err=True,
                )
    return found


def table(tokens: int, rounds: int, duration_s: float) -> Iterator[str]:
    """Measure; the results are medians, and the quartiles of the rounds' differences."""
    found = measure(tokens, rounds, duration_s)
    yield "| 100 B, 64 connections | appends | processor time | more than without, per round |"
    yield "| --- | ---: | ---: | ---: |"
    base = found[_NAMES[0]]
    for name, samples in found.items():
        rate = statistics.median(one.rate_per_s for one in samples)
        cpu_us = statistics.median(one.cpu_us for one in samples)
        more = [one.cpu_us / other.cpu_us - 1 for one, other in zip(samples, base, strict=True)]
        least, median, most = statistics.quantiles(more, n=4)
        spread = f"{median:+.1%} (half of them {least:+.1%} to {most:+.1%})"
        yield f"| {name} | {rate:,.0f}/s | {cpu_us:.1f} µs | {'–' if samples is base else spread} |"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--tokens", default=10_000, show_default=True)
@click.option("--rounds", default=40, show_default=True)
@click.option("--duration-s", default=1.0, show_default=True)
def main(tokens: int, rounds: int, duration_s: float) -> None:
    """Measure what tokens and limits cost an append."""
    wrk.require()
    print_table(table(tokens, rounds, duration_s), _DATA_DIR)


if __name__ == "__main__":
    main()
