"""What is measured: each measurement loads one fresh server and returns its figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from bench import figures, sse, wrk
from bench.client import Client
from bench.errors import RunFailed
from bench.figures import Figure, percentile
from bench.idle import idle_streams
from bench.machine import pinned
from bench.process import ServerProcess
from bench.results import Values
from bench.trial import Trial

_BYTES = "application/octet-stream"
_CONNECTIONS = 64
_WARM_UP_S = 1.0
_STREAMS = 500
_CATCH_UP_APPENDS = 10
_CATCH_UP_APPEND_BYTES = 1_000_000


@dataclass(frozen=True)
class Measurement:
    """One thing to do to a server, by the name that `--only` takes."""

    name: str
    figures: tuple[Figure, ...]
    run: Callable[[Trial], Values]


@dataclass(frozen=True)
class _Load:
    """What wrk does: the same in the warm-up and in the run."""

    target: str
    connections: int = _CONNECTIONS
    script: str | None = None
    arguments: tuple[object, ...] = ()

    def warm_up(self, trial: Trial, server: ServerProcess) -> None:
        # On a slow disk it may be too short for any answer; the run itself decides.
        with suppress(RunFailed):
            self.run(trial, server, _WARM_UP_S)

    def run(self, trial: Trial, server: ServerProcess, duration_s: float) -> wrk.WrkResult:
        return wrk.load(
            f"http://127.0.0.1:{server.port}{self.target}",
            connections=self.connections,
            duration_s=duration_s,
            core=trial.cores.load,
            script=self.script,
            arguments=self.arguments,
        )


def _append_1(trial: Trial) -> Values:
    result = _append_to_one(trial, connections=1)
    if 50.0 not in result.latency_ms:
        raise RunFailed("wrk printed no median latency")
    return {
        figures.APPEND_1_LATENCY: result.latency_ms[50.0],
        figures.APPEND_1_RATE: result.rate_per_s,
    }


def _append_64(trial: Trial) -> Values:
    return {figures.APPEND_64_RATE: _append_to_one(trial, connections=64).rate_per_s}


def _append_to_one(trial: Trial, *, connections: int) -> wrk.WrkResult:
    target = trial.target("one")
    load = _Load(target, connections, "append.lua", (100,))
    with trial.running() as server:
        with Client(server.port) as client:
            client.expect("PUT", target, 201, content_type=_BYTES)
        load.warm_up(trial, server)
        return load.run(trial, server, trial.duration_s)


def _append_500(trial: Trial) -> Values:
    prefix = trial.target("stream-")
    load = _Load("/", script="append_across.lua", arguments=(prefix, _STREAMS, 256))
    with trial.running() as server:
        with Client(server.port) as client:
            for stream in range(1, _STREAMS + 1):
                client.expect("PUT", f"{prefix}{stream}", 201, content_type=_BYTES)
        load.warm_up(trial, server)
        return {figures.APPEND_500_RATE: load.run(trial, server, trial.duration_s).rate_per_s}


def _create(trial: Trial) -> Values:
    # Other names in the warm-up: creating a stream again is a different, cheaper request.
    warm, new = (
        _Load("/", script="create.lua", arguments=(trial.target(prefix),))
        for prefix in ("warm-", "new-")
    )
    with trial.running() as server:
        warm.warm_up(trial, server)
        return {figures.CREATE_RATE: new.run(trial, server, trial.duration_s).rate_per_s}


def _small_read(trial: Trial) -> Values:
    target = trial.target("small")
    load = _Load(f"{target}?offset=-1")
    with trial.running() as server:
        with Client(server.port) as client:
            client.expect("PUT", target, 201, content_type=_BYTES)
            client.expect("POST", target, 200, 204, content_type=_BYTES, body=b"r" * 100)
        load.warm_up(trial, server)
        return {figures.SMALL_READ_RATE: load.run(trial, server, trial.duration_s).rate_per_s}


def _catch_up(trial: Trial) -> Values:
    target = trial.target("long")
    body = b"c" * _CATCH_UP_APPEND_BYTES
    with trial.running() as server, pinned(trial.cores.load), Client(server.port) as client:
        client.expect("PUT", target, 201, content_type=_BYTES)
        for _ in range(_CATCH_UP_APPENDS):
            client.expect("POST", target, 200, 204, content_type=_BYTES, body=body)
        read_from_start(client, target)
        received = 0
        started = time.perf_counter()
        while (took_s := time.perf_counter() - started) < trial.duration_s:
            received += read_from_start(client, target)
    return {figures.CATCH_UP_RATE: received / 1e6 / took_s}


def read_from_start(client: Client, target: str) -> int:
    """Follow the stream to its end; the bytes received. Raises `RunFailed` if any are missing."""
    offset, received = "-1", 0
    while True:
        answer = client.expect("GET", f"{target}?offset={offset}", 200)
        received += answer.body_bytes
        if answer.headers.get("stream-up-to-date", "").lower() == "true":
            break
        if answer.headers.get("stream-next-offset", offset) == offset:
            raise RunFailed(f"a catch-up read is stuck at offset {offset}")
        offset = answer.headers["stream-next-offset"]
    expected = _CATCH_UP_APPENDS * _CATCH_UP_APPEND_BYTES
    if received != expected:
        raise RunFailed(f"a catch-up read gave {received} of {expected} bytes")
    return received


def _sse(trial: Trial, subscribers: int) -> list[float]:
    with trial.running() as server, pinned(trial.cores.load):
        return sse.fan_out(
            server.port,
            trial.target("live"),
            subscribers=subscribers,
            duration_s=trial.duration_s,
        )


def _sse_100(trial: Trial) -> Values:
    latencies = _sse(trial, 100)
    return {
        figures.SSE_100_P50: percentile(latencies, 50),
        figures.SSE_100_P99: percentile(latencies, 99),
    }


def _sse_1000(trial: Trial) -> Values:
    latencies = _sse(trial, 1000)
    return {
        figures.SSE_1000_P50: percentile(latencies, 50),
        figures.SSE_1000_P99: percentile(latencies, 99),
    }


ALL = (
    Measurement("append-1", (figures.APPEND_1_LATENCY, figures.APPEND_1_RATE), _append_1),
    Measurement("append-64", (figures.APPEND_64_RATE,), _append_64),
    Measurement("append-500-streams", (figures.APPEND_500_RATE,), _append_500),
    Measurement("create", (figures.CREATE_RATE,), _create),
    Measurement("small-read", (figures.SMALL_READ_RATE,), _small_read),
    Measurement("catch-up", (figures.CATCH_UP_RATE,), _catch_up),
    Measurement("sse-100", (figures.SSE_100_P50, figures.SSE_100_P99), _sse_100),
    Measurement("sse-1000", (figures.SSE_1000_P50, figures.SSE_1000_P99), _sse_1000),
    Measurement(
        "idle-streams",
        (figures.IDLE_COUNT, figures.IDLE_START, figures.IDLE_MEMORY),
        idle_streams,
    ),
)
"""In the order in which they run."""
