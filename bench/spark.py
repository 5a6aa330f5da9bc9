"""`python -m bench.spark`: how fast the audit is, and streams in Spark.

Rates are compared within one run: the audit with Spark tasks that only read and hash the same
objects; a machine of two cores with one of a single core, on which the object store runs as well; a
bucket in which one stream has half of the bytes with one in which all have the same; one with nine
states with one that has a single one; and what Spark writes with a client that does nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack

import click

from bench.bucket import Shape, write_bucket
from bench.client import Client
from bench.errors import RunFailed, ToolMissing
from bench.lines import Line, own_directory, report
from bench.machine import Cores, pinned
from bench.process import ServerProcess, free_port
from bench.servers import Streamd
from bench.spark_jobs import DRIVER_MEMORY_MIB
from bench.store import BUCKET, ObjectStore
from streamd.objectstore.s3 import S3Store

_JSON = "application/json"
_BYTES = "application/octet-stream"
_JOB_TIMEOUT_S = 900.0
_MESSAGE_BYTES = 100
_MESSAGES = 400_000
# Of one POST: an array of JSON messages, or frames of a batch (its limit).
_MESSAGES_OF_APPEND, _FRAMES_OF_BATCH = 1_000, 512
_STREAMS = 4
_CLIENT_S = 5.0
# Of the size of the whole, the parts that are audited several times over.
_PART = 4


class Job(dict[str, float]):
    """What a job told of itself."""

    @property
    def seconds(self) -> float:
        return self["seconds"]


class Bench:
    """Jobs in front of one object store, and of a server at a time."""

    def __init__(self, directory: Path, store: ObjectStore, shape: Shape) -> None:
        self._directory = directory
        self._store = store
        self._shape = shape
        self._cores = Cores.choose()
        self._two = sorted(os.sched_getaffinity(0))[:2]

    def part(self, name: str) -> Iterator[Line]:
        """The figures of a part; a part that fails has a missed bar, and does not affect the
        others."""
        try:
            yield from getattr(self, name)()
        except RunFailed as error:
            click.echo(f"{name}: {error}", err=True)
            yield Line(f"{name}: failed", 0.0, "", at_least=1.0)

    # -- the audit ----------------------------------------------------------------------------

    def audit(self) -> Iterator[Line]:
        """The whole audit, beside a job that only reads and hashes what it reads."""
        yield self._bucket("whole", self._shape)
        hashed = self._job("hash_objects", BUCKET, "whole")
        rate = hashed["bytes"] / 1e6 / hashed.seconds
        yield Line("objects read and hashed on 2 cores", rate, "MB/s")
        audited = self._audit("whole")
        yield from _cpu("hashing", hashed, "audit", audited)
        audit_rate = hashed["bytes"] / 1e6 / audited.seconds
        yield Line("objects audited on 2 cores", audit_rate, "MB/s")
        yield Line("of the rate of hashing", audit_rate / rate * 100, "%", at_least=50)
        share = hashed["cpu_s"] / audited["cpu_s"] * 100
        yield Line("hashing's processor time, of the audit's", share, "%")
        yield Line(f"driver: most memory, of a heap of {DRIVER_MEMORY_MIB} MiB", *_jvm(audited))
        yield Line("driver: most memory of its Python", audited["python_mb"], "MB", below=300)

    def cores(self) -> Iterator[Line]:
        """The audit of a smaller bucket, on two cores and with everything on one."""
        yield self._bucket("cores", self._part())
        two = self._audit("cores")
        self._store.run_on({self._two[0]})
        try:
            one = self._audit("cores", master="local[1]", core=self._two[0])
        finally:
            self._store.run_on(set(os.sched_getaffinity(0)))
        yield from _cpu("audit on 2 cores", two, "audit on 1 core", one)
        yield Line("audit of the part on 2 cores", two.seconds, "s")
        yield Line("audit of the part on 1 core", one.seconds, "s")
        yield Line("2 cores are as fast as 1, times", one.seconds / two.seconds, "", at_least=1.6)

    def skew(self) -> Iterator[Line]:
        """One stream with half of all bytes, beside as many bytes in streams of one size."""
        yield self._bucket("spread", self._part())
        yield self._bucket("skewed", self._part()._replace(skewed=True))
        spread, skewed = self._audit("spread"), self._audit("skewed")
        yield from _cpu("spread", spread, "skewed", skewed)
        yield Line("audit of a spread bucket", spread.seconds, "s")
        yield Line("audit with half of it in one stream", skewed.seconds, "s")
        yield Line("that takes as long, times", skewed.seconds / spread.seconds, "", below=1.3)

    def states(self) -> Iterator[Line]:
        """Nine states, each compared with the log, beside one."""
        yield self._bucket("one", self._part())
        yield self._bucket("nine", self._part()._replace(states=9))
        one, nine = self._audit("one"), self._audit("nine")
        yield from _cpu("one state", one, "nine states", nine)
        yield Line("audit of one state", one.seconds, "s")
        yield Line("audit of nine states", nine.seconds, "s")
        yield Line("that takes as long, times", nine.seconds / one.seconds, "", below=1.3)

    def _part(self) -> Shape:
        megabytes, entries = self._shape.megabytes, self._shape.entries
        return Shape(max(1, megabytes // _PART), max(1, entries // _PART))

    def _bucket(self, name: str, shape: Shape) -> Line:
        settings = self._store.settings
        store = S3Store(
            bucket=settings["s3_bucket"],
            region="us-east-1",
            endpoint=settings["s3_endpoint"],
            access_key_id=settings["s3_access_key_id"],
            secret_access_key=settings["s3_secret_access_key"],
            prefix=f"{name}/",
        )
        started = time.perf_counter()
        try:
            written = write_bucket(store, self._directory / f"{name}-rows", shape)
        finally:
            store.close()
        rate = written.record_bytes / 1e6 / (time.perf_counter() - started)
        title = f"{name}: {written.last_index:,} entries, {written.packs} packs written"
        return Line(title, rate, "MB/s")

    def _audit(self, prefix: str, *, master: str = "local[2]", core: int | None = None) -> Job:
        out = str(self._directory / f"{prefix}-{master}")
        audited = self._job("audit", BUCKET, prefix, out, master=master, core=core)
        if audited["status"] != 0:
            raise RunFailed(f"the audit of {prefix} ended with status {audited['status']}")
        return audited

    # -- streams ------------------------------------------------------------------------------

    def read_stream(self) -> Iterator[Line]:
        """A streaming query over a bucket's streams, from their beginnings to their ends."""
        with self._server("read") as url, Client(int(url.rpartition(":")[2])) as client:
            client.expect("PUT", "/bench", 201)
            for stream in range(_STREAMS):
                client.expect("PUT", f"/bench/s{stream}", 201, content_type=_JSON)
            for first in range(0, _MESSAGES, _MESSAGES_OF_APPEND):
                target = f"/bench/s{first // _MESSAGES_OF_APPEND % _STREAMS}"
                body = _messages(first, first + _MESSAGES_OF_APPEND)
                client.expect("POST", target, 204, content_type=_JSON, body=body)
            read = self._job("read_stream", url, "bench", str(_MESSAGES))
        rate = read["messages"] / read.seconds
        yield Line("readStream of JSON messages", rate, "1/s", at_least=20_000)

    def sink(self) -> Iterator[Line]:
        """What Spark writes, beside one client that sends the same by `append-batch`."""
        with self._server("sink") as url, Client(int(url.rpartition(":")[2])) as client:
            client.expect("PUT", "/bench", 201)
            for stream in range(_STREAMS):
                client.expect("PUT", f"/bench/s{stream}", 201, content_type=_BYTES)
            client.expect("PUT", "/bench/alone", 201, content_type=_BYTES)
            frame = pack(">I", _MESSAGE_BYTES) + b"x" * _MESSAGE_BYTES
            body, batches, started = frame * _FRAMES_OF_BATCH, 0, time.perf_counter()
            while time.perf_counter() - started < _CLIENT_S:
                target = "/bench/alone/append-batch"
                client.expect("POST", target, 200, 204, content_type=_BYTES, body=body)
                batches += 1
            alone = batches * _FRAMES_OF_BATCH / (time.perf_counter() - started)
            yield Line("append-batch by one client", alone, "1/s")
            some = (url, "bench", str(_MESSAGES), str(_MESSAGE_BYTES), str(_STREAMS))
            written = self._job("write", *some)
        rate = written["messages"] / written.seconds
        yield Line("rows written by Spark", rate, "1/s")
        cpu_us = written["cpu_s"] / written["messages"] * 1e6
        yield Line("processor time of Spark for a row", cpu_us, "µs")
        yield Line("of the one client's rate", rate / alone * 100, "%", at_least=50)

    @contextmanager
    def _server(self, name: str) -> Iterator[str]:
        port = free_port()
        server = ServerProcess(
            Streamd().command(port, self._directory / name),
            port=port,
            core=None,
            log=self._directory / f"{name}.log",
        )
        try:
            server.wait_until_answering("/healthz", accept_missing=False)
            yield f"http://127.0.0.1:{port}"
            server.stop()
        finally:
            server.kill()

    # -- jobs ---------------------------------------------------------------------------------

    def _job(
        self, name: str, *arguments: str, master: str = "local[2]", core: int | None = None
    ) -> Job:
        """Run a job in a process of its own. Raises `RunFailed`."""
        command = [sys.executable, "-m", "bench.spark_jobs", name, master, *arguments]
        log = self._directory / f"{name}.log"
        checkout = Path(__file__).parents[1]
        environment = {**os.environ, **self._store.environment}
        environment["PYTHONPATH"] = os.pathsep.join(
            (str(checkout), str(checkout / "spark"), os.environ.get("PYTHONPATH", ""))
        )
        started = time.perf_counter()
        click.echo(f"  {name} {arguments[1]} on {master} …", err=True)
        with log.open("w") as told, pinned(core):
            try:
                done = subprocess.run(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=told,
                    text=True,
                    timeout=_JOB_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise RunFailed(f"{name} took more than {_JOB_TIMEOUT_S:.0f} s") from None
        if done.returncode:
            raise RunFailed(f"{name} failed:\n{log.read_text(errors='replace')[-2000:]}")
        click.echo(
            f"  {name}: {time.perf_counter() - started:.0f} s, Spark's start included", err=True
        )
        return Job(json.loads(done.stdout.splitlines()[-1]))


def _cpu(name: str, job: Job, other_name: str, other: Job) -> Iterator[Line]:
    """The processor time of two jobs."""
    yield Line(f"processor time: {name}", job["cpu_s"], "s")
    yield Line(f"processor time: {other_name}", other["cpu_s"], "s")


def _jvm(job: Job) -> tuple[float, str]:
    return job["jvm_mb"], "MB"


def _messages(first: int, stop: int) -> bytes:
    text = "x" * (_MESSAGE_BYTES - len('{"number":0000000,"text":""}'))
    return json.dumps([{"number": number, "text": text} for number in range(first, stop)]).encode()


_PARTS = ("audit", "cores", "skew", "states", "read_stream", "sink")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", type=click.Choice(_PARTS), multiple=True)
@click.option("--minio", type=click.Path(path_type=Path, exists=True), help="[default: on PATH]")
@click.option("--megabytes", type=click.IntRange(1), default=2048, show_default=True)
@click.option("--entries", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(__file__).parents[1] / "build" / "bench",
    help="Where servers and jobs write. [default: build/bench of the checkout]",
)
def main(
    only: tuple[str, ...], minio: Path | None, megabytes: int, entries: int, data_dir: Path
) -> None:
    """Measure the audit and streams in Spark; status 1 when a bar is missed."""
    with own_directory(data_dir, "spark-", needs_wrk=False) as own:
        executable = minio or shutil.which("minio")
        if executable is None:
            raise ToolMissing("this needs a minio server: name it with --minio")
        if shutil.which("java") is None:
            raise ToolMissing("this needs Java 17 or newer, for Spark")
        store = ObjectStore(Path(executable), own)
        bench = Bench(own, store, Shape(megabytes, entries))
        with store.running():
            report(line for name in only or _PARTS for line in bench.part(name))


if __name__ == "__main__":
    main()
