"""Appends on a node that has much else to keep: many live streams, and many who wait for news."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from bench.errors import RunFailed
from bench.figures import LoadFigures
from bench.load import append_to_one
from bench.process import ServerProcess
from bench.results import Values
from bench.sse import Subscriber
from bench.trial import Trial
from bench.waves import LIMIT_S, append_to_each, create_each

_CONTENT_TYPE = "text/plain"
_BODY = b"l" * 100
# Servers end an SSE response after a minute or so: the first reader must outlast the load.
_MAX_DURATION_S = 30.0
# How many readers connect before any waits for its answer.
_AT_ONCE = 64


def append_loaded(figures: LoadFigures, connections: int, trial: Trial) -> Values:
    """Append to one stream beside the live streams and the readers. Raises `RunFailed`."""
    prefix = trial.target("live-")
    with trial.running() as server:
        streams = _fill(trial, server, prefix)
        with _waiting(trial, server, prefix, streams):
            bounded = replace(trial, duration_s=min(trial.duration_s, _MAX_DURATION_S))
            return append_to_one(bounded, server, figures, connections=connections)


def _fill(trial: Trial, server: ServerProcess, prefix: str) -> int:
    """Create the live streams, and append to each once; how many there are."""
    created = create_each(trial, server, prefix, trial.live_streams, content_type=_CONTENT_TYPE)
    live = append_to_each(trial, server, prefix, created, content_type=_CONTENT_TYPE, body=_BODY)
    if live < trial.live_streams:
        trial.results.remark(
            f"{trial.server.name} created {created:,} of {trial.live_streams:,} live streams in "
            f"{LIMIT_S:.0f} s, and appended to {live:,} of them in as long; its figures of a "
            "loaded node are with those"
        )
    return live


@contextmanager
def _waiting(trial: Trial, server: ServerProcess, prefix: str, streams: int) -> Iterator[None]:
    """SSE readers at the ends of streams, evenly spread over them.

    Raises `RunFailed` if the server ends any before the block's end.
    """
    with ExitStack() as stack:
        readers: list[Subscriber] = []
        for first in range(0, trial.readers, _AT_ONCE):
            batch = []
            for number in range(first, min(first + _AT_ONCE, trial.readers)):
                reader = Subscriber(server.port, f"{prefix}{number * streams // trial.readers}")
                stack.callback(reader.socket.close)
                batch.append(reader)
            for reader in batch:
                reader.await_ready()
            readers += batch
        yield
        if ended := sum(reader.has_ended() for reader in readers):
            raise RunFailed(f"the server ended {ended:,} of {len(readers):,} readers too early")
