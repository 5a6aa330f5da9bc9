"""Any node gives the reports of all members: over the peer port, or with the reason why not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.test_leader_operations import ask, of_the_first_release
from tests.sim.runtime import run_virtually
from tests.support.machines import Machines, Scenario, all_ready, play

_AHEAD_MS = 7_000


@pytest.fixture(name="play")
def _play(tmp_path: Path) -> Callable[[Scenario], None]:
    return lambda scenario: run_virtually(1, partial(play, scenario, tmp_path))


def test_each_node_gives_the_report_of_each_member(play: Callable[[Scenario], None]) -> None:
    async def scenario(machines: Machines) -> None:
        await all_ready(machines)
        for machine in machines.all:
            for other in machines.all:
                path = f"/cluster/debug/nodes/{other.node_id}/status"
                status, found = await ask(machine, "GET", path)
                assert (status, found["error"]) == (200, None)
                assert (found["node_id"], found["asked_by"]) == (other.node_id, machine.node_id)
                # A follower's own: what only the leader knows is not in it.
                assert found["report"]["node_id"] == other.node_id
                assert found["report"]["role"] == ("leader" if other.leads else "follower")

    play(scenario)


def test_the_times_of_a_report_are_those_of_the_node_that_asked(
    play: Callable[[Scenario], None],
) -> None:
    async def scenario(machines: Machines) -> None:
        one, two, _ = await all_ready(machines)
        two.ahead_ms = _AHEAD_MS
        before_ms = one._now_ms()
        _, found = await ask(one, "GET", f"/cluster/debug/nodes/{two.node_id}/status")
        assert before_ms <= found["asked_ms"] < found["answered_ms"] <= one._now_ms()
        _, found = await ask(two, "GET", f"/cluster/debug/nodes/{one.node_id}/status")
        assert found["asked_ms"] >= before_ms + _AHEAD_MS

    play(scenario)


def test_a_member_that_is_gone_is_an_error_in_the_answer(play: Callable[[Scenario], None]) -> None:
    async def scenario(machines: Machines) -> None:
        leader, gone, _ = await all_ready(machines)
        await gone.kill()
        status, found = await ask(leader, "GET", f"/cluster/debug/nodes/{gone.node_id}/config")
        assert (status, found["report"]) == (200, None)
        assert found["error"]
        assert not found["too_old"]

    play(scenario)


def test_a_member_that_cannot_be_reached_is_waited_for_ten_seconds_at_most(
    play: Callable[[Scenario], None],
) -> None:
    async def scenario(machines: Machines) -> None:
        leader, cut_off, _ = await all_ready(machines)
        machines.part(leader, cut_off)
        path = f"/cluster/debug/nodes/{cut_off.node_id}/metrics"
        status, found = await ask(leader, "GET", path)
        assert (status, found["report"]) == (200, None)
        assert found["answered_ms"] - found["asked_ms"] <= 10_100
        assert found["error"]

    play(scenario)


def test_a_member_of_an_earlier_release_is_named_as_such(play: Callable[[Scenario], None]) -> None:
    async def scenario(machines: Machines) -> None:
        leader, earlier, _ = await all_ready(machines)
        of_the_first_release(earlier)
        status, found = await ask(leader, "GET", f"/cluster/debug/nodes/{earlier.node_id}/log")
        assert (status, found["report"]) == (200, None)
        assert found["error"] == "its release has no such report"
        assert found["too_old"]

    play(scenario)


def test_only_members_and_known_reports_are_asked_for(play: Callable[[Scenario], None]) -> None:
    async def scenario(machines: Machines) -> None:
        leader, *_ = await all_ready(machines)
        for path, code in (
            ("/cluster/nodes/9", "NOT_A_MEMBER"),
            ("/cluster/debug/nodes/9/log", "NOT_A_MEMBER"),
            ("/cluster/debug/nodes/x/log", "INVALID_REQUEST"),
            ("/cluster/debug/nodes/1/flush", "INVALID_REQUEST"),
        ):
            _, refused = await ask(leader, "GET", path)
            assert refused["error"]["code"] == code, path

    play(scenario)
