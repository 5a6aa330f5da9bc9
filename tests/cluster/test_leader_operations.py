"""Any node takes operations of the cold store, and gives the leader's reports: over the peer port,
without an address of the leader's operators."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from streamd.cluster.request_kinds import RequestKind
from streamd.http.protocol.connections import Channel
from streamd.http.protocol.messages import Request, Response
from streamd.node.leader_operations import COLD_WORK
from streamd.transport.errors import RequestRefused
from tests.sim.runtime import run_virtually
from tests.support.archived import cold_in
from tests.support.front_door import answer
from tests.support.machines import Machine, Machines, Scenario, all_ready, play, wait_until
from tests.support.nodes import append, create

HEADERS = {b"host": b"localhost", b"content-type": b"application/json"}


@pytest.fixture(name="play")
def _play(tmp_path: Path) -> Callable[[Scenario], None]:
    _, store = cold_in(tmp_path / "cold")
    return lambda scenario: run_virtually(1, partial(play, scenario, tmp_path, store=store))


async def ask(
    machine: Machine, method: str, path: str, query: str = ""
) -> tuple[int, dict[str, Any]]:
    """Status and body of a node's answer."""
    channel = cast("Channel", None)
    request = Request(method, path.encode(), query.encode(), HEADERS, b"{}", channel)
    response = await answer(machine.app.application, request)
    assert isinstance(response, Response)
    assert isinstance(response.body, bytes)
    return response.status, json.loads(response.body)


def of_the_first_release(leader: Machine) -> None:
    """Let a node answer its peers as release 0.1.0 does, which knows no such request."""
    cluster = leader.node.cluster
    assert cluster is not None
    on_request = cluster.on_request

    async def answered(peer_id: int, group_id: int, kind: int, payload: bytes) -> bytes:
        if kind == RequestKind.OPERATE:
            raise RequestRefused("UNKNOWN_REQUEST", f"request kind {kind}")
        return await on_request(peer_id, group_id, kind, payload)

    cluster.on_request = answered  # type: ignore[method-assign]


def test_a_follower_has_the_leader_do_the_work(play: Callable[[Scenario], None]) -> None:
    async def scenario(machines: Machines) -> None:
        leader, *followers = await all_ready(machines)
        await leader.node.group.writes.propose(create("a"))
        await leader.node.group.writes.propose(append("a", b"hot"))
        assert leader.node.group.state.header.hot_bytes == 3
        status, order = await ask(followers[0], "POST", "/cluster/cold/flush")
        assert (status, order["term"], order["hot_bytes"]) == (202, leader.node.group.view.term, 3)
        await wait_until(lambda: leader.node.flusher.passes >= order["pass"])
        assert leader.node.group.state.header.hot_bytes == 0
        for machine in machines.all:
            for work in COLD_WORK:
                status, order = await ask(machine, "POST", f"/cluster/cold/{work}")
                assert (status, order["term"]) == (202, leader.node.group.view.term)

    play(scenario)


def test_a_follower_gives_the_leaders_reports(play: Callable[[Scenario], None]) -> None:
    async def scenario(machines: Machines) -> None:
        leader, *followers = await all_ready(machines)
        for machine in followers:
            status, own = await ask(machine, "GET", "/cluster/cold")
            assert (status, own["node_id"], own["leads"]) == (200, machine.node_id, False)
            status, found = await ask(machine, "GET", "/cluster/cold", "at=leader")
            assert (status, found["node_id"], found["leads"]) == (200, leader.node_id, True)
            status, own = await ask(machine, "GET", "/cluster/status")
            assert (status, own["node_id"]) == (200, machine.node_id)
            status, found = await ask(machine, "GET", "/cluster/status", "at=leader")
            assert (status, found["node_id"]) == (200, leader.node_id)
            heard = {one["node_id"] for one in found["members"] if "last_contact_ms" in one}
            assert heard == {one.node_id for one in followers}

    play(scenario)


def test_a_report_is_the_nodes_own_while_the_leader_is_away(
    play: Callable[[Scenario], None],
) -> None:
    async def scenario(machines: Machines) -> None:
        leader, follower, third = await all_ready(machines)
        await leader.kill()
        await third.kill()
        for path in ("/cluster/status", "/cluster/cold"):
            status, found = await ask(follower, "GET", path, "at=leader")
            assert (status, found["node_id"]) == (200, follower.node_id)
        status, refused = await ask(follower, "POST", "/cluster/cold/flush")
        assert (status, refused["error"]["code"]) == (503, "UNAVAILABLE")

    play(scenario)


def test_a_leader_of_the_first_release_is_left_to_its_clients(
    play: Callable[[Scenario], None],
) -> None:
    async def scenario(machines: Machines) -> None:
        leader, follower, _ = await all_ready(machines)
        of_the_first_release(leader)
        status, told = await ask(follower, "POST", "/cluster/cold/flush")
        assert (status, told) == (307, {"leader_address": follower.node.leader_address()})
        status, found = await ask(follower, "GET", "/cluster/cold", "at=leader")
        assert (found["leads"], found["leader_address"]) == (False, told["leader_address"])

    play(scenario)


def test_a_report_is_of_the_leader_or_of_the_node_itself(play: Callable[[Scenario], None]) -> None:
    async def scenario(machines: Machines) -> None:
        _, follower, _ = await all_ready(machines)
        for path in ("/cluster/status", "/cluster/cold"):
            status, refused = await ask(follower, "GET", path, "at=node-7")
            assert (status, refused["error"]["code"]) == (400, "INVALID_REQUEST")

    play(scenario)
