"""Snapshots survive kill -9 and failing leaders, on real processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.jepsen_like.cluster_processes import ClusterProcesses, wait_until
from tests.support.server_process import ServerProcess

TEXT = {"Content-Type": "text/plain"}
START = "0000000000000000_0000000000000000"
CONTENT = b"0123456789abcdef" * 200_000
PATIENCE_S = 30.0


def prepare(url: str) -> str:
    """A stream with a record; returns the offset after it."""
    assert httpx.put(f"{url}/bucket", timeout=PATIENCE_S).status_code == 201
    assert httpx.put(f"{url}/bucket/s", headers=TEXT, timeout=PATIENCE_S).status_code == 201
    answer = httpx.post(f"{url}/bucket/s", content=b"one", headers=TEXT, timeout=PATIENCE_S)
    return str(answer.headers["stream-next-offset"])


def snapshot_of(url: str) -> bytes | None:
    """The latest snapshot as a client reads it; None if there is no snapshot."""
    answer = httpx.get(f"{url}/bucket/s/snapshot", follow_redirects=True, timeout=PATIENCE_S)
    return answer.content if answer.status_code == 200 else None


def test_a_published_snapshot_survives_kill_9(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        at = prepare(server.url)
        path = f"{server.url}/bucket/s/snapshot/{at}"
        answer = httpx.put(path, content=CONTENT, headers=TEXT, timeout=PATIENCE_S)
        assert answer.status_code == 204
        server.kill()
    with ServerProcess(tmp_path / "data") as server:
        assert snapshot_of(server.url) == CONTENT
        assert httpx.get(f"{server.url}/bucket/s").status_code == 410


def test_any_node_takes_a_snapshot_and_all_nodes_have_it(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, proxied=False) as cluster:
        leader = cluster.leader()
        follower, other = cluster.followers(leader)
        at = prepare(follower.url)
        path = f"{follower.url}/bucket/s/snapshot/{at}"
        answer = httpx.put(path, content=CONTENT, headers=TEXT, timeout=PATIENCE_S)
        assert answer.status_code == 204
        assert [snapshot_of(node.url) for node in (leader, follower, other)] == [CONTENT] * 3
        leader.kill()
        cluster.leader(but=leader.node_id)
        wait_until(lambda: snapshot_of(other.url) == CONTENT, "the snapshot after a failover")
        assert httpx.get(f"{follower.url}/bucket/s", timeout=PATIENCE_S).status_code == 410


def test_an_upload_whose_leader_dies_is_not_visible_and_can_be_repeated(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, proxied=False) as cluster:
        leader = cluster.leader()
        follower = cluster.followers(leader)[0]
        at = prepare(follower.url)
        path = f"{follower.url}/bucket/s/snapshot/{at}"
        half_way = threading.Event()

        def body() -> Iterator[bytes]:
            yield CONTENT[: len(CONTENT) // 2]
            half_way.set()
            leader.kill()
            yield CONTENT[len(CONTENT) // 2 :]

        answer = httpx.put(path, content=body(), headers=TEXT, timeout=PATIENCE_S)
        assert half_way.is_set()
        assert answer.status_code in (204, 503)
        if answer.status_code == 503:
            assert snapshot_of(follower.url) is None

            def published() -> bool:
                again = httpx.put(path, content=CONTENT, headers=TEXT, timeout=PATIENCE_S)
                return again.status_code == 204

            wait_until(published, "the snapshot published with the new leader")
        assert snapshot_of(follower.url) == CONTENT
