"""Operators and clients at a healthy cluster of real processes."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import pytest

from streamd import __version__
from tests.jepsen_like.cluster_processes import ClusterProcesses, NodeProcess, status_of, wait_until
from tests.support import prefork

TEXT = {"Content-Type": "text/plain"}
_REDIRECTS = 3
_PATIENCE_S = 20
_LARGE_BYTES = 10 * 1024 * 1024


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three nodes that all tests here share; the third redirects writers to the leader."""
    cluster = ClusterProcesses(tmp_path_factory.mktemp("cluster"), proxied=False)
    cluster.nodes[_REDIRECTS].environment["STREAMD_SERVER_NON_LEADER"] = "redirect"
    with cluster:
        yield cluster


class Reply(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


def ask(
    node: NodeProcess, method: str, path: str, body: bytes | None = None, **headers: str
) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", node.client_port, timeout=_PATIENCE_S)
    with closing(connection):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {**TEXT, **named})
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())


def lead(cluster: ClusterProcesses, node_id: int) -> NodeProcess:
    """Transfer leadership to a node."""
    answer = streamd(cluster.leader(), "transfer", str(node_id))
    assert f"leader {node_id}" in answer.stdout, answer
    return cluster.nodes[node_id]


def streamd(node: NodeProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``streamd cluster`` against a node."""
    return prefork.run_text("cluster", "--url", node.url, *arguments)


# -- the command line -------------------------------------------------------------------------


def test_status_is_a_table_for_people(cluster: ClusterProcesses) -> None:
    leader = cluster.leader()
    for node in cluster.nodes.values():
        shown = streamd(node, "status")
        assert shown.returncode == 0, shown.stderr
        lines = shown.stdout.splitlines()
        assert lines[0].startswith(f"cluster jepsen  term {status_of(leader)['term']}")
        assert lines[1].split()[:4] == ["node", "role", "peers", "clients"]
        roles = {int(line.split()[0]): line.split()[1] for line in lines[2:]}
        expected = {i: "leader" if i == leader.node_id else "voter" for i in cluster.nodes}
        assert roles == expected
        for member, line in zip(cluster.nodes.values(), lines[2:], strict=True):
            assert cluster.peer_address(member.node_id) in line
            assert str(member.client_port) in line
            assert "ms ago" in line or member is leader
            assert line.split()[-1] == __version__


def test_status_is_json_for_machines(cluster: ClusterProcesses) -> None:
    leader = cluster.leader()
    for node in cluster.nodes.values():
        told = json.loads(streamd(node, "status", "--json").stdout)
        assert told["node_id"] == node.node_id
        assert told["version"] == __version__
        assert told["leader_id"] == leader.node_id
        assert told["role"] == ("leader" if node is leader else "follower")
        assert told["voters"] == sorted(cluster.nodes)
        assert told["learners"] == []
        assert 0 < told["last_applied"] <= told["commit_index"] <= told["last_log_index"]
    members = json.loads(streamd(leader, "status", "--json").stdout)["members"]
    others = [member for member in members if member["node_id"] != leader.node_id]
    assert all(member["last_contact_ms"] < 1000 for member in others)
    assert all(member["behind_entries"] >= 0 for member in others)
    assert {member["version"] for member in members} == {__version__}


def test_leadership_is_transferred_to_the_named_node_or_to_any_other(
    cluster: ClusterProcesses,
) -> None:
    for node_id in (1, 2):
        lead(cluster, node_id)
        assert cluster.leader().node_id == node_id
    assert streamd(cluster.nodes[3], "transfer").returncode == 0
    cluster.leader(but=2)


def test_a_transfer_to_an_unknown_node_is_refused(cluster: ClusterProcesses) -> None:
    refused = streamd(cluster.nodes[1], "transfer", "9")
    assert refused.returncode == 1
    assert "NOT_A_VOTER" in refused.stderr


def test_snapshot_compacts_the_log_of_that_node(cluster: ClusterProcesses) -> None:
    node = cluster.nodes[2]
    assert ask(node, "PUT", "/v1/stream/ops/cut").status in (200, 201)
    through = status_of(node)["last_applied"]
    done = streamd(node, "snapshot")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > through
    assert status_of(node)["first_log_index"] > through


def test_wait_ready_ends_when_the_node_is_ready_or_fails_at_its_timeout(
    cluster: ClusterProcesses,
) -> None:
    assert streamd(cluster.nodes[1], "wait-ready").returncode == 0
    absent = NodeProcess(9, cluster.directory, {})
    late = streamd(absent, "wait-ready", "--timeout", "0.3")
    assert late.returncode == 1
    assert "not ready within 0.3 s" in late.stderr


def test_a_node_that_does_not_answer_differs_from_one_that_refuses(
    cluster: ClusterProcesses,
) -> None:
    absent = NodeProcess(9, cluster.directory, {})
    assert streamd(absent, "status").returncode == 3
    assert "cannot be reached" in streamd(absent, "status").stderr
    refused = streamd(cluster.nodes[1], "remove", "9")
    assert (refused.returncode, "NOT_A_MEMBER" in refused.stderr) == (1, True)


# -- clients ----------------------------------------------------------------------------------


def test_a_large_body_through_a_follower_arrives_whole(cluster: ClusterProcesses) -> None:
    lead(cluster, 1)
    follower, third = cluster.nodes[2], cluster.nodes[3]
    body = os.urandom(_LARGE_BYTES)
    binary = {"Content_Type": "application/octet-stream"}
    assert ask(follower, "PUT", "/v1/stream/ops/large", None, **binary).status == 201
    appended = ask(follower, "POST", "/v1/stream/ops/large", body, **binary)
    assert appended.status == 204
    for node in (follower, third):
        content, offset = b"", "-1"
        while len(content) < _LARGE_BYTES:
            reply = ask(node, "GET", f"/v1/stream/ops/large?offset={offset}")
            assert reply.status == 200
            assert reply.body
            content, offset = content + reply.body, reply.headers["Stream-Next-Offset"]
        assert content == body
        assert offset == appended.headers["Stream-Next-Offset"]


def test_an_append_through_a_follower_is_read_at_once_at_any_node(
    cluster: ClusterProcesses,
) -> None:
    nodes = list(cluster.nodes.values())
    lead(cluster, 1)
    assert ask(nodes[1], "PUT", "/v1/stream/ops/anywhere").status == 201
    for number in range(20):
        writer, reader = nodes[number % 2], nodes[(number + 1) % 3]
        appended = ask(writer, "POST", "/v1/stream/ops/anywhere", b"<%d>" % number)
        seen = ask(reader, "HEAD", "/v1/stream/ops/anywhere")
        assert seen.headers["Stream-Next-Offset"] == appended.headers["Stream-Next-Offset"]


def test_a_node_that_redirects_sends_writers_to_the_leader(cluster: ClusterProcesses) -> None:
    leader = lead(cluster, 1)
    path = "/v1/stream/ops/redirected?a=b"
    for method in ("PUT", "POST", "DELETE"):
        sent_on = ask(cluster.nodes[_REDIRECTS], method, path, b"x")
        assert sent_on.status == 307
        assert sent_on.headers["Location"] == f"{leader.url}{path}"
    assert ask(leader, "PUT", path).status == 201
    assert ask(cluster.nodes[_REDIRECTS], "GET", path).status == 200, "reads are served here"


def test_a_redirecting_node_accepts_writes_itself_as_leader(cluster: ClusterProcesses) -> None:
    leader = lead(cluster, _REDIRECTS)
    assert ask(leader, "PUT", "/v1/stream/ops/taken").status == 201


def test_a_follower_wakes_live_readers_when_it_applies(cluster: ClusterProcesses) -> None:
    leader = lead(cluster, 1)
    assert ask(leader, "PUT", "/v1/stream/ops/live").status == 201
    reader = http.client.HTTPConnection("127.0.0.1", cluster.nodes[2].client_port, timeout=10)
    with closing(reader):
        reader.request("GET", "/v1/stream/ops/live?offset=-1&live=sse")
        events = reader.getresponse()
        assert events.status == 200
        for number in range(3):
            began = time.monotonic()
            ask(leader, "POST", "/v1/stream/ops/live", b"<%d>" % number)
            while events.readline().strip() != b"data:<%d>" % number:
                pass
            # Far below the heartbeat interval: the commit notice is sent at once.
            assert time.monotonic() - began < 1


# -- members ----------------------------------------------------------------------------------


@pytest.mark.long
def test_a_member_is_added_promoted_and_removed_by_command(cluster: ClusterProcesses) -> None:
    newcomer = cluster.start_newcomer(4)
    asked = cluster.followers(cluster.leader())[0]
    added = streamd(asked, "add", cluster.peer_address(4))
    assert added.returncode == 0, added.stderr
    assert "learners 4" in added.stdout
    assert "learner" in streamd(asked, "status").stdout
    again = streamd(asked, "add", cluster.peer_address(4))
    assert (again.returncode, "MEMBER_ALREADY" in again.stderr) == (1, True)

    promoted: list[subprocess.CompletedProcess[str]] = []

    def is_promoted() -> bool:
        promoted.append(streamd(asked, "promote", "4"))
        return promoted[-1].returncode == 0

    wait_until(is_promoted, "node 4 promoted")
    assert "voters 1 2 3 4" in promoted[-1].stdout
    cluster.wait_ready()
    removed = streamd(asked, "remove", "4")
    assert "voters 1 2 3, learners none" in removed.stdout
    wait_until(lambda: "removed from the cluster" in newcomer.output, "it says so in its log")
    wait_until(lambda: status_of(newcomer)["leader_id"] is None, "its leader has left it")
    for method, path in (("POST", "/v1/stream/s"), ("GET", "/v1/stream/s"), ("PUT", "/agents")):
        began = time.monotonic()
        reply = ask(newcomer, method, path, b"x" if method == "POST" else None)
        assert (reply.status, json.loads(reply.body)["error"]["code"]) == (503, "NODE_REMOVED")
        assert time.monotonic() - began < 5
    shown = streamd(newcomer, "status").stdout.splitlines()[1]
    assert shown.startswith("removed: node 4 has been removed from the cluster")
    assert newcomer.stop() == 0
    del cluster.nodes[4]


def test_an_impossible_change_is_refused_with_a_reason(cluster: ClusterProcesses) -> None:
    node = cluster.nodes[1]
    absent = NodeProcess(9, cluster.directory, {})
    for arguments, code in (
        (("add", f"127.0.0.1:{absent.peer_port}"), "NO_ANSWER"),
        (("add", cluster.peer_address(2)), "MEMBER_ALREADY"),
        (("promote", "2"), "NOT_A_LEARNER"),
        (("promote", "9"), "NOT_A_LEARNER"),
        (("remove", "9"), "NOT_A_MEMBER"),
    ):
        refused = streamd(node, *arguments)
        assert refused.returncode == 1
        assert refused.stderr.rstrip().endswith(f" {code})"), arguments
