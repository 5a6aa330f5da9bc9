"""`python -m bench.cold`: what flushing to the cold store costs, and how fast it is read.

Rates are compared within one run: appends with and without a cold store, a reader of a cold
stream beside the minio client alone, both from the same MinIO.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import click

from bench import wrk
from bench.client import Client
from bench.errors import RunFailed, ToolMissing
from bench.lines import Line, own_directory, report
from bench.machine import Cores
from bench.process import ServerProcess, free_port
from bench.servers import Streamd
from bench.store import BUCKET, ObjectStore

_MIB = 1024 * 1024
_BYTES = "application/octet-stream"
_PATIENCE_S = 300.0
_PIECE_BYTES = 4 * _MIB


class Bench:
    """A server at a time on fresh data, over one store."""

    def __init__(
        self, directory: Path, duration_s: float, store: ObjectStore, megabytes: int
    ) -> None:
        self._directory = directory
        self._duration_s = duration_s
        self._megabytes = megabytes
        self._cores = Cores.choose()
        self._store = store

    @contextmanager
    def _server(self, name: str, cold: dict[str, str] | None = None) -> Iterator[ServerProcess]:
        port = free_port()
        settings = {key.upper(): value for key, value in self._store.settings.items()}
        settings["S3_PREFIX"] = name
        for key, value in ({} if cold is None else {**settings, **cold}).items():
            os.environ[f"STREAMD_COLD_{key}"] = value
        server = ServerProcess(
            Streamd().command(port, self._directory / name),
            port=port,
            core=self._cores.server,
            log=self._directory / f"{name}.log",
        )
        for key in [key for key in os.environ if key.startswith("STREAMD_COLD_")]:
            del os.environ[key]
        try:
            server.wait_until_answering("/healthz", accept_missing=False)
            yield server
            server.stop()
        finally:
            server.kill()

    def appends(self) -> Iterator[Line]:
        """Appends without a cold store and with one that is flushed to all the time, twice."""
        rates: dict[str, float] = {"without": 0.0, "with": 0.0}
        for turn in range(2):
            for kind, cold in (("without", None), ("with", {"FLUSH_AFTER_MS": "1000"})):
                with self._server(f"{kind}-{turn}", cold) as server:
                    with Client(server.port) as client:
                        client.expect("PUT", "/v1/stream/a", 201, content_type=_BYTES)
                    rates[kind] += self._append(server) / 2
        yield Line("appends without a cold store", rates["without"], "1/s")
        yield Line("appends while they are flushed", rates["with"], "1/s")
        yield Line("share left to appends", rates["with"] / rates["without"] * 100, "%", 85)

    def small(self) -> Iterator[Line]:
        """10,000 streams of a few bytes each."""
        with self._server("small", {"FLUSH_AFTER_MS": "10000"}) as server:
            with Client(server.port) as client:
                for number in range(10_000):
                    client.expect(
                        "PUT", f"/v1/stream/{number}", 201, content_type=_BYTES, body=b"few"
                    )
            self._until_cold(server, dropped=False)
        packs = len(self._packs("small"))
        yield Line("packs for 10,000 small streams", packs, "PUTs", below=101)

    def catch_up(self) -> Iterator[Line]:
        """A large stream that is only in the cold store, beside the minio client alone."""
        cold = {"FLUSH_AFTER_MS": "1000", "HOT_KEEP_BYTES": "1"}
        body = os.urandom(_MIB)
        with self._server("large", cold) as server, Client(server.port) as client:
            client.expect("PUT", "/v1/stream/large", 201, content_type=_BYTES)
            for _ in range(self._megabytes):
                client.expect("POST", "/v1/stream/large", 204, content_type=_BYTES, body=body)
            self._until_cold(server, dropped=True)
        alone = self._read_alone("large")
        yield Line("the minio client alone", alone, "MB/s")
        with self._server("large", cold) as server, Client(server.port) as client:
            offset, size, started = "-1", 0, time.perf_counter()
            memory_mb: list[float] = []
            while size < self._megabytes * _MIB:
                path = f"/v1/stream/large?offset={offset}&max_bytes={_PIECE_BYTES}"
                answer = client.expect("GET", path, 200)
                offset = answer.headers["stream-next-offset"]
                size += answer.body_bytes
                memory_mb.append(server.own_mb() or 0.0)
            rate = size / 1e6 / (time.perf_counter() - started)
            yield Line("catch-up of a cold stream", rate, "MB/s")
            yield Line("of the client alone", rate / alone * 100, "%", at_least=50)
            if any(memory_mb):
                yield Line(
                    "catch-up: most memory besides mapped files", max(memory_mb), "MB", below=400
                )

    def _append(self, server: ServerProcess) -> float:
        return wrk.load(
            f"http://127.0.0.1:{server.port}/v1/stream/a",
            connections=64,
            duration_s=self._duration_s,
            core=self._cores.load,
            script="append.lua",
            arguments=(100,),
        ).rate_per_s

    def _packs(self, prefix: str) -> list[str]:
        objects = self._store.client.list_objects(BUCKET, f"{prefix}/", recursive=True)
        return [str(found.object_name) for found in objects if "/packs/" in str(found.object_name)]

    def _read_alone(self, prefix: str) -> float:
        size, started = 0, time.perf_counter()
        for name in self._packs(prefix):
            response = self._store.client.get_object(BUCKET, name)
            try:
                size += len(response.read())
            finally:
                response.close()
                response.release_conn()
        return size / 1e6 / (time.perf_counter() - started)

    def _until_cold(self, server: ServerProcess, *, dropped: bool) -> None:
        """Wait until everything is in the cold store, and evicted if it is to be."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            with urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
                lines = answer.read().decode().splitlines()
            values = dict(line.rsplit(" ", 1) for line in lines if line[0] != "#")
            kept = float(values["streamd_cold_kept_bytes"])
            if not float(values["streamd_cold_hot_bytes"]) and (not dropped or kept < _MIB):
                return
            time.sleep(0.2)
        raise RunFailed("the cold store does not get everything")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--duration-s", type=click.FloatRange(1), default=10.0, show_default=True)
@click.option("--only", type=click.Choice(["appends", "small", "catch_up"]), multiple=True)
@click.option("--minio", type=click.Path(path_type=Path, exists=True), help="[default: on PATH]")
@click.option("--megabytes", type=click.IntRange(1), default=1000, show_default=True)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(__file__).parents[1] / "build" / "bench",
    help="Where the servers write. [default: build/bench of the checkout]",
)
def main(
    duration_s: float, only: tuple[str, ...], minio: Path | None, megabytes: int, data_dir: Path
) -> None:
    """Measure the cold store of streamd; status 1 when a bar is missed."""
    with own_directory(data_dir, "cold-") as own:
        executable = minio or shutil.which("minio")
        if executable is None:
            raise ToolMissing("this needs a minio server: name it with --minio")
        store = ObjectStore(Path(executable), own)
        bench = Bench(own, duration_s, store, megabytes)
        with store.running():
            report(
                line
                for name in only or ("appends", "small", "catch_up")
                for line in getattr(bench, name)()
            )


if __name__ == "__main__":
    main()
