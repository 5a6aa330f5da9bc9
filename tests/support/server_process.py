"""A whole server in its own process, as an operator would run it."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support import prefork
from tests.support.ports import unused_port
from tests.support.processes import RunningProcess

_POLL_S = 0.02


class ServerProcess(RunningProcess):
    """`streamd serve` on a free port; `wrapper` is put before the command (strace, for one)."""

    def __init__(
        self,
        data_dir: Path,
        *,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
        port: int | None = None,
        expect_death: bool = False,
    ) -> None:
        """With `expect_death`, it may also end before it was `ready`."""
        super().__init__()
        self.data_dir = data_dir
        self.port = port or unused_port()
        self._has_tls = "STREAMD_SERVER_TLS_CERT" in (environment or {})
        self.url = f"{'https' if self._has_tls else 'http'}://127.0.0.1:{self.port}"
        listen = f"127.0.0.1:{self.port}"
        self._arguments = ["serve", "--data-dir", str(data_dir), "--listen", listen, *flags]
        self._environment = dict(environment or {})
        self._wrapper = wrapper
        self._expect_death = expect_death
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 it stays readable after the end
        self.ready = False

    def __enter__(self) -> Self:
        self.start()
        self.wait_ready()
        return self

    def start(self) -> None:
        self.process = prefork.start(
            self._arguments, self._environment, self._output, self._wrapper
        )

    @property
    def output(self) -> str:
        """Everything it has printed so far."""
        written = os.fstat(self._output.fileno()).st_size
        # At a place of its own: where the file is read is where the server writes next.
        return os.pread(self._output.fileno(), written, 0).decode()

    def wait_ready(self) -> None:
        """Wait until it answers. Raises `AssertionError` with its output when it does not."""

        def is_settled() -> bool:
            if self._expect_death and not self.is_alive:
                return True
            self.ready = self._answers()
            return self.ready

        self.await_alive(is_settled, "ready")

    def wait_refusing(self) -> None:
        """Wait until it accepts no more connections."""
        deadline = time.monotonic() + self.DEADLINE_S
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except ConnectionRefusedError:
                return
            time.sleep(_POLL_S)
        raise AssertionError("the server still accepts connections")

    def _answers(self) -> bool:
        connection = self._connection()
        try:
            connection.request("GET", "/readyz/local")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if not self._has_tls:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=1, context=context)
