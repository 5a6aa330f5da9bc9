"""Web applications of examples/, each a process of its own, as their READMEs start them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support import tether
from tests.support.ports import unused_port
from tests.support.processes import RunningProcess

_POLL_S = 0.02


class Listener(RunningProcess):
    """What a command starts, whose words may have the `{port}` on which it is to listen."""

    DEADLINE_S = 60.0

    def __init__(
        self, command: list[str], environment: Mapping[str, str], directory: Path | None = None
    ) -> None:
        super().__init__()
        self.port = unused_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [word.format(port=self.port) for word in command]
        self.environment = {**os.environ, **environment}
        self._directory = directory

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        self.process = tether.start(
            self._command, cwd=self._directory, env=self.environment, stderr=subprocess.DEVNULL
        )
        self.await_alive(self._listens, f"listening: {self._command}")

    def kill(self) -> None:
        """Kill it and its workers, which would outlive it and go on answering; return when none
        listens."""
        super().kill()
        # That was only the first process. A worker may die later, and until then a `start` would
        # find its port open, and take it for that of the new one.
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


class Application(Listener):
    """An application under Hypercorn, by the name of its module and variable."""

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        bind = ["--bind", "127.0.0.1:{port}"]
        super().__init__([sys.executable, "-m", "hypercorn", name, *bind], environment)
