"""Many idle streams: how long a server takes to start with them, and how much memory they cost."""

from __future__ import annotations

from bench import figures
from bench.results import Values
from bench.trial import Trial
from bench.waves import LIMIT_S, create_each

_CONTENT_TYPE = "application/octet-stream"


def idle_streams(trial: Trial) -> Values:
    """Create them through HTTP, end the server with SIGTERM, start it again, read one."""
    prefix = trial.target("idle-")
    with trial.running() as server:
        created = create_each(trial, server, prefix, trial.idle_streams, content_type=_CONTENT_TYPE)
        memory_mb = server.resident_mb()
    values = {figures.IDLE_COUNT: float(created)}
    if created < trial.idle_streams:
        trial.results.remark(
            f"{trial.server.name} created only {created:,} of {trial.idle_streams:,} idle streams "
            f"in {LIMIT_S:.0f} s; its start and memory are with those"
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


def _start_again(trial: Trial, target: str) -> tuple[float, float | None]:
    """Seconds from the start of the process to a stream's 200, and resident MB right then."""
    with trial.launched() as server:
        return server.wait_until_answering(target, accept_missing=False), server.resident_mb()
