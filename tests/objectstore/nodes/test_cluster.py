"""Three nodes over one store: leaders change in mid-flush and in mid-outage, clients at work all
along, and in the end every node reads everything from the store (I1, I7)."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.jepsen_like.clients import path_of
from tests.jepsen_like.cluster_processes import ClusterProcesses, NodeProcess
from tests.jepsen_like.workload import PHASE_S, Workload, under_load
from tests.objectstore.conftest import s3_store
from tests.objectstore.nodes.ledger import read_whole
from tests.objectstore.nodes.running import ALL, PREFIX, cold_environment, command, look, wait_until
from tests.objectstore.nodes.verdict import judge
from tests.support.minio import MinioServer
from tests.support.ports import unused_port
from tests.support.s3_proxy import Fault, Moment, S3Proxy

pytestmark = pytest.mark.long


@pytest.fixture
def cluster(
    minio: MinioServer, bucket: str, proxy: S3Proxy, tmp_path: Path
) -> Iterator[ClusterProcesses]:
    environment = cold_environment(minio, bucket, proxy.endpoint)
    with ClusterProcesses(tmp_path, environment=environment) as cluster:
        yield cluster
        cluster.show_logs()


def is_only_cold(node: NodeProcess) -> bool:
    """Whether everything is in the store and evicted from this node."""
    found = look(node.url)
    return found is not None and found["hot_bytes"] == 0 and found["local_bytes"] == 0


def assert_reads_cold(cluster: ClusterProcesses, work: Workload) -> None:
    """Started again, with nothing in memory or on disk, each node reads what was there before."""
    for node in cluster.alive:
        wait_until(lambda node=node: is_only_cold(node), f"node {node.node_id} is only cold")
        assert node.stop() == 0
    for node in cluster.nodes.values():
        node.start()
    cluster.wait_ready()
    final = {o.stream: o.data for o in work.operations if o.kind == "final_read" and o.data}
    assert final
    for node in cluster.alive:
        connection = http.client.HTTPConnection("127.0.0.1", node.client_port, timeout=20)
        for stream, data in final.items():
            content, _ = read_whole(connection, path_of(stream))
            assert content.decode() == data, (node.node_id, stream)
        connection.close()
        metrics = node.get("/metrics")
        assert metrics is not None
        read = re.search(rb"streamd_cold_total\{what=.read_slices.\} (\d+)", metrics[1])
        assert read is not None
        assert int(read[1]) > 0, "hollow: nothing was read from the store"


def assert_sound(cluster: ClusterProcesses, minio: MinioServer, bucket: str) -> None:
    """Each node's state and the store agree, and the store has no orphans."""
    done = command(cluster.leader().url, "gc")
    assert done.returncode == 0, done.stderr
    store = s3_store(minio, bucket, prefix=PREFIX)
    for node in cluster.alive:
        assert node.stop() == 0
    for node in cluster.nodes.values():
        judge(node.data_dir, store).assert_sound(orphans=False)
    store.close()


@pytest.mark.parametrize(
    "moment", list(Moment) if ALL else [Moment.BEHIND], ids=lambda moment: moment.name.lower()
)
def test_the_successor_of_a_leader_killed_during_a_flush_continues(
    cluster: ClusterProcesses, proxy: S3Proxy, minio: MinioServer, bucket: str, moment: Moment
) -> None:
    with under_load(cluster) as work:
        for _ in range(3 if ALL else 1):
            work.work(PHASE_S / 2)
            hold = proxy.hold(moment, "PUT", "/packs/")
            hold.wait()
            leader = cluster.leader()
            leader.kill()
            cluster.leader(but=leader.node_id)
            # The store receives it when another node already leads.
            hold.release()
            work.work()
            leader.start()
            cluster.wait_ready()
    assert_reads_cold(cluster, work)
    assert_sound(cluster, minio, bucket)


def test_a_deposed_leader_that_keeps_flushing_changes_nothing(
    cluster: ClusterProcesses, proxy: S3Proxy, minio: MinioServer, bucket: str
) -> None:
    with under_load(cluster) as work:
        work.work(PHASE_S / 2)
        hold = proxy.hold(Moment.BEHIND, "GET", "/packs/")
        hold.wait()
        leader = cluster.leader()
        leader.pause()
        cluster.leader(but=leader.node_id)
        work.work()
        # It has read its pack back by now, and has forwarded the command to the leader.
        hold.release()
        leader.resume()
        work.work()
    assert_reads_cold(cluster, work)
    assert_sound(cluster, minio, bucket)


def test_a_leader_change_while_the_store_is_away(
    cluster: ClusterProcesses, proxy: S3Proxy, minio: MinioServer, bucket: str
) -> None:
    with under_load(cluster) as work:
        work.work(PHASE_S / 2)
        proxy.fail_all(Fault.SLOW_DOWN)
        work.work()
        leader = cluster.leader()
        leader.kill()
        cluster.leader(but=leader.node_id)
        work.work()
        leader.start()
        cluster.wait_ready()
        proxy.heal()
        work.work()
    assert proxy.done[Fault.SLOW_DOWN] > 10
    assert_reads_cold(cluster, work)
    assert_sound(cluster, minio, bucket)


@pytest.mark.parametrize("listener", ["one for all", "one for operators"])
def test_any_node_may_be_asked_to_flush_and_to_collect_garbage(
    minio: MinioServer, bucket: str, tmp_path: Path, listener: str
) -> None:
    environment = cold_environment(minio, bucket, minio.endpoint)
    cluster = ClusterProcesses(tmp_path, proxied=False, environment=environment)
    for node in cluster.nodes.values():
        if listener == "one for operators":
            node.environment["STREAMD_ADMIN_LISTEN"] = f"127.0.0.1:{unused_port()}"
    with cluster:
        leader = cluster.leader()
        for follower in cluster.followers(leader):
            assert (follower.admin_port == follower.client_port) == (listener == "one for all")
            url = f"http://127.0.0.1:{follower.admin_port}"
            for work in ("flush", "gc"):
                told = httpx.post(f"{url}/cluster/cold/{work}", json={}, timeout=20)
                assert told.status_code == 202, told.text
                done = command(url, work)
                assert done.returncode == 0, done.stderr
