"""A shell in which a test pastes commands as a newcomer would."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.docs.pages import Step

_PATIENCE_S = 180.0  # Spark begins in ten, and in sixty on a busy machine.
_POLL_S = 0.05
_MARK = "-- status"
# What a reader ends with Ctrl-C: it follows a stream.
_FOLLOWS = re.compile(r"\b(?:curl -sS -N|streamd tail -f)\b")
_FOLLOWED_S = 3
_INTERRUPTED = 124  # by timeout(1)


class Terminal:
    """A bash with streamd on its path, in a directory of its own.

    `environment` is added to that of a bare login; `replaced` are texts of pages that stand for
    others here, such as addresses. `started_url` is where a server answers that a page starts.
    """

    def __init__(
        self,
        directory: Path,
        environment: Mapping[str, str],
        replaced: Mapping[str, str],
        started_url: str,
    ) -> None:
        self._replaced = dict(replaced)
        self.url = started_url
        self._repeats = False
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=directory,
            env={
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "HOME": str(directory),
                "LC_ALL": "C.UTF-8",
                **environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._output = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()

    def follow(self, step: Step) -> None:
        """Run a command, and compare its output with what the page shows."""
        if "streamd serve" in step.command:
            self.start(step.command)
            self._await_answer()
            return
        command = self._here(step.command)
        follows = _FOLLOWS.search(command) is not None
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            status, output = self._run(_FOLLOWS.sub(rf"timeout {_FOLLOWED_S} \g<0>", command))
            if status == 0 or not self._repeats or time.monotonic() > deadline:
                break
        # "wait until": the reader looks again, and the next command may be too early.
        self._repeats = "wait until" in step.command
        shown = f"$ {command}\n{output}"
        assert status in ((0, _INTERRUPTED) if follows else (0,)), shown
        found = re.search(step.pattern(), output, re.DOTALL)
        assert found, f"{shown}the page shows:\n" + "\n".join(step.lines)
        # Later commands of the page may name what it shortened.
        self._replaced.update(zip(step.shortened(), found.groups(), strict=True))
        if not step.lines:
            assert '{"error"' not in output, shown

    def start(self, command: str) -> None:
        """Start a server beside the shell, as in another terminal."""
        command = self._here(command)
        self._run(command.partition("#")[0].rstrip(" &") + " >> serve.log 2>&1 &")

    def _here(self, command: str) -> str:
        for text in sorted(self._replaced, key=len, reverse=True):
            command = command.replace(text, self._replaced[text])
        return re.sub(r"\bcurl\b", "curl -sS", command)

    def _await_answer(self) -> None:
        """Wait until the server that the page starts answers."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/healthz", timeout=1):
                return
            time.sleep(_POLL_S)
        raise AssertionError(self._run("cat serve.log")[1])

    def _run(self, command: str) -> tuple[int, str]:
        """The status and the output of a command."""
        assert self._shell.stdin is not None
        script = f"{{ {command}\n}} < /dev/null\nprintf '\\n{_MARK} %d\\n' $?\n"
        self._shell.stdin.write(script.encode())
        self._shell.stdin.flush()
        ended = re.compile(rf"^\n?(.*)\n{_MARK} (\d+)\n\Z".encode(), re.DOTALL)
        deadline = time.monotonic() + _PATIENCE_S
        while (match := ended.match(self._output)) is None:
            self._receive(command, deadline)
        self._output = b""
        return int(match[2]), match[1].decode().replace("\r\n", "\n")

    def _receive(self, command: str, deadline: float) -> None:
        assert self._shell.stdout is not None
        left_s = deadline - time.monotonic()
        readable, _, _ = select.select([self._shell.stdout], [], [], max(0.0, left_s))
        received = os.read(self._shell.stdout.fileno(), 65_536) if readable else b""
        assert received, f"`{command}` did not end: {self._output.decode(errors='replace')}"
        self._output += received
