"""A node acts on its own host for the leader, and for no other node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from streamd.config.supervisor import SupervisorConfig
from streamd.group.proposals import Unavailable
from streamd.node.host_requests import host_control
from streamd.streams.operations.hosts import Host, HostError
from tests.sim.runtime import run_virtually
from tests.support.machines import Machine, Machines, Scenario, all_ready, play

RESTART = b'{"deed":"restart"}'
ADDRESS = "10.0.0.9:4438"


@pytest.fixture(name="play")
def _play(tmp_path: Path) -> Callable[[Scenario], None]:
    return lambda scenario: run_virtually(1, partial(play, scenario, tmp_path))


async def ask(machine: Machine, node_id: int) -> bytes:
    """One node asks another one to restart itself."""
    assert machine.node.cluster is not None
    return await machine.node.cluster.ask_about_host(node_id, RESTART, timeout_s=5)


def test_a_node_takes_orders_about_its_host_from_the_leader_only(
    play: Callable[[Scenario], None],
) -> None:
    async def scenario(machines: Machines) -> None:
        leader, one, other = await all_ready(machines)
        assert b"node %d is not configured as a unit" % one.node_id in await ask(
            leader, one.node_id
        )
        with pytest.raises(Unavailable, match=f"node {one.node_id} is not the leader"):
            await ask(one, other.node_id)
        with pytest.raises(Unavailable, match=f"node {one.node_id} is not the leader"):
            await ask(one, leader.node_id)

    play(scenario)


def test_the_leader_reports_why_a_node_cannot_act(play: Callable[[Scenario], None]) -> None:
    async def scenario(machines: Machines) -> None:
        leader, one, _ = await all_ready(machines)
        assert leader.app.cluster is not None
        own = Host(leader.node_id, ADDRESS, ADDRESS)
        hosts = host_control(SupervisorConfig(kind="systemd"), leader.app.cluster, own)
        with pytest.raises(HostError, match="node 9 cannot restart itself: "):
            await hosts.restart(Host(9, ADDRESS, ADDRESS))
        with pytest.raises(HostError, match=f"node {one.node_id} is not configured as a unit"):
            await hosts.restart(Host(one.node_id, ADDRESS, ADDRESS))

    play(scenario)
