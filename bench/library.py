"""`python -m bench.library`: how fast the Python library appends, beside httpx alone.

Single appends alternate with the same requests by `httpx.Client`, in short turns, so that other
work on the machine slows both; the figure is the median of the turns' ratios. The import's is the
least processor time of several processes that do nothing else.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import click
import httpx

from bench.lines import Line, own_directory, report
from bench.process import ServerProcess, free_port
from bench.servers import Streamd
from streamd.client import AsyncClient, Client

_DATA_DIR = Path(__file__).parents[1] / "build" / "bench"
_RECORD = b"x" * 100
_TURNS = 21
_APPENDS_PER_TURN = 200
_APPENDS = 200_000
_IMPORTS = 11


@contextmanager
def _serving(directory: Path) -> Iterator[str]:
    port = free_port()
    command = Streamd().command(port, directory / "data")
    server = ServerProcess(command, port=port, core=None, log=directory / "log")
    try:
        server.wait_until_answering("/healthz", accept_missing=True)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()


def _rate(append: Callable[[], object], count: int) -> float:
    """Appends per second, one after the other."""
    started = time.perf_counter()
    for _ in range(count):
        append()
    return count / (time.perf_counter() - started)


def _processor_ms(program: str) -> float:
    """What a Python process costs that runs `program`."""

    def used_s() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before_s = used_s()
    subprocess.run([sys.executable, "-c", program], check=True)
    return (used_s() - before_s) * 1000


def imports() -> Iterator[Line]:
    """The import of the library, and that of httpx, which waits for the first client."""
    ours = min(_processor_ms("import streamd.client") for _ in range(_IMPORTS))
    httpx_alone = min(_processor_ms("import httpx") for _ in range(_IMPORTS))
    yield Line("import streamd.client", ours, "ms", below=150)
    yield Line("import streamd.client / import httpx", ours / httpx_alone, "x", below=1)


def single(url: str) -> Iterator[Line]:
    """One append at a time."""
    with Client(url) as client, httpx.Client() as raw:
        stream = client.stream("bench/single")
        stream.create("text/plain")
        target = f"{url}/v1/stream/bench/single"
        headers = {"Content-Type": "text/plain"}
        ratios, rates = [], []
        for _ in range(_TURNS):
            plain = _rate(
                lambda: raw.post(target, content=_RECORD, headers=headers), _APPENDS_PER_TURN
            )
            rates.append(_rate(lambda: stream.append(_RECORD), _APPENDS_PER_TURN))
            ratios.append(rates[-1] / plain)
    yield Line("stream.append", statistics.median(rates), "1/s")
    yield Line("stream.append / httpx", statistics.median(ratios), "x", at_least=0.9)


def produced(url: str, count: int) -> Iterator[Line]:
    """Producers of both kinds, until all is acknowledged."""
    with Client(url) as client:
        stream = client.stream("bench/blocking")
        stream.create("text/plain")
        started = time.perf_counter()
        with stream.producer() as producer:
            for _ in range(count):
                producer.append(_RECORD)
        blocking = count / (time.perf_counter() - started)
    yield Line("Producer, blocking", blocking, "1/s", at_least=20_000)
    for backend in ("asyncio", "trio"):
        asynchronous = anyio.run(_produced, url, backend, count, backend=backend)
        yield Line(f"Producer, {backend}", asynchronous, "1/s", at_least=20_000)


async def _produced(url: str, name: str, count: int) -> float:
    async with AsyncClient(url) as client:
        stream = client.stream(f"bench/{name}")
        await stream.create("text/plain")
        started = time.perf_counter()
        async with stream.producer() as producer:
            for _ in range(count):
                await producer.append(_RECORD)
        return count / (time.perf_counter() - started)


@click.command()
@click.option("--appends", default=_APPENDS, show_default=True, help="Appends of each producer.")
def main(appends: int) -> None:
    """Measure how fast the Python library is imported, and appends 100 bytes at a time."""
    with (
        own_directory(_DATA_DIR, "library-", needs_wrk=False) as directory,
        _serving(directory) as url,
    ):
        report([*imports(), *single(url), *produced(url, appends)])


if __name__ == "__main__":
    main()
