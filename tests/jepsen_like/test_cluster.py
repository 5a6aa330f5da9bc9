"""Clusters of real processes keep their promises while nodes, links and disks fail.

Each test sets clients to work, breaks something, heals it, and has the recorded history checked:
see docs/jepsen.md. JEPSEN_S makes each stretch of work that many seconds long.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from statistics import median

import pytest

from tests.jepsen_like.clients import now_ns
from tests.jepsen_like.cluster_processes import (
    ELECTION_TIMEOUT_S,
    ONE_ELECTION_S,
    ClusterProcesses,
    NodeProcess,
    term_of,
    wait_until,
)
from tests.jepsen_like.workload import PHASE_S, Workload, pause_leader, under_load


@pytest.fixture(name="cluster")
def _cluster(kept: ClusterProcesses) -> ClusterProcesses:
    """Tests that break nodes or links heal them, so that all tests can share the cluster."""
    return kept


# -- nodes that stop --------------------------------------------------------------------------


@pytest.mark.long
def test_a_killed_leader_has_a_successor_within_two_election_timeouts(
    cluster: ClusterProcesses,
) -> None:
    killed: list[int] = []
    with under_load(cluster) as work:
        for _ in range(3):
            work.work(PHASE_S / 2)
            leader = cluster.leader()
            killed.append(now_ns())
            leader.kill()
            cluster.leader(but=leader.node_id)
            work.wait_writes_elsewhere(leader.node_id)
            leader.start()
            cluster.wait_ready()
    outages = [work.first_append_after(moment) for moment in killed]
    print("writes succeeded again after " + ", ".join(f"{s:.2f} s" for s in outages))
    assert median(outages) <= 2 * ELECTION_TIMEOUT_S


def test_live_readers_of_a_killed_leader_continue_elsewhere_without_a_gap(
    cluster: ClusterProcesses,
) -> None:
    with under_load(cluster) as work:
        for _ in range(2):
            leader = cluster.leader()
            for follower in work.followers:
                follower.follow_at(leader.node_id)
            work.wait_followers_at(leader.node_id)
            work.work(PHASE_S / 2)
            leader.kill()
            work.wait_writes_elsewhere(leader.node_id)
            leader.start()
            cluster.wait_ready()
    assert work.counts["event streams"] >= 3 * len(work.followers)


@pytest.mark.long
def test_all_nodes_killed_at_once_restart_with_everything(cluster: ClusterProcesses) -> None:
    with under_load(cluster) as work:
        for _ in range(2):
            work.work()
            for node in cluster.nodes.values():
                node.signal(signal.SIGKILL)
            for node in cluster.nodes.values():
                node.wait()
                node.start()
            cluster.wait_ready()
            work.wait_progress()


@pytest.mark.long
def test_a_rolling_restart_interrupts_no_client_for_longer_than_an_election(
    cluster: ClusterProcesses,
) -> None:
    with under_load(cluster) as work:
        for node in cluster.nodes.values():
            work.work(PHASE_S / 2)
            assert node.stop() == 0
            node.start()
            cluster.wait_ready()
    print(f"longest time without an acknowledged append: {work.longest_gap():.2f} s")
    assert work.longest_gap() < ONE_ELECTION_S


@pytest.mark.long
def test_a_stopped_leader_has_a_successor_before_an_election_timeout(
    cluster: ClusterProcesses,
) -> None:
    outages_s: list[float] = []
    with under_load(cluster) as work:
        for _ in range(3):
            work.work(PHASE_S / 2)
            leader = cluster.leader()
            term = term_of(leader)
            began = time.monotonic()
            leader.signal(signal.SIGTERM)
            successor = cluster.leader(but=leader.node_id)
            outages_s.append(time.monotonic() - began)
            assert term_of(successor) == term + 1
            assert leader.wait() == 0
            assert "leadership transferred" in leader.output
            leader.start()
            cluster.wait_ready()
    print("another led after " + ", ".join(f"{one:.2f} s" for one in outages_s))
    # On a busy machine one may take long.
    assert min(outages_s) < ELECTION_TIMEOUT_S


@pytest.mark.long
def test_a_paused_leader_answers_nothing_stale(cluster: ClusterProcesses) -> None:
    with under_load(cluster) as work:
        for number in range(6):
            # Whether a producer was waiting for the leader that was paused is a matter of chance.
            if number >= 2 and work.counts["retries"]:
                break
            work.work(PHASE_S / 2)
            pause_leader(cluster, work)
            work.wait_progress()
    assert work.counts["retries"], "no producer had to try again"


# -- links that fail --------------------------------------------------------------------------


def _wait_deposed(cluster: ClusterProcesses, node: NodeProcess) -> None:
    """Wait until a node no longer believes that it leads."""

    def is_deposed() -> bool:
        status = node.status()
        return status is not None and status["role"] != "leader"

    wait_until(is_deposed, f"node {node.node_id} deposed")


def _fail_over(cluster: ClusterProcesses, work: Workload, leader: NodeProcess) -> NodeProcess:
    """After its links failed: the leader is deposed, and the others continue under another."""
    successor = cluster.leader(but=leader.node_id)
    _wait_deposed(cluster, leader)
    work.wait_writes_elsewhere(leader.node_id)
    work.work()
    return successor


@pytest.mark.long
def test_a_partitioned_leader_acknowledges_and_answers_nothing(cluster: ClusterProcesses) -> None:
    with under_load(cluster) as work:
        work.work()
        leader = cluster.leader()
        cluster.links.isolate(leader.node_id, cluster.nodes)
        _fail_over(cluster, work, leader)
        cut_ns, unanswered = now_ns(), work.counts["reads unanswered"]
        wait_until(lambda: work.counts["reads unanswered"] > unanswered, "a read in vain")
        work.wait_writes_elsewhere(leader.node_id)
        healed_ns = now_ns()
    lonely = f"n{leader.node_id}"
    answered = [
        o
        for o in work.operations
        if o.node == lonely
        and o.outcome == "ok"
        and o.kind in ("append", "read", "head")
        and cut_ns < o.invoked_ns
        and o.returned_ns < healed_ns
    ]
    assert not answered
    assert work.acknowledged(cut_ns, healed_ns) > 0
    assert cluster.links.counts["held back"]


@pytest.mark.long
def test_a_leader_that_hears_nothing_steps_down(cluster: ClusterProcesses) -> None:
    with under_load(cluster) as work:
        work.work(PHASE_S / 2)
        leader = cluster.leader()
        for follower in cluster.followers(leader):
            cluster.links.cut(follower.node_id, leader.node_id)
        _fail_over(cluster, work, leader)
    assert cluster.links.counts["held back"]


@pytest.mark.long
def test_a_deaf_follower_does_not_disturb_the_others(cluster: ClusterProcesses) -> None:
    with under_load(cluster) as work:
        work.work(PHASE_S / 2)
        leader = cluster.leader()
        term = term_of(leader)
        deaf = cluster.followers(leader)[0]
        for other in cluster.nodes:
            if other != deaf.node_id:
                cluster.links.cut(other, deaf.node_id)
        # Long enough for it to miss its leader and ask for votes several times.
        work.work(max(PHASE_S, 4 * ELECTION_TIMEOUT_S))
        work.wait_writes_elsewhere(deaf.node_id)
        assert (cluster.leader(), term_of(leader)) == (leader, term)
    assert cluster.links.counts["held back"]
    assert (cluster.leader(), term_of(leader)) == (leader, term)


@pytest.mark.long
def test_the_leader_stays_when_only_a_bridge_connects_two_nodes(cluster: ClusterProcesses) -> None:
    with under_load(cluster) as work:
        work.work(PHASE_S / 2)
        leader = cluster.leader()
        term = term_of(leader)
        end, bridge = cluster.followers(leader)
        cluster.links.cut_both_ways(leader.node_id, end.node_id)
        work.work(max(PHASE_S, 4 * ELECTION_TIMEOUT_S))
        work.wait_writes_elsewhere(end.node_id)
        assert (cluster.leader(), term_of(bridge)) == (leader, term)
    assert cluster.links.counts["held back"]


@pytest.mark.long
def test_slow_and_unreliable_links_cost_only_time(cluster: ClusterProcesses) -> None:
    with under_load(cluster) as work:
        work.work(PHASE_S / 2)
        cluster.links.worsen(cluster.nodes, delay_s=0.005, jitter_s=0.03, break_probability=0.01)
        work.work(2 * PHASE_S)
    assert cluster.links.counts["delayed"] > 50
    assert cluster.links.counts["broken"]


@pytest.mark.long
def test_five_nodes_in_a_ring_continue(tmp_path: Path) -> None:
    """Each node reaches two others, a majority with itself, and no two nodes reach the same
    majority."""
    with ClusterProcesses(tmp_path, 5) as cluster, under_load(cluster) as work:
        work.work(PHASE_S / 2)
        ring = sorted(cluster.nodes)
        for place, node_id in enumerate(ring):
            for distance in (2, 3):
                cluster.links.cut(node_id, ring[(place + distance) % len(ring)])
        leader = cluster.leader()
        work.work(max(PHASE_S, 3 * ELECTION_TIMEOUT_S))
        work.wait_writes_elsewhere(*(i for i in ring if i != leader.node_id))
        assert cluster.links.counts["held back"]
