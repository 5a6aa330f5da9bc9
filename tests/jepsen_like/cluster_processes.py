"""A cluster of real server processes on one machine, with links and nodes that can be broken."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.jepsen_like.fault_proxy import FaultProxy, Links
from tests.support import prefork
from tests.support.ports import unused_port
from tests.support.processes import RunningProcess

ELECTION_TIMEOUT_S = 1.0
# One election on a busy machine.
ONE_ELECTION_S = 4 * ELECTION_TIMEOUT_S

_DEADLINE_S = 45.0
_POLL_S = 0.03
_ASK_TIMEOUT_S = 2.0
_ADMIN_TIMEOUT_S = 30.0


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = _DEADLINE_S) -> None:
    """Poll until something is so. Raises AssertionError naming it when time has run out."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(_POLL_S)


class NodeProcess(RunningProcess):
    """One node: its process, which may be restarted, and its data."""

    DEADLINE_S = _DEADLINE_S

    def __init__(self, node_id: int, directory: Path, environment: Mapping[str, str]) -> None:
        super().__init__()
        self.node_id = node_id
        self.data_dir = directory / f"node{node_id}"
        self.log_path = directory / f"node{node_id}.log"
        self.client_port = unused_port()
        self.peer_port = unused_port()
        self.url = f"http://127.0.0.1:{self.client_port}"
        self.environment = {
            "STREAMD_SERVER_NODE_ID": str(node_id),
            "STREAMD_SERVER_LISTEN": f"127.0.0.1:{self.client_port}",
            "STREAMD_SERVER_DATA_DIR": str(self.data_dir),
            "STREAMD_CLUSTER_LISTEN": f"127.0.0.1:{self.peer_port}",
            **environment,
        }

    @property
    def admin_port(self) -> int:
        """Where it serves operations."""
        address = self.environment.get("STREAMD_ADMIN_LISTEN")
        return self.client_port if address is None else int(address.rpartition(":")[2])

    def start(self, wrapper: Sequence[str] = ()) -> None:
        """Start it; `wrapper` is put before the command (strace, for one)."""
        with self.log_path.open("ab") as log:
            self.process = prefork.start(["serve"], self.environment, log, wrapper)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    @property
    def output(self) -> str:
        """Its output so far, from all its processes."""
        return self.log_path.read_text(errors="replace")

    def get(self, path: str) -> tuple[int, bytes] | None:
        """Status and body of a GET, or None when it does not answer."""
        return self._ask("GET", path, None, _ASK_TIMEOUT_S)

    def post(self, path: str, body: Mapping[str, object] | None = None) -> tuple[int, Any]:
        """Status and decoded answer of an administrative request."""
        return self._administer("POST", path, body or {})

    def put(self, path: str, body: Mapping[str, object]) -> tuple[int, Any]:
        """As `post`, with a PUT."""
        return self._administer("PUT", path, body)

    def _administer(self, method: str, path: str, body: Mapping[str, object]) -> tuple[int, Any]:
        answer = self._ask(method, path, json.dumps(body), _ADMIN_TIMEOUT_S)
        assert answer is not None, f"node {self.node_id} did not answer {path}"
        return answer[0], json.loads(answer[1])

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if token := self.environment.get("STREAMD_ROOT_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _ask(
        self, method: str, path: str, body: str | None, timeout_s: float
    ) -> tuple[int, bytes] | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=timeout_s)
        try:
            connection.request(method, path, body, self._headers())
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def status(self) -> dict[str, Any] | None:
        """Its status and the cluster's, or None if it does not answer."""
        answer = self.get("/cluster/status")
        return json.loads(answer[1]) if answer is not None and answer[0] == 200 else None

    def is_ready(self) -> bool:
        answer = self.get("/readyz/cluster")
        return answer is not None and answer[0] == 200


class ClusterProcesses:
    """Nodes 1 to `count`, founded by node 1; inside a `with`, started and ready."""

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        *,
        environment: Mapping[str, str] | None = None,
        proxied: bool = True,
    ) -> None:
        """Without proxies links cannot be broken, and may use TLS."""
        self.directory = directory
        self.links = Links()
        # The number of workloads so far.
        self.runs = 0
        self.nodes: dict[int, NodeProcess] = {}
        self._proxies: list[FaultProxy] = []
        self._proxied = proxied
        self._environment = {
            "STREAMD_CLUSTER_NAME": "jepsen",
            "STREAMD_CLUSTER_BOOTSTRAP_NODE_ID": "1",
            "STREAMD_CLUSTER_ELECTION_TIMEOUT_MS": str(round(ELECTION_TIMEOUT_S * 1000)),
            "STREAMD_SERVER_SSE_HEARTBEAT_MS": "500",
            "STREAMD_SERVER_DRAIN_TIMEOUT_MS": "1000",
            **(environment or {}),
        }
        self._founders = range(1, count + 1)
        for node_id in self._founders:
            self.prepare(node_id)
        routes = ",".join(self.peer_address(node_id) for node_id in self._founders)
        for node in self.nodes.values():
            node.environment["STREAMD_CLUSTER_ROUTES"] = routes

    def prepare(self, node_id: int) -> NodeProcess:
        """A node of a given id, not started yet, whose peers dial its proxy."""
        node = NodeProcess(node_id, self.directory, self._environment)
        if self._proxied:
            proxy = FaultProxy(node_id, node.peer_port, self.links)
            self._proxies.append(proxy)
            node.environment["STREAMD_CLUSTER_ADVERTISE"] = proxy.address
        self.nodes[node_id] = node
        return node

    def prepare_newcomer(self, node_id: int) -> NodeProcess:
        """A node that is to be added later: it finds the cluster through the founders."""
        node = self.prepare(node_id)
        routes = ",".join(self.peer_address(founder) for founder in self._founders)
        node.environment["STREAMD_CLUSTER_ROUTES"] = routes
        return node

    def start_newcomer(self, node_id: int) -> NodeProcess:
        """A node that can be added; it must listen before it can answer."""
        node = self.prepare_newcomer(node_id)
        node.start()
        wait_until(lambda: node.get("/healthz") is not None, f"node {node_id} serves")
        return node

    def peer_address(self, node_id: int) -> str:
        """The address at which peers reach a node."""
        environment = self.nodes[node_id].environment
        listen = environment["STREAMD_CLUSTER_LISTEN"]
        return environment.get("STREAMD_CLUSTER_ADVERTISE", listen)

    def close_port(self, node_id: int) -> None:
        """Restart a founder, at whose address for peers nothing listens any longer."""
        self._proxies[node_id - 1].close()
        self.nodes[node_id].kill()
        self.nodes[node_id].start()

    def __enter__(self) -> ClusterProcesses:
        try:
            for node in self.nodes.values():
                node.start()
            self.wait_ready()
        except BaseException as error:
            self._end(error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        for node in self.nodes.values():
            node.kill()
        self.links.heal()
        for proxy in self._proxies:
            proxy.close()
        if error is not None:
            self.show_logs()

    def show_logs(self) -> None:
        """Print the end of each node's output, and the path of the whole output."""
        for node in self.nodes.values():
            if node.log_path.exists():
                print(f"-- node {node.node_id}, {node.log_path}\n{node.output[-6000:]}")

    # -- conditions to wait for ---------------------------------------------------------------

    @property
    def alive(self) -> list[NodeProcess]:
        return [node for node in self.nodes.values() if node.is_alive]

    def wait_ready(self, ids: Iterable[int] | None = None) -> None:
        """Wait until nodes, by default all that run, know a leader and are caught up."""
        for node in [self.nodes[i] for i in ids] if ids is not None else self.alive:
            wait_until(node.is_ready, f"node {node.node_id} ready")

    def statuses(self) -> dict[int, dict[str, Any]]:
        """The statuses of the nodes that answer."""
        told = {node.node_id: node.status() for node in self.alive}
        return {node_id: status for node_id, status in told.items() if status is not None}

    def leader(self, *, but: int = 0, among: Iterable[int] | None = None) -> NodeProcess:
        """Wait for a leader of the latest known term, other than `but`."""
        candidates = set(among if among is not None else self.nodes) - {but}
        found: list[int] = []

        def has_leader() -> bool:
            told = {i: s for i, s in self.statuses().items() if i in candidates}
            latest = max((status["term"] for status in told.values()), default=0)
            found[:] = [
                node_id
                for node_id, status in told.items()
                if status["role"] == "leader" and status["term"] == latest
            ]
            return bool(found)

        wait_until(has_leader, f"a leader among {sorted(candidates)}")
        return self.nodes[found[0]]

    def followers(self, leader: NodeProcess) -> list[NodeProcess]:
        return [node for node in self.alive if node is not leader]

    def fill(self, stream: str, appends: int, size: int) -> None:
        """Make a stream and append large bodies to it, each of `size` bytes."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.leader().client_port, timeout=_ADMIN_TIMEOUT_S
        )
        bodies = [None, *([os.urandom(size)] * appends)]
        for body in bodies:
            method = "PUT" if body is None else "POST"
            headers = {"Content-Type": "application/octet-stream"}
            connection.request(method, f"/v1/stream/{stream}", body, headers)
            response = connection.getresponse()
            assert response.status in (201, 204), (response.status, response.read())
            response.read()
        connection.close()

    def wait_converged(self) -> None:
        """Wait until all nodes that run have applied the same entries, and there are no more."""

        def has_converged() -> bool:
            told = list(self.statuses().values())
            keys = ("term", "leader_id", "last_log_index", "commit_index", "last_applied")
            places = {tuple(status[key] for key in keys) for status in told}
            settled = all(s["last_applied"] == s["last_log_index"] for s in told)
            return len(told) == len(self.alive) and len(places) == 1 and settled

        wait_until(has_converged, "all nodes at one place")


def status_of(node: NodeProcess) -> dict[str, Any]:
    """The status of a node that must answer."""
    status = node.status()
    assert status is not None
    return status


def term_of(node: NodeProcess) -> int:
    return int(status_of(node)["term"])


def cut_log_beyond(nodes: Iterable[NodeProcess], index: int) -> None:
    """Store the states of nodes and compact their logs until all begin after an entry."""
    for node in nodes:

        def is_cut(node: NodeProcess = node) -> bool:
            status, answer = node.post("/cluster/snapshot")
            assert status == 200, (status, answer)
            return int(answer["first_log_index"]) > index + 1

        wait_until(is_cut, f"the log of node {node.node_id} begins after {index}")


def administer(node: NodeProcess, operation: str, **request: object) -> dict[str, object]:
    """Send an administrative request to a node. Raises AssertionError when it refuses."""
    answer: dict[str, object]
    status, answer = node.post(f"/cluster/{operation}", request)
    assert status == 200, (operation, request, status, answer)
    return answer


def add_voter(cluster: ClusterProcesses, node_id: int, via: NodeProcess) -> NodeProcess:
    """A new node, started, added as a learner and promoted."""
    newcomer = cluster.start_newcomer(node_id)
    answer = administer(via, "add", address=cluster.peer_address(node_id))
    assert answer["learners"] == [node_id]

    def is_promoted() -> bool:
        status, answer = via.post("/cluster/promote", {"node_id": node_id})
        assert status == 200 or answer["error"]["code"] == "NOT_CAUGHT_UP", answer
        return status == 200

    wait_until(is_promoted, f"node {node_id} promoted")
    cluster.wait_ready()
    return newcomer
