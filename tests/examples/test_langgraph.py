"""The checkpointer of examples/langgraph, and its agent, with the real LangGraph."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from streamd.client import Client
from tests.docs.pages import ROOT
from tests.examples.test_agent import ended, orders
from tests.support import tether
from tests.support.installed_packages import python_or_skip
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

LOCK = Path(__file__).parent / "langgraph.lock"
ANSWER = "I bought milk for 1.20."
ORDERS = [{"item": "milk", "price": 1.2}]
STEPS = ["think:0", "before:0", "after:0", "think:1", "before:1", "after:1", "think:2"]


@pytest.fixture(scope="module")
def python() -> Path:
    return python_or_skip(LOCK)


def start(python: Path, script: str, *arguments: str) -> subprocess.Popen[str]:
    return tether.start(
        [str(python), "-m", f"tests.examples.{script}", *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_checkpointer_passes_all_tests_of_langgraph_for_what_it_does(
    python: Path, server: ServerProcess, client: Client
) -> None:
    status, printed = ended(start(python, "conforming_saver", server.url))
    assert status == 0
    told = json.loads(printed)
    report = told["passed"]
    assert set(report) == {
        "put", "put_writes", "get_tuple", "list", "delete_thread", "copy_thread"
    }  # fmt: skip
    assert [failures for _, failures in report.values()] == [[]] * len(report)
    assert sum(passed for passed, _ in report.values()) >= 60
    assert told["threads"] == sorted(one.stream_id for one in client.bucket("threads").streams())


def test_an_agent_that_is_killed_at_every_step_continues_and_does_each_thing_once(
    python: Path, server: ServerProcess, tmp_path: Path
) -> None:
    arguments = "killed_graph", server.url, "every-step", str(tmp_path)
    for step in STEPS:
        assert ended(start(python, *arguments, step)) == (-signal.SIGKILL, ""), step
    assert ended(start(python, *arguments, "none")) == (0, ANSWER)
    assert ended(start(python, *arguments, "think:0")) == (0, ANSWER), "it thinks no more"
    assert orders(tmp_path) == ORDERS


def test_an_agent_that_was_only_slow_is_fenced_and_saves_nothing(
    python: Path, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    arguments = "killed_graph", server.url, "slow", str(tmp_path)
    slow = start(python, *arguments, "wait:1")
    assert slow.stdout is not None
    assert slow.stdin is not None
    assert slow.stdout.readline() == "waits\n"
    assert ended(start(python, *arguments, "none")) == (0, ANSWER)
    saved = list(client.stream("threads/slow").read_json())
    slow.stdin.write("\n")
    assert ended(slow) == (0, "fenced")
    assert list(client.stream("threads/slow").read_json()) == saved
    assert orders(tmp_path) == ORDERS
