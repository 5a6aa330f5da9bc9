"""Operations of a cluster of real processes: under load, and while leaders are killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import streamd as streamd_package
from streamd.client import Client
from tests.jepsen_like.cluster_processes import (
    ONE_ELECTION_S,
    ClusterProcesses,
    NodeProcess,
    wait_until,
)
from tests.support import prefork
from tests.support.supervised import Supervisor

_PATIENCE_S = 240.0
_PRODUCERS = 4
ENDED = ("done", "failed", "cancelled")


@contextmanager
def supervised(
    directory: Path, *, by_units: bool = False
) -> Iterator[tuple[ClusterProcesses, Supervisor]]:
    """Three nodes, and the supervisor that restarts them: by a command of the leader's, or each
    node by its own unit."""
    with Supervisor(directory) as supervisor:
        environment = supervisor.environment_of_units if by_units else supervisor.environment
        cluster = ClusterProcesses(directory, environment=environment, proxied=False)
        supervisor.cluster = cluster
        with cluster:
            yield cluster, supervisor


def urls(cluster: ClusterProcesses) -> str:
    return ",".join(node.url for node in cluster.nodes.values())


def streamd(cluster: ClusterProcesses, *words: str) -> subprocess.CompletedProcess[bytes]:
    """A command of an operator, who knows all nodes."""
    arguments = ["operations", words[0], "--url", urls(cluster), *words[1:]]
    return prefork.run(arguments, timeout_s=_PATIENCE_S)


def begin(cluster: ClusterProcesses, kind: str, **given: object) -> int:
    """Begin an operation without pauses between its steps."""
    status, found = cluster.leader().post(
        "/cluster/operations", {"kind": kind, "window_ms": 0, **given}
    )
    assert status == 201, found
    return int(found["id"])


def look(cluster: ClusterProcesses, number: int) -> dict[str, Any] | None:
    """An operation, as any node that answers knows it."""
    for node in cluster.alive:
        answer = node.get(f"/cluster/operations/{number}")
        if answer is not None and answer[0] == 200:
            found: dict[str, Any] = json.loads(answer[1])
            return found
    return None


def wait_for_step(cluster: ClusterProcesses, number: int, step: int) -> None:
    def has_begun() -> bool:
        found = look(cluster, number)
        return found is not None and found["steps"][step]["state"] != "waiting"

    wait_until(has_begun, f"step {step} begins")


def wait_for_end(cluster: ClusterProcesses, number: int) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def has_ended() -> bool:
        now = look(cluster, number)
        if now is not None:
            found.append(now)
        return now is not None and now["state"] in ENDED

    try:
        wait_until(has_ended, "the operation's end", _PATIENCE_S)
    except AssertionError:
        print(json.dumps(found[-1:], indent=2))
        raise
    return found[-1]


class Load:
    """Producers that append numbers one after another, each exactly once; inside a `with`."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self._urls = urls(cluster).split(",")
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce, args=(number,)) for number in range(_PRODUCERS)
        ]
        self.appended = [0] * _PRODUCERS
        self.longest_s = 0.0
        self.failures: list[Exception] = []

    def __enter__(self) -> Load:
        with Client(self._urls) as client:
            for number in range(_PRODUCERS):
                client.stream(f"load/{number}").create("application/json")
        for thread in self._threads:
            thread.start()
        wait_until(lambda: min(self.appended) > 10, "each producer appends")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _produce(self, number: int) -> None:
        # Each asks another node first.
        urls = self._urls[number % 3 :] + self._urls[: number % 3]
        try:
            with Client(urls) as client:
                stream = client.stream(f"load/{number}", content_type="application/json")
                while not self._stop.is_set():
                    began = time.monotonic()
                    value = self.appended[number]
                    stream.append_json(value, once=(f"producer-{number}", value))
                    self.appended[number] += 1
                    self.longest_s = max(self.longest_s, time.monotonic() - began)
        except Exception as error:
            self.failures.append(error)

    def check(self) -> None:
        """Nothing failed, and each number is there once, in order."""
        assert self.failures == []
        with Client(self._urls) as client:
            for number in range(_PRODUCERS):
                found = list(client.stream(f"load/{number}").read_json())
                assert found == list(range(self.appended[number]))


@pytest.mark.long
def test_a_rolling_restart_under_load_fails_loses_and_doubles_no_append(tmp_path: Path) -> None:
    with supervised(tmp_path) as (cluster, supervisor):
        leader = cluster.leader()
        with Load(cluster) as load:
            done = streamd(cluster, "rolling-restart", "--wait", "--window", "1s")
        assert done.returncode == 0, (done.stdout, done.stderr)
        load.check()
        print(f"{sum(load.appended)} appends, the longest took {load.longest_s:.3f} s")
        # Where nothing else runs it takes less than an election timeout, which is a second.
        assert load.longest_s < ONE_ELECTION_S
        others = sorted({1, 2, 3} - {leader.node_id})
        assert supervisor.asked == [f"restart {number}" for number in (*others, leader.node_id)]
        lines = done.stdout.decode().splitlines()
        assert "rolling-restart, done, 4 of 4 steps done" in lines[-1]
        assert sum(line.endswith(" s)") for line in lines) == 4


@pytest.mark.long
def test_nodes_restart_their_own_units_when_the_leader_asks(tmp_path: Path) -> None:
    with supervised(tmp_path, by_units=True) as (cluster, supervisor):
        with Load(cluster) as load:
            succeed(cluster, "rolling-restart")
        assert sorted(supervisor.asked) == [f"restart {number}" for number in (1, 2, 3)]
        load.check()


def kill(supervisor: Supervisor, node: NodeProcess) -> None:
    """End a node without notice, and start it again as its host's init would."""
    with supervisor.lock:
        node.kill()
        node.start()


@pytest.mark.long
@pytest.mark.parametrize("step", range(4))
def test_a_rolling_restart_ends_although_its_leader_is_killed_in_a_step(
    step: int, tmp_path: Path
) -> None:
    with supervised(tmp_path) as (cluster, supervisor):
        with Load(cluster) as load:
            number = begin(cluster, "rolling-restart")
            wait_for_step(cluster, number, step)
            kill(supervisor, cluster.leader())
            found = wait_for_end(cluster, number)
        assert found["state"] == "done", found
        assert all(one["state"] == "done" for one in found["steps"])
        assert {words.split()[1] for words in supervisor.asked} == {"1", "2", "3"}
        cluster.wait_ready()
        load.check()


@pytest.mark.long
@pytest.mark.parametrize("asked", range(3))
def test_a_leader_that_is_killed_while_a_supervisor_acts_restarts_nothing_twice(
    asked: int, tmp_path: Path
) -> None:
    """What was asked of the supervisor is done nevertheless, and the next leader sees that."""
    with supervised(tmp_path) as (cluster, supervisor):
        killed: list[int] = []

        def kill_leader(words: list[str]) -> None:
            if len(supervisor.asked) == asked and not killed:
                leader = cluster.leader(but=int(words[1]))
                killed.append(leader.node_id)
                kill(supervisor, leader)

        with Load(cluster) as load:
            supervisor.before = kill_leader
            number = begin(cluster, "rolling-restart")
            found = wait_for_end(cluster, number)
        assert found["state"] == "done", found
        assert killed
        assert supervisor.asked.count(supervisor.asked[asked]) == 1
        cluster.wait_ready()
        load.check()


@pytest.mark.long
@pytest.mark.parametrize("step", [0, 3], ids=("add", "stop"))
def test_a_node_is_replaced_although_the_leader_is_killed_in_a_step(
    step: int, tmp_path: Path
) -> None:
    """Nobody can tell that a silent node was stopped for good. So the next leader has it stopped
    again, when the time of the first attempt is over."""
    with supervised(tmp_path) as (cluster, supervisor):
        old = cluster.followers(cluster.leader())[0].node_id
        with Load(cluster) as load:
            cluster.start_newcomer(4)
            address = cluster.peer_address(4)
            number = begin(cluster, "replace-node", node_id=old, addresses=[address])
            wait_for_step(cluster, number, step)
            kill(supervisor, cluster.leader())
            found = wait_for_end(cluster, number)
        assert found["state"] == "done", found
        deeds = [one["deed"] for one in found["steps"] if one["deed"] != "transfer-leadership"]
        assert deeds == ["add", "catch-up", "promote", "stop"]
        remaining = sorted({1, 2, 3, 4} - {old})
        assert (found["voters"], found["learners"]) == (remaining, [])
        told = cluster.leader(among=remaining).status()
        assert told is not None
        assert told["voters"] == remaining
        assert set(supervisor.asked) == {f"stop {old}"}
        load.check()


@pytest.mark.long
def test_an_upgrade_installs_and_restarts_node_by_node_under_load(tmp_path: Path) -> None:
    """The later release is this one under another number."""
    later = tmp_path / "later"
    shutil.copytree(Path(streamd_package.__file__).parent, later / "streamd")
    package = later / "streamd" / "__init__.py"
    package.write_text(f'{package.read_text()}\n__version__ = "9.9.1"\n')
    with supervised(tmp_path) as (cluster, supervisor):

        def install(words: list[str]) -> None:
            if words[0] == "install":
                assert words[2] == "9.9.1"
                cluster.nodes[int(words[1])].environment["PYTHONPATH"] = str(later)

        supervisor.before = install
        leader = cluster.leader().node_id
        with Load(cluster) as load:
            succeed(cluster, "upgrade", "--to", "9.9.1")
        order = [*sorted({1, 2, 3} - {leader}), leader]
        deeds = [(f"install {number} 9.9.1", f"restart {number}") for number in order]
        assert supervisor.asked == [deed for both in deeds for deed in both]
        told = cluster.leader().status()
        assert told is not None
        assert {member["version"] for member in told["members"]} == {"9.9.1"}
        load.check()


@pytest.mark.long
def test_nodes_are_added_replaced_and_removed_by_operations(tmp_path: Path) -> None:
    with supervised(tmp_path) as (cluster, supervisor):
        with Load(cluster) as load:
            cluster.start_newcomer(4)
            succeed(cluster, "scale-up", cluster.peer_address(4))
            cluster.start_newcomer(5)
            succeed(cluster, "replace-node", "2", cluster.peer_address(5))
            done = succeed(cluster, "scale-down", "4", "--json")
        assert json.loads(done)["voters"] == [1, 3, 5]
        assert supervisor.asked == ["stop 2", "stop 4"]
        told = cluster.leader(among=(1, 3, 5)).status()
        assert told is not None
        assert told["voters"] == [1, 3, 5]
        load.check()


def succeed(cluster: ClusterProcesses, *words: str) -> bytes:
    """The output of an operation that must end well."""
    done = streamd(cluster, *words, "--wait", "--window", "1s")
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout
