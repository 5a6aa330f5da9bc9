"""The same request to many streams, by clients that ask together and wait together.

wrk would not do: it sleeps through its whole duration, however early its script wants to stop.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench.client import Client
from bench.errors import RunFailed
from bench.machine import pinned
from bench.process import ServerProcess
from bench.trial import Trial

LIMIT_S = 120.0
_CONNECTIONS = 64


def create_each(
    trial: Trial, server: ServerProcess, prefix: str, count: int, *, content_type: str
) -> int:
    """Create the streams <prefix>0, <prefix>1, …; how many exist when all do or `LIMIT_S` is up.

    Raises `RunFailed`.
    """
    return _each(trial, server, "PUT", prefix, count, content_type, b"")


def append_to_each(
    trial: Trial, server: ServerProcess, prefix: str, count: int, *, content_type: str, body: bytes
) -> int:
    """Append to the streams <prefix>0, <prefix>1, …; to how many in `LIMIT_S` at the most.

    Raises `RunFailed`.
    """
    return _each(trial, server, "POST", prefix, count, content_type, body)


def _each(
    trial: Trial,
    server: ServerProcess,
    method: str,
    prefix: str,
    count: int,
    content_type: str,
    body: bytes,
) -> int:
    done = 0
    deadline = time.monotonic() + LIMIT_S
    with ExitStack() as stack, pinned(trial.cores.load):
        clients = [stack.enter_context(Client(server.port)) for _ in range(_CONNECTIONS)]
        while done < count and time.monotonic() < deadline:
            wave = clients[: count - done]
            for number, client in enumerate(wave, start=done):
                client.send(method, f"{prefix}{number}", content_type=content_type, body=body)
            for client in wave:
                if (status := client.receive().status) not in (200, 201, 204):
                    raise RunFailed(
                        f"a {method} was answered with {status} after {done:,} of {count:,}"
                    )
                done += 1
    return done
