"""A server under measurement, as a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bench.client import Client
from bench.errors import BenchError
from bench.machine import pinned

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0
_POLL_S = 0.005


def free_port() -> int:
    """A port on which no process listens at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def process_cpu_s(pid: int) -> float:
    """The processor time that a process has used, with all its threads. Linux only."""
    user, system, *_ = _clock_ticks(_fields(pid))
    return (user + system) / os.sysconf("SC_CLK_TCK")


def session_cpu_s(session: int) -> float | None:
    """The processor time (user and system) that the processes of a session have used, with all
    their threads and with the children that have ended; `None` where the system has no /proc.
    """
    ticks = 0
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    for pid in pids:
        # Others may end meanwhile.
        with suppress(OSError):
            fields = _fields(pid)
            if int(fields[3]) == session:
                ticks += sum(_clock_ticks(fields))
    return ticks / os.sysconf("SC_CLK_TCK") if pids else None


def _fields(pid: int) -> list[str]:
    """What /proc/PID/stat says after the program's name: the state first."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()


def _clock_ticks(fields: Sequence[str]) -> list[int]:
    """User and system time, and the same of the children that have ended."""
    return [int(ticks) for ticks in fields[11:15]]


class Spent:
    """The processor time that a server spends from now on."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._before_s = server.all_cpu_s()

    def us_each(self, count: int) -> float | None:
        """So far, by `count`, in µs; `None` where the system has no /proc."""
        now_s = self._server.all_cpu_s()
        if now_s is None or self._before_s is None or not count:
            return None
        return (now_s - self._before_s) / count * 1e6


class ServerProcess:
    """A running server, pinned to a core; `stop` leaves no process and no file."""

    def __init__(self, command: Sequence[str], *, port: int, core: int | None, log: Path) -> None:
        self.port = port
        self.started_at = time.monotonic()
        self._log = log
        with log.open("ab") as output, pinned(core):
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A group of its own: whatever the server starts is ended with it.
                start_new_session=True,
            )

    def wait_until_answering(self, target: str, *, accept_missing: bool) -> float:
        """Poll `target` until it exists; return the seconds since the start.

        With `accept_missing`, a 404 suffices: the server answers. Raises `BenchError` if the server
        ends or stays silent.
        """
        accepted = {200, 404} if accept_missing else {200}
        deadline = self.started_at + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise BenchError(f"the server ended at its start: {self._log_tail()}")
            with suppress(OSError), Client(self.port, timeout_s=5.0) as client:
                if client.request("GET", target).status in accepted:
                    return time.monotonic() - self.started_at
            time.sleep(_POLL_S)
        raise BenchError(f"no answer within {_START_TIMEOUT_S:.0f} s: {self._log_tail()}")

    def resident_mb(self) -> float | None:
        """Resident memory in MB (10^6 bytes), where the system tells."""
        return self._memory_mb("VmRSS:")

    def peak_mb(self) -> float | None:
        """The most memory it ever had resident, in MB (10^6 bytes), if the system tells."""
        return self._memory_mb("VmHWM:")

    def own_mb(self) -> float | None:
        """What it has resident now besides mapped files, whose pages the system may take back."""
        return self._memory_mb("RssAnon:")

    def _memory_mb(self, field: str) -> float | None:
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return None
        for line in status.splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024 / 1e6
        return None

    def cpu_s(self) -> float:
        """The processor time that it has used, without that of its children. Linux only."""
        return process_cpu_s(self._process.pid)

    def all_cpu_s(self) -> float | None:
        """The processor time that it and its children have used; `None` without a /proc."""
        # It leads a session of its own.
        return session_cpu_s(self._process.pid)

    def stop(self) -> None:
        """Ask it to end, and end it by force if it does not."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise BenchError(
                f"the server did not end within {_STOP_TIMEOUT_S:.0f} s of SIGTERM"
            ) from None
        finally:
            self.kill()

    def kill(self) -> None:
        """End the whole process group at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace").strip()[-500:] or "(it said nothing)"
