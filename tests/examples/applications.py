"""Web applications of examples/, each a process of its own, as their READMEs start them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping

from tests.support import tether
from tests.support.ports import unused_port
from tests.support.processes import RunningProcess

_POLL_S = 0.02


class Application(RunningProcess):
    """An application under Hypercorn, by the name of its module and variable."""

    DEADLINE_S = 60.0

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        super().__init__()
        self.port = unused_port()
        self.url = f"http://127.0.0.1:{self.port}"
        bind = f"127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "hypercorn", name, "--bind", bind]
        self._environment = {**os.environ, **environment}

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        self.process = tether.start(self._command, env=self._environment, stderr=subprocess.DEVNULL)
        self.await_alive(self._listens, f"listening: {self._command}")

    def kill(self) -> None:
        """Kill Hypercorn and its worker, which would outlive it and go on answering; return when
        neither listens."""
        super().kill()
        # That was only Hypercorn. A worker may die later, and a `start` meanwhile would find its
        # port open, and take it for that of the new one.
        deadline = time.monotonic() + self.DEADLINE_S
        while self._listens():
            assert time.monotonic() < deadline, "the application outlives its kill"
            time.sleep(_POLL_S)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except ConnectionError:
            return False  # Refused; or reset, by a listener that ended meanwhile.
        return True
