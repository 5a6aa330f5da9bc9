"""Closed-loop HTTP load with wrk, and what it prints."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.errors import RunFailed, ToolMissing
from bench.machine import pinned

_LUA = Path(__file__).with_name("lua")
GET = "tails.lua"
"""The script of a load that only gets its URL."""
_GRACE_S = 30.0
_ANSWER_TIMEOUT_S = 10

_REQUESTS = re.compile(r"^\s*(\d+) requests in ([\d.]+)(us|ms|s|m|h),", re.MULTILINE)
_RATE = re.compile(r"^Requests/sec:\s*([\d.]+)\s*$", re.MULTILINE)
_PERCENTILE = re.compile(r"^latency ([\d.]+)% (\d+) us$", re.MULTILINE)
_BAD_STATUS = re.compile(r"^\s*Non-2xx or 3xx responses:\s*(\d+)\s*$", re.MULTILINE)
_SOCKET_ERRORS = re.compile(
    r"^\s*Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)\s*$", re.MULTILINE
)


@dataclass(frozen=True)
class WrkResult:
    """One run of wrk."""

    requests: int
    rate_per_s: float
    latency_ms: dict[float, float]
    """Latency by percentile: 50, 90, 99 and 99.9. wrk corrects it for requests that it would have
    sent while it waited for a slow answer (coordinated omission)."""
    bad_statuses: int
    """Answers of 400 or more."""
    socket_errors: dict[str, int]

    def failure(self) -> str | None:
        """Why the figures are not valid, or `None`."""
        faults = [f"{count} {kind} errors" for kind, count in self.socket_errors.items() if count]
        if self.bad_statuses:
            faults.append(f"{self.bad_statuses} answers with an error status")
        if not self.requests:
            faults.append("no request was answered")
        return ", ".join(faults) or None


def parse(output: str) -> WrkResult:
    """Read what wrk and `tails.lua` print. Raises `RunFailed` when any of it is not there."""
    requests = _REQUESTS.search(output)
    rate = _RATE.search(output)
    if requests is None or rate is None:
        raise RunFailed(f"wrk printed no summary: {output.strip()[-300:] or '(nothing)'}")
    latency_ms = {float(at): int(us) / 1e3 for at, us in _PERCENTILE.findall(output)}
    if not latency_ms:
        raise RunFailed(f"wrk printed no latencies: {output.strip()[-300:]}")
    bad = _BAD_STATUS.search(output)
    errors = _SOCKET_ERRORS.search(output)
    kinds = ("connect", "read", "write", "timeout")
    return WrkResult(
        requests=int(requests[1]),
        rate_per_s=float(rate[1]),
        latency_ms=latency_ms,
        bad_statuses=int(bad[1]) if bad else 0,
        socket_errors={kind: int(errors[i + 1]) if errors else 0 for i, kind in enumerate(kinds)},
    )


def require() -> None:
    """Raises `ToolMissing` when there is no wrk."""
    if shutil.which("wrk") is None:
        raise ToolMissing(
            "the benchmark needs wrk (https://github.com/wg/wrk) on the PATH; "
            "on Debian and Ubuntu: apt-get install wrk; on macOS: brew install wrk"
        )


def version() -> str:
    """What wrk calls itself. It prints that on the way to its usage, and then fails."""
    shown = subprocess.run(["wrk", "-v"], capture_output=True, text=True, check=False)
    return " ".join((shown.stdout + shown.stderr).split()[:2])


def load(
    url: str,
    *,
    connections: int,
    duration_s: float,
    core: int | None,
    script: str = GET,
    arguments: Sequence[object] = (),
) -> WrkResult:
    """Run wrk with one thread. Raises `RunFailed` if any request failed."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(duration_s))}s"]
    command += ["--timeout", f"{_ANSWER_TIMEOUT_S}s", "-s", str(_LUA / script), url]
    if arguments:
        command += ["--", *map(str, arguments)]
    with pinned(core):
        try:
            done = subprocess.run(
                command,
                # So that a script finds those that it requires.
                env={**os.environ, "LUA_PATH": f"{_LUA}/?.lua;;"},
                capture_output=True,
                text=True,
                timeout=duration_s + _GRACE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RunFailed("wrk did not end in time") from None
    if done.returncode:
        raise RunFailed(f"wrk failed: {(done.stderr or done.stdout).strip()[-300:]}")
    result = parse(done.stdout)
    if failure := result.failure():
        raise RunFailed(failure)
    return result
