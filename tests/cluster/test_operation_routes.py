"""Operations over HTTP and from the command line, at any node of a cluster that an operator
supervises by hand."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.client.running import Shell
from tests.http.authorized import ROOT
from tests.jepsen_like.cluster_processes import ClusterProcesses, NodeProcess, wait_until
from tests.support.server_process import ServerProcess
from tests.support.wire import checked_client

PATH = "/cluster/operations"


class Nodes:
    """Three nodes of a cluster that requires tokens; each request goes to the next one."""

    def __init__(self, cluster: ClusterProcesses, client: httpx.Client) -> None:
        self.cluster = cluster
        self._client = client
        self._next = cycle(cluster.nodes.values())
        self.shell = Shell(",".join(node.url for node in cluster.nodes.values()))
        self.shell.environment["STREAMD_TOKEN"] = ROOT

    def ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, token: str = ROOT
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        json = body if method == "GET" else body or {}
        while True:
            try:
                return self._client.request(
                    method, next(self._next).url + path, json=json, headers=headers
                )
            except httpx.ConnectError:
                assert len(self.cluster.alive) > 1, "one node at a time is away"

    def follower(self) -> NodeProcess:
        return self.cluster.followers(self.cluster.leader())[0]

    def begin_restart(self, node: NodeProcess) -> int:
        """Begin the restart of a node, and wait until its operator must do it."""
        asked = {"kind": "restart-recovery", "node_id": node.node_id, "window_ms": 0}
        answer = self.ask("POST", PATH, asked)
        assert answer.status_code == 201, answer.text
        number = int(answer.json()["id"])
        self.wait_for(number, "waiting_for_operator")
        return number

    def wait_for(self, number: int, state: str) -> dict[str, Any]:
        """Wait for a state of an operation, at whatever node."""
        found: dict[str, Any] = {}

        def is_there() -> bool:
            answer = self.ask("GET", f"{PATH}/{number}")
            if answer.status_code == 200:
                found.update(answer.json())
            return found.get("state") == state

        wait_until(is_there, f"operation {number} is {state}: {found}")
        return found


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    environment = {"STREAMD_AUTH_MODE": "required", "STREAMD_ROOT_TOKEN": ROOT}
    directory = tmp_path_factory.mktemp("operations")
    with (
        ClusterProcesses(directory, environment=environment, proxied=False) as cluster,
        checked_client(timeout=30) as client,
    ):
        found = Nodes(cluster, client)
        wait_until(
            lambda: (
                found.ask("POST", PATH, {"kind": "rolling-restart", "dry_run": True}).is_success
            ),
            "all members understand operations",
        )
        yield found


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_dry_run_answers_the_steps_and_begins_nothing(nodes: Nodes) -> None:
    leader = nodes.cluster.leader().node_id
    before = nodes.ask("GET", PATH).json()
    answer = nodes.ask("POST", PATH, {"kind": "rolling-restart", "dry_run": True})
    assert answer.status_code == 200
    steps = [step["text"] for step in answer.json()["steps"]]
    others = sorted({1, 2, 3} - {leader})
    assert steps == [
        *(f"restart node {number}" for number in others),
        f"transfer leadership away from node {leader}",
        f"restart node {leader}",
    ]
    printed = nodes.shell("operations", "rolling-restart", "--dry-run").decode().splitlines()
    assert printed[0] == "4 steps:"
    assert printed[1:3] == [
        f"  1. restart node {others[0]}",
        f"     until a new process of node {others[0]} answers and has caught up",
    ]
    assert nodes.ask("GET", PATH).json() == before


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (400, "INVALID_REQUEST")),
        ({"kind": "reboot"}, (400, "INVALID_REQUEST")),
        ({"kind": "scale-up", "addresses": ["nowhere"]}, (400, "INVALID_REQUEST")),
        ({"kind": "drain", "node_id": -1}, (400, "INVALID_REQUEST")),
        ({"kind": "drain", "node_id": 2**63}, (400, "INVALID_REQUEST")),
        ({"kind": "drain", "node_id": 1, "force": True}, (400, "INVALID_REQUEST")),
        ({"kind": "drain", "node_id": 1, "window_ms": -1}, (400, "INVALID_REQUEST")),
        ({"kind": "upgrade", "release": "x" * 500}, (400, "INVALID_REQUEST")),
        ({"kind": "drain"}, (409, "OPERATION_REFUSED")),
        ({"kind": "drain", "node_id": 9}, (409, "OPERATION_REFUSED")),
        ({"kind": "rolling-restart", "node_id": 1}, (409, "OPERATION_REFUSED")),
    ],
)
def test_what_cannot_be_begun_is_refused(
    body: dict[str, Any], expected: tuple[int, str], nodes: Nodes
) -> None:
    assert code(nodes.ask("POST", PATH, body)) == expected


@pytest.mark.parametrize("number", ["0", "-1", "x", "99", "1.5", "9" * 30, "%C2%B2"])
def test_an_operation_that_does_not_exist_is_404_at_every_route(number: str, nodes: Nodes) -> None:
    assert code(nodes.ask("GET", f"{PATH}/{number}")) == (404, "OPERATION_NOT_FOUND")
    for kind in ("pause", "resume", "cancel", "done"):
        answer = nodes.ask("POST", f"{PATH}/{number}/{kind}")
        assert code(answer) == (404, "OPERATION_NOT_FOUND")


def test_an_operator_restarts_a_node_when_asked_and_says_so(nodes: Nodes) -> None:
    node = nodes.follower()
    number = nodes.begin_restart(node)
    found = nodes.ask("GET", f"{PATH}/{number}").json()
    assert found["requested_by"] == "root token of the configuration"
    address = nodes.cluster.peer_address(node.node_id)
    assert found["why"] == f"restart node {node.node_id} ({address})"
    shown = nodes.shell("operations", "show", str(number)).decode()
    assert f"do this: {found['why']}; then: streamd operations done {number}" in shown
    busy = nodes.ask("POST", PATH, {"kind": "rolling-restart"})
    assert code(busy) == (409, "OPERATION_IN_PROGRESS")
    late = nodes.shell.run("operations", "wait", str(number), "--timeout", "1s")
    assert late.returncode == 6
    assert b"is still under way" in late.stderr

    node.signal(signal.SIGTERM)
    node.wait()
    node.start()
    answer = nodes.ask("POST", f"{PATH}/{number}/done")
    # It may have seen the new process before it was told.
    assert answer.status_code == 200 or code(answer)[1] in ("NOT_WAITING", "OPERATION_ENDED")
    told = nodes.shell("operations", "wait", str(number)).decode().splitlines()
    assert told[-1].startswith(f"operation {number}: restart-recovery, done, 1 of 1 steps done")
    nodes.cluster.wait_ready()
    for kind in ("pause", "resume", "cancel", "done"):
        assert code(nodes.ask("POST", f"{PATH}/{number}/{kind}")) == (409, "OPERATION_ENDED")


def test_an_operation_is_paused_and_resumed_by_any_node(nodes: Nodes) -> None:
    node = nodes.follower()
    number = nodes.begin_restart(node)
    paused = nodes.ask("POST", f"{PATH}/{number}/pause")
    assert (paused.status_code, paused.json()["state"]) == (200, "paused")
    assert code(nodes.ask("POST", f"{PATH}/{number}/pause")) == (409, "OPERATION_REFUSED")
    assert code(nodes.ask("POST", f"{PATH}/{number}/done")) == (409, "NOT_WAITING")
    resumed = json.loads(nodes.shell("operations", "resume", str(number), "--json"))
    assert resumed["state"] != "paused"
    node.signal(signal.SIGTERM)
    node.wait()
    node.start()
    nodes.wait_for(number, "done")
    nodes.cluster.wait_ready()


def test_a_command_waits_over_the_restart_of_the_only_node_that_it_asks(nodes: Nodes) -> None:
    node = nodes.follower()
    number = nodes.begin_restart(node)
    lonely = Shell(node.url)
    lonely.environment["STREAMD_TOKEN"] = ROOT
    with subprocess.Popen(
        [sys.executable, "-m", "streamd", "operations", "wait", str(number)],
        env=lonely.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline().startswith(f"operation {number}: ")
        node.signal(signal.SIGTERM)
        node.wait()
        node.start()
        told = waiting.stdout.read().splitlines()
    assert waiting.returncode == 0, told
    assert "done, 1 of 1 steps done" in told[-1]
    nodes.cluster.wait_ready()


def test_a_cancelled_operation_says_which_members_there_are(nodes: Nodes) -> None:
    number = nodes.begin_restart(nodes.follower())
    cancelled = nodes.shell.run("operations", "cancel", str(number))
    assert cancelled.returncode == 0, cancelled.stderr
    ended = nodes.wait_for(number, "cancelled")
    assert (ended["voters"], ended["learners"]) == ([1, 2, 3], [])
    assert nodes.shell.run("operations", "wait", str(number)).returncode == 5
    assert nodes.ask("GET", PATH).json()["operations"][-1] == ended
    assert b"cancelled" in nodes.shell("operations", "list")


def test_a_terminal_shows_a_table_of_the_steps(nodes: Nodes) -> None:
    screen, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "streamd", "operations", "wait", "1"],
        env={**nodes.shell.environment, "TERM": "xterm", "COLUMNS": "100"},
        stdout=terminal,
    ) as process:
        os.close(terminal)
        shown = b""
        with suppress(OSError):  # the other end is closed
            while piece := os.read(screen, 4096):
                shown += piece
        os.close(screen)
    assert process.returncode == 0, shown
    assert "✓" in shown.decode(), shown
    assert b"operation 1: restart-recovery, done, 1 of 1 steps done" in shown


def test_all_operations_have_one_scope_and_their_acts_are_recorded(nodes: Nodes) -> None:
    scopes = ["operate:cluster/operations"]
    made = nodes.ask("POST", "/auth/tokens", {"name": "night", "scopes": scopes})
    token = made.json()["token"]

    def is_known() -> bool:
        return nodes.ask("GET", PATH, token=token).status_code == 200

    wait_until(lambda: all(is_known() for _ in range(3)), "the token is known")
    asked = {"kind": "restart-recovery", "node_id": 1, "dry_run": True}
    assert nodes.ask("POST", PATH, asked, token).status_code == 200
    assert nodes.ask("POST", f"{PATH}/99/cancel", token=token).status_code == 404
    assert code(nodes.ask("GET", "/cluster/features", token=token)) == (403, "INSUFFICIENT_SCOPE")
    assert code(nodes.ask("POST", "/cluster/add", token=token)) == (403, "INSUFFICIENT_SCOPE")
    nodes.ask("DELETE", "/auth/tokens/night")


def test_the_features_are_shown_and_raised_at_any_node(nodes: Nodes) -> None:
    found = [nodes.ask("GET", "/cluster/features").json() for _ in range(3)]
    assert found[0] == found[1] == found[2]
    assert found[0]["level"] == found[0]["highest"]
    assert found[0]["members"] == {str(number): found[0]["highest"] for number in (1, 2, 3)}
    raised = nodes.ask("POST", "/cluster/features")
    assert (raised.status_code, raised.json()) == (200, found[0])
    assert json.loads(nodes.shell("cluster", "features", "--json")) == found[0]
    lines = nodes.shell("cluster", "features", "--raise").decode().splitlines()
    assert len(lines) == 4


def test_a_node_without_peers_has_no_operations(
    alone: Callable[[str, str], httpx.Response],
) -> None:
    for method, path in (
        ("GET", PATH),
        ("POST", PATH),
        ("GET", f"{PATH}/1"),
        ("POST", f"{PATH}/1/pause"),
        ("GET", "/cluster/features"),
        ("POST", "/cluster/features"),
    ):
        assert code(alone(method, path)) == (409, "NOT_A_CLUSTER")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Callable[[str, str], httpx.Response]]:
    """Asks a single node."""
    with ServerProcess(tmp_path / "data") as server, checked_client(base_url=server.url) as client:

        def ask(method: str, path: str) -> httpx.Response:
            body = {"kind": "rolling-restart"} if (method, path) == ("POST", PATH) else {}
            return client.request(method, path, json=None if method == "GET" else body)

        yield ask
