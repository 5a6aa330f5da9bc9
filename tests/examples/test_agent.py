"""The agent of examples/agent: it resumes wherever it was killed, and does nothing twice."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import pytest

from examples.agent.__main__ import Shop, price, think
from examples.agent.agent import work
from streamd.client import Client, ProducerFenced, Stream
from tests.examples import killed_agent
from tests.support import tether
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

ANSWER = "I bought milk, eggs for 4.30."
TRANSCRIPT = [
    {"goal": "milk, eggs"},
    {"call": 0, "tool": "price", "arguments": {"item": "milk"}},
    {"call": 0, "result": 1.2},
    {"call": 1, "tool": "order", "arguments": {"item": "milk", "price": 1.2}},
    {"call": 1, "result": "ordered milk"},
    {"call": 2, "tool": "price", "arguments": {"item": "eggs"}},
    {"call": 2, "result": 3.1},
    {"call": 3, "tool": "order", "arguments": {"item": "eggs", "price": 3.1}},
    {"call": 3, "result": "ordered eggs"},
    {"answer": ANSWER},
]
ORDERS = [{"item": "milk", "price": 1.2}, {"item": "eggs", "price": 3.1}]
STEPS = [
    *(step for n in range(4) for step in (f"think:{n}", f"before:{n}", f"after:{n}")),
    "think:4",
]
DEADLINE_S = 60


def transcript(stream: Stream) -> list[object]:
    return [event for event in stream.read_json() if "process" not in event]


def orders(directory: Path) -> list[object]:
    return [json.loads(file.read_text()) for file in sorted(directory.iterdir())]


def start(
    server: ServerProcess, stream: Stream, shop: Path, fatal_step: str = "none"
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", killed_agent.__name__]
    arguments = [server.url, stream.name, str(shop), fatal_step]
    return tether.start([*command, *arguments], stdout=subprocess.PIPE, text=True)


def ended(agent: subprocess.Popen[str]) -> tuple[int, str]:
    printed, _ = agent.communicate(timeout=DEADLINE_S)
    return agent.returncode, printed.strip()


def test_a_run_that_is_killed_at_every_step_does_each_thing_once(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    stream = client.stream("agents/every-step")
    for step in STEPS:
        assert ended(start(server, stream, tmp_path, step)) == (-signal.SIGKILL, ""), step
    assert ended(start(server, stream, tmp_path)) == (0, ANSWER)
    assert transcript(stream) == TRANSCRIPT
    assert orders(tmp_path) == ORDERS


@pytest.mark.parametrize("seed", [1])
def test_a_run_continues_when_its_process_or_server_is_killed_while_it_writes(
    tmp_path: Path, seed: int
) -> None:
    """They are killed from outside as soon as an event shows, which the agent may not know yet."""
    shop = tmp_path / "shop"
    moments = random.Random(seed).sample(range(len(TRANSCRIPT) - 1), 3)
    victims = dict(zip(moments, ("agent", "server", "agent"), strict=True))
    with ServerProcess(tmp_path / "data") as server, Client(server.url) as client:
        stream = client.stream("agents/from-outside")
        stream.create("application/json")
        agent = start(server, stream, shop)
        events = (event for event in stream.follow_json() if "process" not in event)
        for number, _ in zip(range(len(TRANSCRIPT)), events, strict=False):
            if victims.get(number) == "agent":
                agent.kill()
                agent.communicate(timeout=DEADLINE_S)
                agent = start(server, stream, shop)
            elif victims.get(number) == "server":
                server.kill()
                server.start()
                server.wait_ready()
        assert ended(agent) == (0, ANSWER)
        assert transcript(stream) == TRANSCRIPT
    assert orders(shop) == ORDERS


def test_a_run_that_has_ended_answers_again_without_thinking(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    stream = client.stream("agents/ended")
    assert ended(start(server, stream, tmp_path)) == (0, ANSWER)
    assert ended(start(server, stream, tmp_path, "think:4")) == (0, ANSWER)
    assert transcript(stream) == TRANSCRIPT


def test_an_agent_that_was_only_slow_is_fenced_and_adds_nothing(
    client: Client, tmp_path: Path
) -> None:
    stream = client.stream("agents/slow")
    is_thinking, may_go_on = Event(), Event()
    raised: list[ProducerFenced] = []

    def think_long(events: list[dict[str, object]]) -> dict[str, object]:
        is_thinking.set()
        may_go_on.wait(DEADLINE_S)
        return think(events)

    def slow() -> None:
        with pytest.raises(ProducerFenced) as info:
            work(stream, "milk, eggs", think_long, {})
        raised.append(info.value)

    thread = Thread(target=slow)
    thread.start()
    assert is_thinking.wait(DEADLINE_S)
    tools = {"price": price, "order": Shop(tmp_path).order}
    assert work(stream, "milk, eggs", think, tools) == ANSWER
    may_go_on.set()
    thread.join(DEADLINE_S)
    assert raised
    assert transcript(stream) == TRANSCRIPT
