"""Members are added and removed under load, and leadership is transferred."""

from __future__ import annotations

import shutil

import pytest

from tests.jepsen_like.cluster_processes import (
    ELECTION_TIMEOUT_S,
    ONE_ELECTION_S,
    ClusterProcesses,
    add_voter,
    administer,
    wait_until,
)
from tests.jepsen_like.workload import PHASE_S, under_load

pytestmark = pytest.mark.long


def test_a_fourth_node_becomes_a_voter_and_the_leader_is_removed_under_load(
    cluster: ClusterProcesses,
) -> None:
    with under_load(cluster) as work:
        work.work(PHASE_S / 2)
        add_voter(cluster, 4, cluster.followers(cluster.leader())[0])
        work.send_clients_to(4)
        work.work(PHASE_S / 2)
        leader = cluster.leader()
        work.send_clients_away_from(leader.node_id)
        answer = administer(cluster.followers(leader)[0], "remove", node_id=leader.node_id)
        assert answer["voters"] == sorted(set(cluster.nodes) - {leader.node_id})
        work.work(PHASE_S / 2)
        assert leader.stop() == 0
        cluster.leader(but=leader.node_id)
        work.work(PHASE_S / 2)
    print(f"longest time without an acknowledged append: {work.longest_gap():.2f} s")
    assert work.longest_gap() < ONE_ELECTION_S


def test_leadership_is_transferred_and_back_under_load(cluster: ClusterProcesses) -> None:
    with under_load(cluster) as work:
        for _ in range(4):
            work.work(PHASE_S / 2)
            leader = cluster.leader()
            to = cluster.followers(leader)[0].node_id
            assert administer(leader, "transfer", node_id=to)["leader_id"] == to
    print(f"longest time without an acknowledged append: {work.longest_gap():.2f} s")
    assert work.longest_gap() < ELECTION_TIMEOUT_S


def test_a_member_whose_disk_was_wiped_is_refused_and_returns_under_a_new_id(
    cluster: ClusterProcesses,
) -> None:
    with under_load(cluster) as work:
        leader = cluster.leader()
        wiped = max(cluster.followers(leader), key=lambda node: node.node_id)
        work.send_clients_away_from(wiped.node_id)
        wiped.kill()
        shutil.rmtree(wiped.data_dir)
        wiped.start()
        wait_until(lambda: "its data is gone" in wiped.output, "the wiped node told why")
        work.work()
        assert not wiped.is_ready()
        wiped.kill()
        administer(leader, "remove", node_id=wiped.node_id)
        add_voter(cluster, 4, leader)
        work.send_clients_to(4)
        work.work(PHASE_S / 2)
