"""The official client for JavaScript, from npm, against a server process."""

from __future__ import annotations

import json
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.server_process import ServerProcess
from tests.support.tools import node_or_skip

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
DEADLINE_S = 60.0
URL_PATH = "/v1/stream/demo/events"
_PIECE_BYTES = 64 * 1024


class Script:
    """A script of this folder under Node."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._printed = b""

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    def says(self) -> str:
        """The next line it prints. Raises `AssertionError` when none comes."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + DEADLINE_S
        while b"\n" not in self._printed:
            wait_s = deadline - time.monotonic()
            ready, _, _ = select.select([self._process.stdout], [], [], max(0, wait_s))
            assert ready, f"time-out: nothing for {DEADLINE_S:g} s after {self._printed!r}"
            piece = self._process.stdout.read(_PIECE_BYTES)
            assert piece, f"it ended after {self._printed!r}"
            self._printed += piece
        line, _, self._printed = self._printed.partition(b"\n")
        return line.decode()

    def ask(self, *command: object) -> Any:
        """What it answers to a command, both as a line of JSON."""
        self.tell(json.dumps(command))
        return json.loads(self.says())

    def end_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def status(self) -> int:
        return self._process.wait(DEADLINE_S)


@contextmanager
def running(script: str, *arguments: str) -> Iterator[Script]:
    node_or_skip()
    with subprocess.Popen(
        ["node", script, *arguments],
        cwd=HERE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as process:
        try:
            yield Script(process)
        finally:
            process.kill()


def restarted(server: ServerProcess, end: Callable[[], object]) -> None:
    """Restart with the same data and port, after an `end` of either kind."""
    end()
    server.start()
    server.wait_ready()


@pytest.mark.parametrize("live", ["sse", "long-poll"])
@pytest.mark.parametrize("ended_by", ["stop", "kill"])
def test_a_producer_and_a_tail_continue_after_a_restart_until_the_close(
    server: ServerProcess, live: str, ended_by: str
) -> None:
    url = f"{server.url}{URL_PATH}-{live}-{ended_by}"
    with running("produce.mjs", url) as producer:
        producer.tell('{"n":1}')
        assert producer.says() == "acknowledged"
        with running("tail.mjs", url, live) as tail:
            assert tail.says() == '{"n":1}'
            restarted(server, getattr(server, ended_by))
            producer.tell('{"n":2}')
            assert producer.says() == "acknowledged"
            assert tail.says() == '{"n":2}'
            producer.tell('[3,"three"]')
            assert producer.says() == "acknowledged"
            assert tail.says() == '[3,"three"]'
            producer.end_input()
            end = json.loads(producer.says())
            assert tail.says() == "closed"
            assert (producer.status(), tail.status()) == (0, 0)
    assert end == {
        "finalOffset": end["offset"],
        "offset": "0000000000000003_" + end["offset"][-16:],
        "streamClosed": True,
    }
