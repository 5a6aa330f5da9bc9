"""What operators see of a node's process: its tasks, its memory, and where its time goes."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import trio

from streamd.process import diagnostics
from streamd.process.diagnostics import ProfileInProgress, Profiler, task_tree
from tests.http.authorized import ROOT
from tests.http.serving import serving
from tests.support.server_process import ServerProcess
from tests.support.wire import checked_client

TEXT = {"Content-Type": "text/plain"}
SHOWN_TEXT = "text/plain; charset=utf-8"
SECRET = "whisper"
STACK = re.compile(r"(\S+) ([1-9]\d*)")


@pytest.fixture(scope="module", params=["1", pytest.param("2", marks=pytest.mark.long)])
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """A client of a server with so many workers, where a stream has a reader that waits."""
    data = tmp_path_factory.mktemp("debug") / "data"
    environment = {"STREAMD_SERVER_WORKERS": request.param, "STREAMD_ROOT_TOKEN": ROOT}
    headers = {"Authorization": f"Bearer {ROOT}"}
    with (
        ServerProcess(data, environment=environment) as process,
        checked_client(base_url=process.url, timeout=60.0, headers=headers) as client,
    ):
        path = f"/v1/stream/{SECRET}/{SECRET}"
        client.put(path, headers=TEXT, content=SECRET.encode())
        with client.stream("GET", f"{path}?offset=-1&live=sse") as reader:
            events = reader.iter_text()
            assert next(events).startswith("event:")
            yield client


def test_tasks_are_shown_with_the_places_where_they_wait(client: httpx.Client) -> None:
    answer = client.get("/cluster/debug/tasks")
    assert (answer.status_code, answer.headers["content-type"]) == (200, SHOWN_TEXT)
    lines = answer.text.splitlines()
    assert lines[0].startswith("<init> at ")
    [turns] = [line for line in lines if "streamd.group.group.Group.run " in line]
    assert re.search(r" at streamd/group/\w+\.py:\d+ Group\.", turns)
    depths = [len(line) - len(line.lstrip()) for line in lines]
    steps = [after - before for before, after in pairwise(depths)]
    assert max(steps) == 2, "a task is below the one that it belongs to"


def test_memory_is_shown_with_its_limits(client: httpx.Client) -> None:
    found = client.get("/cluster/debug/memory").json()
    assert 10_000_000 < found["rss_bytes"] <= found["peak_rss_bytes"]
    assert found["tasks"] > 5
    assert len(found["gc"]["counts"]) == 3
    for name, held in found["held"].items():
        assert 0 <= held["now"] <= held["limit"], name
    assert found["held"]["live_readers"]["now"] == 1
    assert found["held"]["recent_record_bytes"]["now"] >= len(SECRET)
    assert found["held"]["waiting_commands"]["now"] == 0


def test_a_profile_has_collapsed_stacks(client: httpx.Client) -> None:
    answer = client.get("/cluster/debug/profile?seconds=1")
    assert (answer.status_code, answer.headers["content-type"]) == (200, SHOWN_TEXT)
    stacks = [STACK.fullmatch(line) for line in answer.text.splitlines()]
    assert all(stacks)
    threads = {match[1].split(";")[0] for match in stacks if match}
    assert {"MainThread", "streamd-log"} <= threads
    waits = "streamd/process/threads.py:_OwnThread._run"
    assert any(waits in match[1].split(";") for match in stacks if match)


def test_there_is_one_profile_at_a_time(client: httpx.Client) -> None:
    with ThreadPoolExecutor(4) as clients:
        asked = [clients.submit(client.get, "/cluster/debug/profile?seconds=2") for _ in range(4)]
        answers = [one.result() for one in asked]
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
    refused = next(answer for answer in answers if answer.status_code == 409)
    assert refused.json()["error"]["code"] == "PROFILE_IN_PROGRESS"
    assert client.get("/cluster/debug/profile?seconds=1").status_code == 200


@pytest.mark.parametrize("query", ["", "?seconds=0", "?seconds=31", "?seconds=1.5", "?seconds=-1"])
def test_a_profile_takes_1_to_30_seconds(client: httpx.Client, query: str) -> None:
    answer = client.get(f"/cluster/debug/profile{query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


def test_nothing_shows_data_or_secrets_or_directories(client: httpx.Client, tmp_path: Path) -> None:
    for route in ("tasks", "memory", "profile?seconds=1"):
        text = client.get(f"/cluster/debug/{route}").text
        assert SECRET not in text
        assert ROOT.split("_")[2] not in text
        assert "/home/" not in text
        assert str(Path(__file__).parents[2]) not in text


# -- bounds --------------------------------------------------------------------------------------


async def test_the_list_of_tasks_is_bounded() -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        lines = task_tree(5).splitlines()
        assert len(lines) == 6
        left = re.fullmatch(r"and (\d+) more", lines[-1])
        assert left is not None
        assert int(left[1]) + 5 == len(task_tree().splitlines())
        assert sum("sleep_forever" in line for line in task_tree().splitlines()) >= 20
        nursery.cancel_scope.cancel()


async def test_the_stacks_of_a_profile_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "_MAX_STACKS", 1)
    ended = threading.Event()
    threads = [threading.Thread(target=ended.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        lines = (await Profiler().profile(1)).splitlines()
    finally:
        ended.set()
    assert len(lines) == 2
    assert lines[-1].startswith("(others) ")


async def test_a_profile_that_is_cancelled_makes_room_for_the_next() -> None:
    profiler = Profiler()
    with trio.move_on_after(0.05):
        await profiler.profile(30)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(profiler.profile, 1)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ProfileInProgress):
            await profiler.profile(1)


async def test_a_node_without_listeners_tells_of_its_queues(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        held = (await client.get("/cluster/debug/memory")).json()["held"]
        assert held["http_connections"] == {"now": 1, "limit": server.door.config.max_connections}
        assert held["http_incoming_bytes"]["limit"] == server.bodies.limit
