"""What is measured: each measurement loads one fresh server and returns its figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench import figures, sse
from bench.client import Client
from bench.errors import RunFailed
from bench.figures import FanOutFigures, Figure, LoadFigures, percentile
from bench.idle import idle_streams
from bench.load import Load, append_to_one
from bench.loaded import append_loaded
from bench.machine import pinned
from bench.results import Values
from bench.trial import Trial

_BYTES = "application/octet-stream"
_STREAMS = 500
_CATCH_UP_APPENDS = 10
_CATCH_UP_APPEND_BYTES = 1_000_000


@dataclass(frozen=True)
class Measurement:
    """One thing to do to a server, by the name that `--only` takes."""

    name: str
    figures: tuple[Figure, ...]
    run: Callable[[Trial], Values]
    has_readers: bool = False
    """Whether it holds the connections of `Trial.readers` at once."""


def _append(figures: LoadFigures, connections: int, trial: Trial) -> Values:
    with trial.running() as server:
        return append_to_one(trial, server, figures, connections=connections)


def _append_500(trial: Trial) -> Values:
    prefix = trial.target("stream-")
    load = Load("/", script="append_across.lua", arguments=(prefix, _STREAMS, 256))
    with trial.running() as server:
        with Client(server.port) as client:
            for stream in range(1, _STREAMS + 1):
                client.expect("PUT", f"{prefix}{stream}", 201, content_type=_BYTES)
        load.warm_up(trial, server)
        return load.measure(trial, server, figures.APPEND_500)


def _create(trial: Trial) -> Values:
    # Other names in the warm-up: creating a stream again is a different, cheaper request.
    warm, new = (
        Load("/", script="create.lua", arguments=(trial.target(prefix),))
        for prefix in ("warm-", "new-")
    )
    with trial.running() as server:
        warm.warm_up(trial, server)
        return new.measure(trial, server, figures.CREATE)


def _small_read(trial: Trial) -> Values:
    target = trial.target("small")
    load = Load(f"{target}?offset=-1")
    with trial.running() as server:
        with Client(server.port) as client:
            client.expect("PUT", target, 201, content_type=_BYTES)
            client.expect("POST", target, 200, 204, content_type=_BYTES, body=b"r" * 100)
        load.warm_up(trial, server)
        return load.measure(trial, server, figures.SMALL_READ)


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


def _sse(figures: FanOutFigures, subscribers: int, trial: Trial) -> Values:
    with trial.running() as server, pinned(trial.cores.load):
        latencies, used_us = sse.fan_out(
            server, trial.target("live"), subscribers=subscribers, duration_s=trial.duration_s
        )
    return {
        figures.p50: percentile(latencies, 50),
        figures.p99: percentile(latencies, 99),
        **trial.processor_time(figures.cpu, used_us),
    }


ALL = (
    Measurement("append-1", figures.APPEND_1.all, partial(_append, figures.APPEND_1, 1)),
    Measurement("append-64", figures.APPEND_64.all, partial(_append, figures.APPEND_64, 64)),
    Measurement("append-500-streams", figures.APPEND_500.all, _append_500),
    Measurement("create", figures.CREATE.all, _create),
    Measurement("small-read", figures.SMALL_READ.all, _small_read),
    Measurement("catch-up", (figures.CATCH_UP_RATE,), _catch_up),
    Measurement("sse-100", figures.SSE_100.all, partial(_sse, figures.SSE_100, 100)),
    Measurement("sse-1000", figures.SSE_1000.all, partial(_sse, figures.SSE_1000, 1000)),
    Measurement(
        "idle-streams",
        (figures.IDLE_COUNT, figures.IDLE_START, figures.IDLE_MEMORY),
        idle_streams,
    ),
    Measurement(
        "append-1-loaded",
        figures.APPEND_1_LOADED.all,
        partial(append_loaded, figures.APPEND_1_LOADED, 1),
        has_readers=True,
    ),
    Measurement(
        "append-64-loaded",
        figures.APPEND_64_LOADED.all,
        partial(append_loaded, figures.APPEND_64_LOADED, 64),
        has_readers=True,
    ),
)
"""In the order in which they run."""
