"""Nodes whose wall clocks are hours apart, and which lead in turn."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from tests.jepsen_like.clients import TEXT, Connection, Reply, path_of
from tests.jepsen_like.cluster_processes import ClusterProcesses, NodeProcess, administer
from tests.jepsen_like.workload import PHASE_S, under_load
from tests.support.skewed_clock import SkewedClock, needs_compiler

pytestmark = pytest.mark.long

_HOUR_S = 3600
_AHEAD_S = {1: 0, 2: _HOUR_S, 3: -_HOUR_S}


@pytest.fixture
def skewed(tmp_path: Path) -> Iterator[ClusterProcesses]:
    """A cluster whose second node is an hour fast, and whose third is an hour slow."""
    clock = SkewedClock(tmp_path)
    cluster = ClusterProcesses(tmp_path)
    for node_id, ahead_s in _AHEAD_S.items():
        cluster.nodes[node_id].environment.update(clock.ahead(ahead_s))
    with cluster:
        yield cluster
        cluster.show_logs()


def _ask(
    node: NodeProcess, method: str, stream: str, headers: Mapping[str, str] | None = None
) -> Reply:
    connection = Connection(node.client_port, timeout_s=20)
    try:
        return connection.ask(method, path_of(stream), headers or {})
    finally:
        connection.close()


def _create(node: NodeProcess, stream: str, headers: Mapping[str, str]) -> None:
    reply = _ask(node, "PUT", stream, {**TEXT, **headers})
    assert reply.status == 201, reply


def _seen(cluster: ClusterProcesses, stream: str) -> list[int]:
    """The answers of the nodes about a stream: first the leader, which alone may end it, then the
    others."""
    leader = cluster.leader()
    nodes = [leader, *cluster.followers(leader)]
    return [_ask(node, "HEAD", stream).status for node in nodes]


def _lead(cluster: ClusterProcesses, node_id: int) -> None:
    answer = administer(cluster.leader(), "transfer", node_id=node_id)
    assert answer["leader_id"] == node_id
    cluster.wait_ready()


def _assert_skewed(cluster: ClusterProcesses) -> None:
    for node_id, ahead_s in _AHEAD_S.items():
        date = _ask(cluster.nodes[node_id], "HEAD", "jepsen/none").headers["Date"]
        told_s = parsedate_to_datetime(date).timestamp() - time.time()
        assert abs(told_s - ahead_s) < 60, f"hollow: node {node_id} is {told_s:.0f} s ahead"


@needs_compiler
def test_nodes_whose_clocks_are_an_hour_apart_agree_on_which_streams_have_expired(
    skewed: ClusterProcesses,
) -> None:
    half_an_hour = {"Stream-TTL": str(_HOUR_S // 2)}
    in_half_an_hour = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + _HOUR_S / 2))
    with under_load(skewed) as work:
        _assert_skewed(skewed)
        _lead(skewed, 1)
        first = skewed.nodes[1]
        _create(first, "clocks/window", half_an_hour)
        _create(first, "clocks/date", {"Stream-Expires-At": in_half_an_hour})
        _create(first, "clocks/lasting", {"Stream-TTL": str(9 * _HOUR_S)})
        work.work(PHASE_S / 2)
        for stream in ("window", "date", "lasting"):
            assert _seen(skewed, f"clocks/{stream}") == [200] * 3, "only the leader's clock counts"

        _lead(skewed, 2)
        work.work(PHASE_S / 2)
        assert _seen(skewed, "clocks/window") == [404] * 3
        assert _seen(skewed, "clocks/date") == [404] * 3
        assert _seen(skewed, "clocks/lasting") == [200] * 3

        # Log time stands still now: expired streams do not return, and new ones do not expire.
        _lead(skewed, 3)
        _create(skewed.nodes[3], "clocks/later", half_an_hour)
        work.work(PHASE_S / 2)
        assert _seen(skewed, "clocks/window") == [404] * 3
        assert _seen(skewed, "clocks/date") == [404] * 3
        for stream in ("lasting", "later"):
            assert _seen(skewed, f"clocks/{stream}") == [200] * 3
        _create(skewed.nodes[1], "clocks/window", half_an_hour)
        assert _seen(skewed, "clocks/window") == [200] * 3
