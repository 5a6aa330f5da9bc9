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
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
        """The processor time that it has used."""
        return process_cpu_s(self._process.pid)

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
