"""Web applications of examples/, each a process of its own, as their READMEs start them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType

from tests.support import tether
from tests.support.ports import unused_port

_DEADLINE_S = 60.0
_POLL_S = 0.02


class Application:
    """An application under Hypercorn, by the name of its module and variable."""

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self.port = unused_port()
        self.url = f"http://127.0.0.1:{self.port}"
        bind = f"127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "hypercorn", name, "--bind", bind]
        self._environment = {**os.environ, **environment}

    def __enter__(self) -> Application:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        self._process: subprocess.Popen[bytes] = tether.start(
            self._command, env=self._environment, stderr=subprocess.DEVNULL
        )
        self._wait(True, "the application does not answer")

    def kill(self) -> None:
        """Kill Hypercorn and its worker, which would outlive it and go on answering; return when
        neither listens."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_DEADLINE_S)
        # That was only Hypercorn. A worker may die later, and a `start` meanwhile would find its
        # port open, and take it for that of the new one.
        self._wait(False, "the application outlives its kill")

    def _wait(self, listening: bool, problem: str) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while self._listens() != listening:
            assert not listening or self._process.poll() is None, f"it ended: {self._command}"
            assert time.monotonic() < deadline, problem
            time.sleep(_POLL_S)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except ConnectionRefusedError:
            return False
        return True
