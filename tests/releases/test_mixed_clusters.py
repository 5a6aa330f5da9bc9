"""A cluster of two releases keeps its promises while it is upgraded, taken back, upgraded again.

Real processes: those of the earlier release run its sources. Clients work through all of it, links
and nodes fail, and at the end the history is checked (docs/jepsen.md).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.group.log_formats import LOG_FORMAT, lacking
from tests.jepsen_like.cluster_processes import (
    ClusterProcesses,
    NodeProcess,
    administer,
    wait_until,
)
from tests.jepsen_like.workload import PHASE_S, Workload, under_load
from tests.releases import sources

pytestmark = pytest.mark.long


class MixedCluster:
    """Three nodes that were founded with an earlier release."""

    def __init__(self, directory: Path, commit: str) -> None:
        self._earlier = sources.unpack(commit, directory / "earlier")
        self.cluster = ClusterProcesses(directory)
        for node in self.cluster.nodes.values():
            self._let_run_earlier(node)

    def _let_run_earlier(self, node: NodeProcess) -> None:
        node.environment["PYTHONPATH"] = str(self._earlier)

    def newcomer(self, node_id: int) -> NodeProcess:
        """A node of the earlier release that serves, and may be added."""
        node = self.cluster.prepare_newcomer(node_id)
        self._let_run_earlier(node)
        node.start()
        wait_until(lambda: node.get("/healthz") is not None, f"node {node_id} serves")
        return node

    def upgrade(self, node: NodeProcess) -> None:
        """Restart a node with this release."""
        assert node.stop() == 0
        del node.environment["PYTHONPATH"]
        node.start()
        self.cluster.wait_ready()

    def take_back(self, node: NodeProcess) -> None:
        """Restart a node with the earlier release."""
        assert node.stop() == 0
        self._let_run_earlier(node)
        node.start()

    def leader_last(self) -> list[NodeProcess]:
        """The nodes that run, in the order in which to restart them."""
        leader = self.cluster.leader()
        return [*self.cluster.followers(leader), leader]

    def upgrade_all(self) -> None:
        for node in self.leader_last():
            self.upgrade(node)

    def break_things(self, work: Workload) -> None:
        """Each node leads in turn, and the others follow; one that leads is cut off, one killed."""
        for node in self.cluster.alive:
            leader = self.cluster.leader()
            if node is not leader:
                administer(leader, "transfer", node_id=node.node_id)
            work.work(PHASE_S / 2)
        leader = self.cluster.leader()
        self.cluster.links.isolate(leader.node_id, self.cluster.nodes)
        self.cluster.leader(but=leader.node_id)
        work.wait_writes_elsewhere(leader.node_id)
        self.cluster.links.heal()
        self.cluster.wait_ready()
        self.kill_leader(work)

    def kill_leader(self, work: Workload) -> None:
        leader = self.cluster.leader()
        leader.kill()
        self.cluster.leader(but=leader.node_id)
        work.work(PHASE_S / 2)
        leader.start()
        self.cluster.wait_ready()

    def replace(self, node: NodeProcess, new_id: int, work: Workload) -> None:
        """Put a new node of the earlier release in the place of one (docs/operations.md)."""
        self.newcomer(new_id)
        work.send_clients_away_from(node.node_id)
        leader = self.cluster.leader(but=node.node_id)
        administer(leader, "add", address=self.cluster.peer_address(new_id))

        def is_promoted() -> bool:
            request = {"node_id": new_id, "replacing": node.node_id}
            status, answer = leader.post("/cluster/promote", request)
            assert status == 200 or answer["error"]["code"] == "NOT_CAUGHT_UP", answer
            return status == 200

        wait_until(is_promoted, f"node {new_id} promoted")
        assert node.stop() == 0
        self.cluster.wait_ready()
        work.send_clients_to(new_id)

    def assert_limits_subscriptions(self, node: NodeProcess, *, is_raised: bool) -> None:
        """An upgraded node limits subscriptions only once every member applies such a limit."""
        limits = {"max_subscriptions": 1}
        status, answer = node.put("/cluster/limits/identities/token:t_mixed", limits)
        if is_raised:
            assert (status, answer) == (200, limits)
        else:
            assert (status, answer["error"]["code"]) == (409, "FEATURES_NOT_RAISED")

    def assert_refuses(self, newcomer: NodeProcess, understood: int) -> None:
        """The cluster says to a new node of the earlier release what it lacks."""
        request = {"address": self.cluster.peer_address(newcomer.node_id)}
        leader = self.cluster.leader(but=newcomer.node_id)
        status, answer = leader.post("/cluster/add", request)
        assert (status, answer["error"]["code"]) == (409, "RELEASE_TOO_OLD")
        assert f"it lacks {lacking(understood, LOG_FORMAT)}" in answer["error"]["message"]
        newcomer.kill()


def test_the_last_release_is_upgraded_and_taken_back_by_new_nodes(tmp_path: Path) -> None:
    """It cannot read a directory of this one; so while one member runs it, nodes replace nodes."""
    mixed = MixedCluster(tmp_path, sources.last_release())
    with mixed.cluster as cluster:
        with under_load(cluster) as work:
            *upgraded, last = mixed.leader_last()
            for node in upgraded:
                mixed.upgrade(node)
            mixed.break_things(work)
            administer(cluster.leader(), "transfer", node_id=last.node_id)
            for node, new_id in zip(upgraded, (4, 5), strict=True):
                mixed.replace(node, new_id, work)
            mixed.kill_leader(work)
            mixed.upgrade_all()
            administer(cluster.leader(), "features")
            mixed.kill_leader(work)
        mixed.assert_refuses(mixed.newcomer(6), understood=1)
        member = cluster.followers(cluster.leader())[0]
        mixed.take_back(member)
        assert member.wait() == 1
        assert "has format 2" in member.output


def test_before_the_feature_level_is_raised_each_node_may_be_taken_back(tmp_path: Path) -> None:
    """Both read the same directories. What only this commit understands waits for the operator."""
    mixed = MixedCluster(tmp_path, sources.before_the_log_format())
    with mixed.cluster as cluster:
        with under_load(cluster) as work:
            *first, last = mixed.leader_last()
            for node in first:
                mixed.upgrade(node)
                mixed.assert_limits_subscriptions(node, is_raised=False)
            mixed.break_things(work)
            mixed.upgrade(last)
            mixed.kill_leader(work)
            for node in mixed.leader_last():
                mixed.take_back(node)
                cluster.wait_ready()
            mixed.kill_leader(work)
            mixed.upgrade_all()
            mixed.assert_limits_subscriptions(cluster.leader(), is_raised=False)
            administer(cluster.leader(), "features")
            mixed.assert_limits_subscriptions(cluster.leader(), is_raised=True)
            mixed.kill_leader(work)
        mixed.assert_refuses(mixed.newcomer(4), understood=LOG_FORMAT - 1)
        member = cluster.followers(cluster.leader())[0]
        mixed.take_back(member)
        assert member.wait() == 1
        assert f"has feature level {LOG_FORMAT}" in member.output
