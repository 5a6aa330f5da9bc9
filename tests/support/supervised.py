"""A cluster whose nodes are restarted by a supervisor of its own, as `[supervisor]` reaches it.

The leader runs a small program, which asks this process over a socket, as `sv` or `supervisorctl`
do, and is answered when it is done.
"""

from __future__ import annotations

import os
import signal
import socketserver
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import cast

from tests.jepsen_like.cluster_processes import ClusterProcesses

_ASK = """#!{python} -S
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
connection.sendall(" ".join(sys.argv[1:]).encode() + b"\\n")
answer = connection.makefile().read()
print(answer)
sys.exit(0 if answer == "done" else 1)
"""

# As systemd does with --no-block, it only takes the order. The unit is streamd@ID.service.
_SYSTEMCTL = """#!{python} -S
import re, socket, sys
words = [word for word in sys.argv[1:] if not word.startswith("--")]
unit = re.fullmatch("streamd@([0-9]+)[.]service", words[1])
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
verb = {{"disable": "stop"}}.get(words[0], words[0])
connection.sendall((verb + " " + unit[1] + "\\n").encode())
"""


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    act: Callable[[list[str]], str]


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server = cast("_Server", self.server)
        words = self.rfile.readline().decode().split()
        answer = server.act(words).encode()
        with suppress(BrokenPipeError):
            self.wfile.write(answer)


class Supervisor:
    """Starts and stops the nodes of a cluster when it is asked, and remembers what it was asked.

    `before` is called first, with the words of the request. Inside a `with` it answers.
    """

    def __init__(self, directory: Path) -> None:
        self._address = str(directory / "supervisor")
        self._programs = directory / "programs"
        self._programs.mkdir()
        self._control = self._program("control", _ASK)
        self._program("systemctl", _SYSTEMCTL)
        # Held while a process is ended and started.
        self.lock = threading.RLock()
        self.cluster: ClusterProcesses | None = None
        self.asked: list[str] = []
        self.before: Callable[[list[str]], None] = lambda _: None

    @property
    def environment(self) -> dict[str, str]:
        """The section ``[supervisor]`` of all nodes."""
        control = self._control
        return {
            "STREAMD_SUPERVISOR_KIND": "command",
            "STREAMD_SUPERVISOR_RESTART": f"{control},restart,{{id}}",
            "STREAMD_SUPERVISOR_STOP": f"{control},stop,{{id}}",
            "STREAMD_SUPERVISOR_INSTALL": f"{control},install,{{id}},{{version}}",
        }

    @property
    def environment_of_units(self) -> dict[str, str]:
        """The section of nodes that are units of systemd on their own hosts."""
        return {
            "STREAMD_SUPERVISOR_KIND": "systemd",
            "STREAMD_SUPERVISOR_UNIT": "streamd@{id}.service",
            "PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}",
        }

    def _program(self, name: str, text: str) -> str:
        program = self._programs / name
        program.write_text(text.format(python=sys.executable, address=self._address))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return str(program)

    def __enter__(self) -> Supervisor:
        self._server = _Server(self._address, _Handler)
        self._server.act = self._act
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _act(self, words: list[str]) -> str:
        self.before(words)
        assert self.cluster is not None
        node = self.cluster.nodes[int(words[1])]
        with self.lock:
            self.asked.append(" ".join(words))
            if words[0] in ("restart", "stop") and node.is_alive:
                node.signal(signal.SIGTERM)
                node.wait()
            if words[0] == "restart":
                node.start()
        return "done"
