"""Disks fail, fill up, slow down, lose writes and return damaged data, one node's at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.strace import injecting, injecting_into, needs_strace
from tests.jepsen_like.cluster_processes import (
    ClusterProcesses,
    NodeProcess,
    add_voter,
    administer,
    status_of,
    wait_until,
)
from tests.jepsen_like.workload import PHASE_S, under_load
from tests.storage.images import newest_file

pytestmark = pytest.mark.long

_SLOW_US = 3_000_000


def _tear(node: NodeProcess) -> None:
    file, written = newest_file(node.data_dir)
    file.write_bytes(file.read_bytes()[: written.stop - 7])


def _flip_a_bit(node: NodeProcess) -> None:
    file, written = newest_file(node.data_dir)
    content = bytearray(file.read_bytes())
    content[written[len(written) // 2]] ^= 0x10
    file.write_bytes(content)


def _truncate(node: NodeProcess) -> None:
    """Far below the entries that it has confirmed."""
    file, written = newest_file(node.data_dir)
    file.write_bytes(file.read_bytes()[: written[len(written) // 3]])


def test_a_damaged_log_of_one_node_is_repaired_from_its_peers(cluster: ClusterProcesses) -> None:
    damages: list[Callable[[NodeProcess], None]] = [_tear, _flip_a_bit, _truncate]
    with under_load(cluster) as work:
        for number, damage in enumerate(damages, 1):
            work.work(PHASE_S / 2)
            node = cluster.followers(cluster.leader())[number % 2]
            found = node.output.count("the log has lost entries")
            assert node.stop() == 0
            damage(node)
            node.start()
            cluster.wait_ready()
            assert node.output.count("the log has lost entries") > found, damage
            work.wait_progress()
            wait_until(lambda node=node: not (node.data_dir / "lost").exists(), "trusted again")


def test_a_founder_that_lost_its_log_early_founds_no_second_cluster(
    cluster: ClusterProcesses,
) -> None:
    """Nothing is left of its log, and its state was not stored yet."""
    founder = cluster.nodes[1]
    wait_until(lambda: (founder.data_dir / "floor").exists(), "known how far the log was")
    founder.kill()
    shutil.rmtree(founder.data_dir / "log")
    shutil.rmtree(founder.data_dir / "state")
    founder.start()
    cluster.wait_ready()
    assert "the log has lost entries" in founder.output
    wait_until(lambda: not (founder.data_dir / "lost").exists(), "trusted again")


def test_a_disk_that_was_set_back_is_noticed_and_the_node_replaced(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    with under_load(cluster) as work:
        leader = cluster.leader()
        node = max(cluster.followers(leader), key=lambda one: one.node_id)
        work.send_clients_away_from(node.node_id)
        assert node.stop() == 0
        shutil.copytree(node.data_dir, tmp_path / "backup")
        node.start()
        cluster.wait_ready()
        work.work()
        assert node.stop() == 0
        shutil.rmtree(node.data_dir)
        shutil.copytree(tmp_path / "backup", node.data_dir)
        node.start()
        assert node.wait() == 1
        assert "the disk has lost what it had confirmed" in node.output
        assert "add it under an id never used before" in node.output
        work.wait_writes_elsewhere(node.node_id)
        administer(leader, "remove", node_id=node.node_id)
        add_voter(cluster, 4, leader)


# -- errors and delays, injected by strace ----------------------------------------------------


@needs_strace
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_follower_whose_disk_fails_stops_and_the_others_continue(
    cluster: ClusterProcesses, tmp_path: Path, error: str
) -> None:
    with under_load(cluster) as work:
        failing = cluster.followers(cluster.leader())[0]
        assert failing.stop() == 0
        failing.start(injecting("fdatasync", f"error={error}", "40+", tmp_path / "trace"))
        assert failing.wait() == 1
        work.wait_writes_elsewhere(failing.node_id)
        failing.start()
        cluster.wait_ready()
    assert "Nothing was acknowledged after this" in failing.output


@needs_strace
def test_a_leader_whose_disk_fails_acknowledges_nothing_and_has_a_successor(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    with under_load(cluster) as work:
        failing = cluster.followers(cluster.leader())[0]
        assert failing.stop() == 0
        failing.start(injecting("fdatasync", "error=EIO", "400+", tmp_path / "trace"))
        cluster.wait_ready()
        administer(failing, "transfer", node_id=failing.node_id)
        assert failing.wait() == 1
        cluster.leader(but=failing.node_id)
        work.wait_writes_elsewhere(failing.node_id)
        failing.start()
        cluster.wait_ready()
    assert "Nothing was acknowledged after this" in failing.output


@needs_strace
def test_a_leader_whose_disk_is_full_has_a_successor_and_returns_when_there_is_room(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    with under_load(cluster) as work:
        work.work(PHASE_S / 2)
        full = cluster.leader()
        assert full.process is not None
        files = list((full.data_dir / "log").iterdir())
        trace = tmp_path / "trace"
        with injecting_into(full.process.pid, "write,pwrite64", "error=ENOSPC", files, trace):
            assert full.wait() == 1
        cluster.leader(but=full.node_id)
        work.wait_writes_elsewhere(full.node_id)
        full.start()
        cluster.wait_ready()
    assert "No space left on device" in full.output
    assert "Nothing was acknowledged after this" in full.output


@needs_strace
def test_a_leader_whose_disk_becomes_slow_steps_down(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    with under_load(cluster) as work:
        slow = cluster.followers(cluster.leader())[0]
        assert slow.stop() == 0
        delay = f"delay_enter={_SLOW_US}"
        slow.start(injecting("fdatasync", delay, "400+", tmp_path / "trace"))
        cluster.wait_ready()
        administer(slow, "transfer", node_id=slow.node_id)
        successor = cluster.leader(but=slow.node_id)
        work.wait_writes_elsewhere(slow.node_id)
        work.work()
        assert status_of(successor)["role"] == "leader"
        slow.kill()
        slow.start()
        cluster.wait_ready()
