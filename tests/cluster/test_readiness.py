"""A node is ready only with a connection *to* the leader, by which it forwards writes, and asks
before it answers reads. That the leader dials it is not enough."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio

from streamd.config.settings import Config
from streamd.http.ops import create_ops_app
from streamd.node.leader_operations import LeaderOperations
from streamd.node.node import wall_clock_ms
from streamd.node.reports import NodeReports
from tests.sim.network import Port, address_of
from tests.sim.runtime import run_virtually
from tests.support.machines import Machine, Machines, all_ready, play, wait_until


async def readiness(machine: Machine) -> dict[str, int]:
    """The status of each probe."""
    operations = LeaderOperations(machine.node)
    reports = NodeReports(machine.node, Config(), operations, clock_ms=wall_clock_ms)
    app = create_ops_app(machine.metrics, machine.node, operations, reports, Random(1), Config())
    found = {}
    for probe in ("local", "cluster"):
        response = await app.test_client().get(f"/readyz/{probe}")
        found[probe] = response.status_code
    ready = float(found["cluster"] == 200)
    assert f"\nstreamd_ready {ready}\n".encode() in machine.metrics.exposition()
    return found


def test_a_follower_that_cannot_dial_its_leader_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: set[tuple[int, str]] = set()
    connect = Port.connect

    async def connect_unless_refused(self: Port, address: str) -> trio.abc.Stream:
        if (self._node_id, address) in refused:
            raise ConnectionRefusedError
        return await connect(self, address)

    monkeypatch.setattr(Port, "connect", connect_unless_refused)

    async def scenario(machines: Machines) -> None:
        leader, _, third = await all_ready(machines)
        assert await readiness(third) == {"local": 200, "cluster": 200}
        await third.kill()
        refused.add((third.node_id, address_of(leader.node_id)))
        machines.start(third)
        await wait_until(
            lambda: third.is_ready and third.node.group.view.leader_id == leader.node_id
        )
        assert leader.node.cluster is not None
        assert leader.node.cluster.connections()[third.node_id].connected
        assert await readiness(third) == {"local": 503, "cluster": 503}
        assert await readiness(leader) == {"local": 200, "cluster": 200}
        refused.clear()
        await wait_until(lambda: third.node.reaches_leader())
        assert await readiness(third) == {"local": 200, "cluster": 200}

    run_virtually(1, partial(play, scenario, tmp_path))
