"""A follower that was down for too long gets a Raft snapshot instead of the log, under load."""

from __future__ import annotations

import pytest

from tests.jepsen_like.cluster_processes import (
    ClusterProcesses,
    NodeProcess,
    cut_log_beyond,
    status_of,
    wait_until,
)
from tests.jepsen_like.workload import PHASE_S, Workload, under_load

pytestmark = pytest.mark.long

_INSTALLED = "a Raft snapshot was installed"
_BULK_BYTES = 1024 * 1024
_BULK_APPENDS = 12
# A piece of a Raft snapshot is larger, so hardly one arrives without an interruption.
_BREAK_EVERY_BYTES = 3 * 1024 * 1024


def _stopped_follower(cluster: ClusterProcesses, work: Workload) -> NodeProcess:
    """A follower that is down, and lacks entries that the others have compacted."""
    lagging = cluster.followers(cluster.leader())[0]
    lagging.kill()
    work.work(PHASE_S / 2)
    cut_log_beyond(cluster.alive, status_of(cluster.leader())["last_log_index"])
    return lagging


def test_a_follower_that_missed_compacted_entries_gets_a_raft_snapshot(
    cluster: ClusterProcesses,
) -> None:
    with under_load(cluster) as work:
        work.work(PHASE_S / 2)
        lagging = _stopped_follower(cluster, work)
        assert _INSTALLED not in lagging.output
        lagging.start()
        wait_until(lambda: _INSTALLED in lagging.output, "a Raft snapshot is installed")
        cluster.wait_ready()
    assert status_of(lagging)["first_log_index"] > 1


def test_a_transfer_that_is_often_interrupted_completes(cluster: ClusterProcesses) -> None:
    with under_load(cluster) as work:
        cluster.fill("jepsen/bulk", _BULK_APPENDS, _BULK_BYTES)
        lagging = _stopped_follower(cluster, work)
        leader = cluster.leader()
        cluster.links.break_every(leader.node_id, lagging.node_id, _BREAK_EVERY_BYTES)
        lagging.start()
        wait_until(lambda: _INSTALLED in lagging.output, "a Raft snapshot is installed")
    assert cluster.links.counts["broken"] >= 2
    assert leader.output.count("the transfer of a Raft snapshot was interrupted") >= 2
    assert leader.output.count("sending a Raft snapshot") == 1


def test_a_follower_killed_during_a_transfer_continues_with_its_pieces(
    cluster: ClusterProcesses,
) -> None:
    with under_load(cluster) as work:
        cluster.fill("jepsen/bulk", _BULK_APPENDS, _BULK_BYTES)
        lagging = _stopped_follower(cluster, work)
        incoming = lagging.data_dir / "incoming"
        for _ in range(2):
            lagging.start()
            wait_until(incoming.exists, "a Raft snapshot arrives")
            lagging.kill()
            assert _INSTALLED not in lagging.output
        lagging.start()
        wait_until(lambda: _INSTALLED in lagging.output, "a Raft snapshot is installed")
        cluster.wait_ready()
        wait_until(lambda: not incoming.exists(), "no file left")
