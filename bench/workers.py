"""`python -m bench.workers`: what more processes for the clients gain on the same cores.

One process and N workers take turns under the same load, on the same machine, with nothing pinned.
wrk has its share of the same cores.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click

from bench import wrk
from bench.client import Client
from bench.lines import print_table
from bench.process import ServerProcess, free_port
from bench.servers import Streamd

_DATA_DIR = Path(__file__).parents[1] / "build" / "bench-workers"
_TARGET = "/v1/stream/bench"
_READ_TARGET = "/v1/stream/read"
_STREAMS = 500
_CONTENT_TYPE = "application/octet-stream"


class Load(NamedTuple):
    """What 64 connections do; the bar is the least ratio to one process, if there is one."""

    name: str
    target: str
    script: str = wrk.GET
    arguments: tuple[object, ...] = ()
    bar: str = "–"


LOADS = (
    Load("append 100 B to one stream", _TARGET, "append.lua", (100,), "≥ 1.5×"),
    Load(
        f"append 256 B over {_STREAMS} streams",
        "/",
        "append_across.lua",
        (f"{_TARGET}-", _STREAMS, 256),
    ),
    Load("read a stream of 100 B", f"{_READ_TARGET}?offset=-1"),
)


@contextmanager
def running(workers: int, data_dir: Path) -> Iterator[ServerProcess]:
    """A server with so many workers, and the streams of the loads."""
    data_dir.mkdir(parents=True)
    port = free_port()
    command = [*Streamd().command(port, data_dir / "data"), "--workers", str(workers)]
    server = ServerProcess(command, port=port, core=None, log=data_dir / "log")
    try:
        server.wait_until_answering(_TARGET, accept_missing=True)
        with Client(port) as client:
            names = [_TARGET, *(f"{_TARGET}-{number}" for number in range(1, _STREAMS + 1))]
            for name in names:
                client.expect("PUT", name, 201, content_type=_CONTENT_TYPE)
            client.expect("PUT", _READ_TARGET, 201, content_type=_CONTENT_TYPE, body=b"x" * 100)
        yield server
    finally:
        server.stop()


def rate_per_s(server: ServerProcess, load: Load, duration_s: float) -> float:
    return wrk.load(
        f"http://127.0.0.1:{server.port}{load.target}",
        connections=64,
        duration_s=duration_s,
        core=None,
        script=load.script,
        arguments=load.arguments,
    ).rate_per_s


def compare(workers: int, rounds: int, duration_s: float) -> Iterator[str]:
    """The lines of the table; progress goes to standard error."""
    yield f"| 64 connections | one process | {workers} workers | ratio | bar |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    with running(1, _DATA_DIR / "one") as one, running(workers, _DATA_DIR / "several") as several:
        for load in LOADS:
            rates: dict[ServerProcess, list[float]] = {one: [], several: []}
            for server in rates:
                rate_per_s(server, load, 1.0)  # warm-up
            for number in range(rounds):
                for server, measured in rates.items():
                    measured.append(rate_per_s(server, load, duration_s))
                    name = "one process" if server is one else f"{workers} workers"
                    click.echo(f"round {number + 1}, {name}: {measured[-1]:,.0f}/s", err=True)
            first, second = map(statistics.median, rates.values())
            ratio = f"{second / first:.2f}×"
            yield f"| {load.name} | {first:,.0f}/s | {second:,.0f}/s | {ratio} | {load.bar} |"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--workers", default=2, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--duration-s", default=5.0, show_default=True)
def main(workers: int, rounds: int, duration_s: float) -> None:
    """Measure a node with workers beside one without."""
    wrk.require()
    shutil.rmtree(_DATA_DIR, ignore_errors=True)
    print_table(compare(workers, rounds, duration_s), _DATA_DIR)


if __name__ == "__main__":
    main()
