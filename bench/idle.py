"""Many idle streams: how long a server takes to start with them, and how much memory they cost."""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench import figures
from bench.client import Client
from bench.errors import RunFailed
from bench.machine import pinned
from bench.process import ServerProcess
from bench.results import Values
from bench.trial import Trial

_CONNECTIONS = 64
_CONTENT_TYPE = "application/octet-stream"
_CREATE_LIMIT_S = 120.0


def idle_streams(trial: Trial) -> Values:
    """Create them through HTTP, end the server with SIGTERM, start it again, read one."""
    prefix = trial.target("idle-")
    with trial.running() as server:
        created = _create(trial, server, prefix)
        memory_mb = server.resident_mb()
    values = {figures.IDLE_COUNT: float(created)}
    if created < trial.idle_streams:
        trial.results.remark(
            f"{trial.server.name} created only {created:,} of {trial.idle_streams:,} idle streams "
            f"in {_CREATE_LIMIT_S:.0f} s; its start and memory are with those"
        )
    if trial.server.keeps_streams:
        seconds, memory_mb = _start_again(trial, f"{prefix}{created // 2}")
        values[figures.IDLE_START] = seconds
    else:
        trial.results.remark(
            f"{trial.server.name} keeps no streams over a restart: its memory is that after "
            "creating them"
        )
    if memory_mb is not None:
        values[figures.IDLE_MEMORY] = memory_mb
    return values


def _create(trial: Trial, server: ServerProcess, prefix: str) -> int:
    """Create the streams <prefix>0, <prefix>1, …; returns how many exist when all are created or
    the time is up.

    Does not use wrk: it sleeps through its whole duration, however early its script wants to stop.
    """
    created = 0
    deadline = time.monotonic() + _CREATE_LIMIT_S
    with ExitStack() as stack, pinned(trial.cores.load):
        clients = [stack.enter_context(Client(server.port)) for _ in range(_CONNECTIONS)]
        while created < trial.idle_streams and time.monotonic() < deadline:
            wave = clients[: trial.idle_streams - created]
            for i, client in enumerate(wave):
                client.send("PUT", f"{prefix}{created + i}", content_type=_CONTENT_TYPE)
            for client in wave:
                if (status := client.receive().status) != 201:
                    raise RunFailed(f"a stream's creation was answered with {status}")
            created += len(wave)
    return created


def _start_again(trial: Trial, target: str) -> tuple[float, float | None]:
    """Seconds from the start of the process to a stream's 200, and resident MB right then."""
    with trial.launched() as server:
        return server.wait_until_answering(target, accept_missing=False), server.resident_mb()
