"""Nodes that do not belong together say so, and what to do; without a majority no write
succeeds."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import trustme

from streamd.transport.credentials import DEFAULT_TLS_NAME, expected_name
from tests.jepsen_like.cluster_processes import (
    ClusterProcesses,
    NodeProcess,
    add_voter,
    administer,
    status_of,
    wait_until,
)
from tests.support import prefork

TEXT = {"Content-Type": "text/plain"}
STREAM = "/v1/stream/refusals/a"
# A write waits 10 s for a leader, and what was forwarded 15 s for its answer.
_BOUND_S = 18.0
_PATIENCE_S = 30


def ask(
    node: NodeProcess, method: str, path: str = STREAM, body: bytes | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", node.client_port, timeout=_PATIENCE_S)
    with closing(connection):
        connection.request(method, path, body, TEXT)
        response = connection.getresponse()
        return response.status, response.read()


def code_of(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


# -- no majority ------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[tuple[ClusterProcesses, NodeProcess]]:
    """A former leader with a stream; the other two are killed."""
    with ClusterProcesses(tmp_path, proxied=False) as cluster:
        leader = cluster.leader()
        assert ask(leader, "PUT")[0] == 201
        assert ask(leader, "POST", body=b"kept")[0] == 204
        for other in cluster.followers(leader):
            other.kill()
        yield cluster, leader


def test_without_a_majority_writes_fail_and_local_reads_succeed(
    alone: tuple[ClusterProcesses, NodeProcess],
) -> None:
    cluster, node = alone
    wait_until(lambda: not node.is_ready(), "not ready any more")
    wait_until(lambda: status_of(node)["role"] != "leader", "deposed")
    requests = [
        ("POST", STREAM, b"lost"),
        ("PUT", f"{STREAM}/new", None),
        ("GET", f"{STREAM}?offset=-1", None),
        ("GET", f"{STREAM}?offset=-1&live=sse", None),
    ]
    began = time.monotonic()
    with ThreadPoolExecutor(len(requests)) as clients:
        answers = list(clients.map(lambda request: ask(node, *request), requests))
    assert time.monotonic() - began < _BOUND_S
    for (status, answer), request in zip(answers, requests, strict=True):
        assert (status, code_of(answer)) == (503, "UNAVAILABLE"), request
    assert ask(node, "GET", f"{STREAM}?offset=-1&consistency=local") == (200, b"kept")
    refused = httpx.post(f"{node.url}/cluster/transfer", json={}, timeout=_PATIENCE_S)
    assert (refused.status_code, code_of(refused.content)) == (503, "UNAVAILABLE")
    assert int(refused.headers["retry-after"]) >= 1
    assert ask(node, "GET", "/healthz")[0] == 200

    for other in cluster.nodes.values():
        if not other.is_alive:
            other.start()
    cluster.wait_ready()
    for one in cluster.nodes.values():
        assert ask(one, "GET", f"{STREAM}?offset=-1") == (200, b"kept"), "nothing came later"


def test_a_recovered_survivor_serves_alone_and_gets_new_members(
    alone: tuple[ClusterProcesses, NodeProcess],
) -> None:
    cluster, survivor = alone
    former = [node for node in cluster.nodes.values() if node is not survivor]
    assert survivor.stop() == 0
    done = _recover(survivor, "--accept-data-loss")
    assert done.returncode == 0, done.stderr
    assert "starts with this node as its only voter" in done.stdout
    survivor.start()
    cluster.wait_ready()
    assert ask(survivor, "GET", f"{STREAM}?offset=-1") == (200, b"kept")
    assert ask(survivor, "POST", body=b" and more")[0] == 204

    # A node of the old cluster returns with its data, and is refused.
    former[0].start()
    wait_until(lambda: "holds data of cluster" in former[0].output, "it is told why")
    assert not former[0].is_ready()
    former[0].kill()
    newcomer = add_voter(cluster, 7, survivor)
    assert status_of(newcomer)["voters"] == sorted([survivor.node_id, 7])
    assert ask(newcomer, "GET", f"{STREAM}?offset=-1") == (200, b"kept and more")


def _recover(node: NodeProcess, *flags: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **node.environment}
    return prefork.run_text("recover", "--offline", *flags, environment=environment)


def test_a_running_node_is_not_recovered(alone: tuple[ClusterProcesses, NodeProcess]) -> None:
    _, survivor = alone
    refused = _recover(survivor, "--accept-data-loss")
    assert refused.returncode == 1
    assert "in use by another streamd" in refused.stderr
    assert survivor.is_alive


# -- nodes that do not belong -----------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three nodes that strangers try to join."""
    with ClusterProcesses(tmp_path_factory.mktemp("refusals"), proxied=False) as cluster:
        yield cluster


@pytest.fixture
def stranger(cluster: ClusterProcesses) -> Iterator[NodeProcess]:
    """A node outside of the cluster, not started yet, with a directory of its own."""
    node = cluster.prepare_newcomer(8)
    yield node
    node.kill()
    shutil.rmtree(node.data_dir, ignore_errors=True)
    node.log_path.unlink(missing_ok=True)
    del cluster.nodes[8]


def _is_told(node: NodeProcess, words: str) -> None:
    wait_until(lambda: words in node.output, words)
    assert not node.is_ready()


def test_a_node_with_another_cluster_name_learns_which_setting_is_wrong(
    cluster: ClusterProcesses, stranger: NodeProcess
) -> None:
    stranger.environment["STREAMD_CLUSTER_NAME"] = "elsewhere"
    stranger.start()
    _is_told(stranger, "correct cluster.name or cluster.routes")
    status, refused = cluster.leader().post(
        "/cluster/add", {"address": cluster.peer_address(stranger.node_id)}
    )
    assert (status, refused["error"]["code"]) == (502, "NO_ANSWER")


def test_a_node_id_that_is_taken_is_refused(
    cluster: ClusterProcesses, stranger: NodeProcess
) -> None:
    stranger.environment["STREAMD_SERVER_NODE_ID"] = "2"
    stranger.start()
    _is_told(stranger, "give this one an id that no node has had")
    cluster.wait_ready([1, 2, 3])


def test_a_node_with_data_of_another_cluster_is_refused(
    cluster: ClusterProcesses, stranger: NodeProcess
) -> None:
    """A node founded its own cluster, under the same name."""
    routes = stranger.environment.pop("STREAMD_CLUSTER_ROUTES")
    stranger.environment["STREAMD_CLUSTER_BOOTSTRAP_NODE_ID"] = "8"
    stranger.start()
    cluster.wait_ready([8])
    assert stranger.stop() == 0
    stranger.environment["STREAMD_CLUSTER_ROUTES"] = routes
    stranger.start()
    _was_told = "given the other cluster's routes or data directory"
    wait_until(lambda: _was_told in stranger.output, _was_told)
    cluster.wait_ready([1, 2, 3])


def test_a_second_process_on_the_same_data_is_refused(
    cluster: ClusterProcesses, stranger: NodeProcess
) -> None:
    stranger.environment["STREAMD_SERVER_DATA_DIR"] = str(cluster.nodes[1].data_dir)
    stranger.environment["STREAMD_SERVER_NODE_ID"] = "1"
    stranger.start()
    assert stranger.wait() == 1
    assert "in use by another streamd" in stranger.output


def test_data_of_another_node_is_refused(cluster: ClusterProcesses, stranger: NodeProcess) -> None:
    stranger.start()
    wait_until((stranger.data_dir / "log").exists, "it has data")
    stranger.kill()
    stranger.environment["STREAMD_SERVER_NODE_ID"] = "9"
    stranger.start()
    assert stranger.wait() == 1
    assert "belongs to node 8, not 9: set server.node_id to that" in stranger.output


def test_a_member_without_its_data_is_advised_to_return_under_another_id(
    cluster: ClusterProcesses,
) -> None:
    node = add_voter(cluster, 7, cluster.leader())
    node.kill()
    shutil.rmtree(node.data_dir)
    node.start()
    _is_told(node, "its data is gone")
    wait_until(lambda: status_of(node)["membership"] == "data lost", "its status says so")
    status, answer = ask(node, "POST", body=b"x")
    assert (status, code_of(answer)) == (503, "NODE_DATA_LOST")
    assert "add it under an id never used before" in node.output
    administer(cluster.leader(), "remove", node_id=7)
    node.kill()
    del cluster.nodes[7]


# -- TLS between peers ------------------------------------------------------------------------


class _Authority:
    """Certificates for this machine, and their authority."""

    def __init__(self, directory: Path, *names: str) -> None:
        directory.mkdir()
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", *names)
        self.paths = {name: str(directory / f"{name}.pem") for name in ("cert", "key", "ca")}
        issued.cert_chain_pems[0].write_to_path(self.paths["cert"])
        issued.private_key_pem.write_to_path(self.paths["key"])
        authority.cert_pem.write_to_path(self.paths["ca"])

    @property
    def environment(self) -> dict[str, str]:
        return {f"STREAMD_CLUSTER_TLS_{name.upper()}": path for name, path in self.paths.items()}


def test_peers_prove_their_identity_and_another_authority_is_refused(tmp_path: Path) -> None:
    names = [expected_name(DEFAULT_TLS_NAME, node_id, "jepsen") for node_id in (1, 2, 3)]
    own = _Authority(tmp_path / "own", *names)
    foreign = _Authority(tmp_path / "foreign", expected_name(DEFAULT_TLS_NAME, 4, "jepsen"))
    with ClusterProcesses(tmp_path, environment=own.environment, proxied=False) as cluster:
        for node in cluster.nodes.values():
            assert ask(node, "PUT")[0] in (200, 201)
        impostor = cluster.prepare_newcomer(4)
        impostor.environment.update(foreign.environment)
        impostor.start()
        wait_until(lambda: "certificate" in impostor.output.lower(), "it is told about TLS")
        status, refused = cluster.leader().post(
            "/cluster/add", {"address": cluster.peer_address(4)}
        )
        assert (status, refused["error"]["code"]) == (502, "NO_ANSWER")
        assert not impostor.is_ready()
        impostor.kill()

        nameless = cluster.prepare_newcomer(6)
        nameless.start()
        wait_until(lambda: "node-6.jepsen.streamd" in nameless.output, "it is told of its name")
        assert not nameless.is_ready()
        nameless.kill()

        plain = cluster.prepare_newcomer(5)
        for name in own.environment:
            del plain.environment[name]
        plain.start()
        wait_until(lambda: "no peer" in plain.output, "it finds nobody to talk to")
        assert not plain.is_ready()
        plain.kill()
        del cluster.nodes[4], cluster.nodes[5], cluster.nodes[6]
        cluster.wait_ready()


def test_a_cluster_with_a_secret_accepts_only_nodes_that_know_it(tmp_path: Path) -> None:
    secret, other = tmp_path / "secret", tmp_path / "other"
    secret.write_text("5" * 64 + "\n")
    other.write_text("6" * 64)
    environment = {"STREAMD_CLUSTER_SECRET_FILE": str(secret)}
    with ClusterProcesses(tmp_path, environment=environment, proxied=False) as cluster:
        for node in cluster.nodes.values():
            assert ask(node, "PUT")[0] in (200, 201)
        stranger = cluster.prepare_newcomer(4)
        stranger.environment["STREAMD_CLUSTER_SECRET_FILE"] = str(other)
        stranger.start()
        wait_until(lambda: "cluster.secret_file" in stranger.output, "it is told what to do")
        assert not stranger.is_ready()
        stranger.kill()
        del cluster.nodes[4]
        cluster.wait_ready()
