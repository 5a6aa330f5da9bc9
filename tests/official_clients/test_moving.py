"""The program of docs/moving.md copies streams of the reference server, in one run or several."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streamd.client import Client
from tests.docs.pages import blocks, steps
from tests.official_clients.test_npm_client import running
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

PAGE = "docs/moving.md"
IS_CLOSED = "409 STREAM_EXISTS: the stream exists with another configuration: it is closed"
NAMES = ("agents/run-1", "agents/log")


def text(client: Client, name: str) -> bytes:
    return b"".join(chunk.data for chunk in client.stream(name).read())


def test_streams_are_moved_once_as_the_page_shows(tmp_path: Path) -> None:
    program, shown = blocks(PAGE)
    (tmp_path / "move.py").write_text(program.text)
    (step,) = steps(shown)
    assert step.command.split()[-2:] == list(NAMES)
    with running("reference.mjs") as reference, ServerProcess(tmp_path / "data") as server:
        old_url = f"http://127.0.0.1:{int(reference.says())}"

        def move() -> list[str]:
            command = [sys.executable, "move.py", old_url, server.url, *NAMES]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()

        with Client(old_url) as there, Client(server.url) as here:
            run, log = (there.stream(name) for name in NAMES)
            run.create("application/json", ttl_s=3600)
            run.append_json({"step": 1}, {"step": [2]})
            log.create("text/plain")
            log.append("a line\n")
            assert move() == step.lines
            run.append_json({"step": 3})
            log.append("another line\n", close=True)
            assert move() == step.lines
            assert move() == [step.lines[0], f"{NAMES[1]}: {IS_CLOSED}"]
            moved = [here.stream(name).head() for name in NAMES]
            assert [info.ttl_s for info in moved] == [3600, None]
            assert [info.closed for info in moved] == [False, True]
            steps_here = list(here.stream(NAMES[0]).read_json())
            assert steps_here == [{"step": 1}, {"step": [2]}, {"step": 3}]
            assert text(here, NAMES[1]) == b"a line\nanother line\n"
