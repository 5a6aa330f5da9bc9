"""The agent of examples/woken: it is woken, killed at every step, and another one goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from examples.woken.agent import prepare
from streamd.client import AsyncClient, Client
from tests.examples import killed_woken
from tests.support import tether
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

DEADLINE_S = 60


@pytest.fixture(name="server")
def _server(tmp_path: Path) -> Iterator[ServerProcess]:
    async def begin() -> None:
        async with AsyncClient(server.url) as client:
            await prepare(client, lease_ttl_s=3.0)

    with ServerProcess(tmp_path / "data") as server:
        anyio.run(begin)
        yield server


@contextmanager
def agent(server: ServerProcess, steps: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", killed_woken.__name__, server.url, str(steps), name]
    process = tether.start(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def ask(client: Client, name: str, *texts: str) -> None:
    stream = client.stream(f"questions/{name}")
    stream.create("application/json")
    for text in texts:
        stream.append_json({"text": text})


def wait_for_answers(client: Client, name: str, *texts: str) -> None:
    client.stream(f"answers/{name}").create("application/json")
    with client.stream(f"answers/{name}").follow_json() as messages:
        answers = (message["answer"] for message in messages if "answer" in message)
        assert [next(answers) for _ in texts] == list(texts)


def all_answers(client: Client, name: str) -> list[str]:
    messages = client.stream(f"answers/{name}").read_json()
    return [message["answer"] for message in messages if "answer" in message]


def test_each_question_is_answered_once_though_every_worker_is_killed(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    steps = tmp_path / "steps"
    steps.mkdir()
    ask(client, "one", "a", "b")
    ask(client, "two", "c")
    for _ in range(6):
        with agent(server, steps, "SIGKILL") as killed:
            assert killed.wait(DEADLINE_S) == -signal.SIGKILL
    assert sorted(step.name for step in steps.iterdir()) == [
        "answered-a", "answered-b", "answered-c", "think-a", "think-b", "think-c",
    ]  # fmt: skip
    with agent(server, steps, "SIGKILL"):
        (steps / "think-d").touch()
        (steps / "answered-d").touch()
        ask(client, "two", "d")
        wait_for_answers(client, "two", "C", "D")
    assert all_answers(client, "one") == ["A", "B"]
    assert all_answers(client, "two") == ["C", "D"]


def test_a_worker_that_was_stopped_for_longer_than_its_lease_adds_nothing(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    steps = tmp_path / "steps"
    steps.mkdir()
    ask(client, "one", "a")
    with agent(server, steps, "SIGSTOP") as stopped:
        _, status = os.waitpid(stopped.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        (steps / "answered-a").touch()
        with agent(server, steps, "SIGSTOP"):
            wait_for_answers(client, "one", "A")
        stopped.send_signal(signal.SIGCONT)
        _, printed = stopped.communicate(timeout=DEADLINE_S)
    assert stopped.returncode == 1
    assert "LeaseLost" in printed or "ProducerFenced" in printed
    assert all_answers(client, "one") == ["A"]
