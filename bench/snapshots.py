"""`python -m bench.snapshots`: what snapshots and bootstraps cost, each beside its bar.

Rates are compared within one run, and memory with what the same server had just before, so that
the figures mean something on any machine.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from bench import wrk
from bench.client import Client
from bench.errors import RunFailed
from bench.lines import Line, own_directory, report
from bench.machine import Cores
from bench.process import ServerProcess, free_port
from bench.servers import Streamd

_MIB = 1024 * 1024
_SNAPSHOT_BYTES = 128 * _MIB
_MESSAGES = 100_000
_MESSAGE_BYTES = 1_000
_MESSAGES_PER_APPEND = 100
_APPEND_BYTES = 100
_CONNECTIONS = 64
_START = "0000000000000000_0000000000000000"
_BYTES = "application/octet-stream"


class Bench:
    """One server at a time, each on fresh data."""

    def __init__(self, directory: Path, duration_s: float) -> None:
        self._directory = directory
        self._duration_s = duration_s
        self._cores = Cores.choose()
        # What repeats further apart than a block of the store is not compressed there.
        self._body = os.urandom(_MIB) * (_SNAPSHOT_BYTES // _MIB)

    @contextmanager
    def _server(self, name: str) -> Iterator[ServerProcess]:
        port = free_port()
        server = ServerProcess(
            Streamd().command(port, self._directory / name),
            port=port,
            core=self._cores.server,
            log=self._directory / f"{name}.log",
        )
        try:
            server.wait_until_answering("/healthz", accept_missing=False)
            yield server
            server.stop()
        finally:
            server.kill()

    def memory(self) -> Iterator[Line]:
        """Publish one snapshot and read it back, on a server that has seen some work."""
        with self._server("memory") as server, Client(server.port) as client:
            _make(client, "/bench/memory", _BYTES)
            self._append(server, "/bench/memory")
            before = _known(server.resident_mb())
            seconds = self._publish(client, "/bench/memory")
            yield Line("publish 128 MiB", _SNAPSHOT_BYTES / 1e6 / seconds, "MB/s")
            rise = (_known(server.peak_mb()) - before) * 1e6 / _MIB
            yield Line("publish 128 MiB: rise of resident memory", rise, "MiB", below=64)
            started = time.perf_counter()
            answer = client.expect("GET", f"/bench/memory/snapshot/{_START}", 200)
            seconds = time.perf_counter() - started
            yield Line("read 128 MiB", answer.body_bytes / 1e6 / seconds, "MB/s")
            rise = (_known(server.peak_mb()) - before) * 1e6 / _MIB
            yield Line("publish and read: rise of resident memory", rise, "MiB")

    def appends(self) -> Iterator[Line]:
        """Appends alone, then while one snapshot after the other is published, then alone."""
        with self._server("appends") as server:
            with Client(server.port) as client:
                _make(client, "/bench/appends", _BYTES)
                _make(client, "/bench/documents", _BYTES)
            self._append(server, "/bench/appends")  # a warm-up
            before = self._append(server, "/bench/appends")
            with self._publishing(server.port) as published:
                during = self._append(server, "/bench/appends")
            after = self._append(server, "/bench/appends")
            alone = (before + after) / 2
            yield Line("appends alone", alone, "1/s")
            yield Line("appends while 128 MiB are published", during, "1/s")
            yield Line("share that is left to appends", during / alone * 100, "%", at_least=80)
            yield Line("published meanwhile", published[0] / 1e6 / self._duration_s, "MB/s")

    def bootstrap(self) -> Iterator[Line]:
        """100,000 messages of 1 kB, from memory and store as they come, then from the store."""
        with self._server("bootstrap") as server, Client(server.port) as client:
            _make(client, "/bench/messages", "application/json")
            text = os.urandom(_MESSAGE_BYTES // 2 - 1).hex()
            body = json.dumps([text] * _MESSAGES_PER_APPEND).encode()
            for _ in range(_MESSAGES // _MESSAGES_PER_APPEND):
                client.expect(
                    "POST", "/bench/messages", 204, content_type="application/json", body=body
                )
        with self._server("bootstrap") as server, Client(server.port) as client:
            before = _known(server.resident_mb())
            for title in ("after a start", "again"):
                started = time.perf_counter()
                answer = client.expect("GET", "/bench/messages/bootstrap", 200)
                seconds = time.perf_counter() - started
                rate = answer.body_bytes / 1e6 / seconds
                yield Line(f"bootstrap of 100,000 messages {title}", rate, "MB/s", at_least=50)
            rise = (_known(server.peak_mb()) - before) * 1e6 / _MIB
            yield Line("bootstrap: rise of resident memory", rise, "MiB", below=64)

    def _append(self, server: ServerProcess, target: str) -> float:
        return wrk.load(
            f"http://127.0.0.1:{server.port}{target}",
            connections=_CONNECTIONS,
            duration_s=self._duration_s,
            core=self._cores.load,
            script="append.lua",
            arguments=(_APPEND_BYTES,),
        ).rate_per_s

    def _publish(self, client: Client, path: str, offset: str = _START) -> float:
        """Publish once; returns the seconds it took."""
        started = time.perf_counter()
        client.expect("PUT", f"{path}/snapshot/{offset}", 204, content_type=_BYTES, body=self._body)
        return time.perf_counter() - started

    @contextmanager
    def _publishing(self, port: int) -> Iterator[list[int]]:
        """Publish at ever higher offsets inside; yields a list of the bytes that were taken."""
        published = [0]
        ending = threading.Event()

        def publish() -> None:
            with Client(port) as client:
                while not ending.is_set():
                    answer = client.expect(
                        "POST", "/bench/documents", 204, content_type=_BYTES, body=b"x"
                    )
                    started = time.perf_counter()
                    self._publish(client, "/bench/documents", answer.headers["stream-next-offset"])
                    share = min(1.0, (ends_at - started) / (time.perf_counter() - started))
                    published[0] += int(_SNAPSHOT_BYTES * share)

        ends_at = time.perf_counter() + self._duration_s
        thread = threading.Thread(target=publish)
        thread.start()
        try:
            yield published
        finally:
            ending.set()
            thread.join()


def _make(client: Client, path: str, content_type: str) -> None:
    client.expect("PUT", "/bench", 201, 409)
    client.expect("PUT", path, 201, content_type=content_type)


def _known(value: float | None) -> float:
    if value is None:
        raise RunFailed("this system does not tell the memory of a process")
    return value


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--duration-s", type=click.FloatRange(1), default=5.0, show_default=True, help="Per wrk run."
)
@click.option("--only", type=click.Choice(["memory", "appends", "bootstrap"]), multiple=True)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(__file__).parents[1] / "build" / "bench",
    help="Where the servers write. [default: build/bench of the checkout]",
)
def main(duration_s: float, only: tuple[str, ...], data_dir: Path) -> None:
    """Measure snapshots and bootstraps of streamd; status 1 when a bar is missed."""
    with own_directory(data_dir, "snapshots-") as own:
        bench = Bench(own, duration_s)
        report(
            line
            for name in only or ("memory", "appends", "bootstrap")
            for line in getattr(bench, name)()
        )


if __name__ == "__main__":
    main()
