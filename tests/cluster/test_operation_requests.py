"""What operators ask of operations, at any node; and steps that only they can do."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from streamd.protocol.problems import ProblemError
from streamd.streams.operations.model import Arguments, Operation
from streamd.streams.operations.requests import (
    Begin,
    Cancel,
    Confirm,
    OperationRequest,
    Pause,
    Resume,
)
from tests.sim.network import address_of
from tests.support.machines import Machine, Machines, Play, all_ready, wait_until

DRAIN = Begin("drain", Arguments(node_id=3), "ops")


async def ready(machines: Machines) -> tuple[Machine, Machine, Machine]:
    found = await all_ready(machines)
    await wait_until(lambda: all(one.node.group.state.header.features for one in found))
    return found


async def ask(machine: Machine, request: OperationRequest) -> dict[str, Any]:
    assert machine.node.operations is not None
    return await machine.node.operations.perform(request)


async def refused(machine: Machine, request: OperationRequest) -> str:
    with pytest.raises(ProblemError) as refusal:
        await ask(machine, request)
    return refusal.value.problem.code


def latest(machine: Machine) -> Operation:
    assert machine.node.operations is not None
    return machine.node.operations.recorded()[-1]


def test_a_dry_run_answers_the_steps_and_begins_nothing(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, other, _ = await ready(machines)
        answer = await ask(other, Begin("rolling-restart", dry_run=True))
        texts = [step["text"] for step in answer["steps"]]
        assert texts[-2:] == [
            f"transfer leadership away from node {leader.node_id}",
            f"restart node {leader.node_id}",
        ]
        assert leader.node.group.state.operations.last_id == 0

    play(scenario)


def test_what_cannot_be_is_refused_with_a_code(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        _, other, _ = await ready(machines)
        nobody = Begin("scale-up", Arguments(addresses=(address_of(9),)))
        assert await refused(other, nobody) == "OPERATION_REFUSED"
        assert await refused(other, Pause(1)) == "OPERATION_NOT_FOUND"
        endless = Begin("rolling-restart", Arguments(window_ms=10**9))
        assert await refused(other, endless) == "OPERATION_REFUSED"
        begun = await ask(other, DRAIN)
        assert (begun["id"], begun["state"], begun["requested_by"]) == (1, "running", "ops")
        assert await refused(other, DRAIN) == "OPERATION_IN_PROGRESS"
        assert await refused(other, Resume(1)) == "OPERATION_REFUSED"
        await ask(other, Pause(1))
        assert await refused(other, Pause(1)) == "OPERATION_REFUSED"
        assert await refused(other, Confirm(1)) == "NOT_WAITING"
        assert (await ask(other, Cancel(1)))["cancel_asked"]
        await wait_until(lambda: latest(other).has_ended)
        assert latest(other).state == "cancelled"
        assert await refused(other, Cancel(1)) == "OPERATION_ENDED"
        assert (await ask(other, DRAIN))["id"] == 2

    play(scenario)


def test_without_control_of_the_hosts_the_operator_does_the_step(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        await ready(machines)
        third = machines.all[2]
        drained = Begin("drain", Arguments(node_id=3))
        if third.leads:
            third, drained = machines.all[1], Begin("drain", Arguments(node_id=2))
        watching = next(one for one in machines.all if one is not third)
        await ask(watching, drained)
        await wait_until(lambda: latest(watching).state == "waiting_for_operator")
        assert latest(watching).why.startswith(f"stop node {third.node_id} (")
        await third.kill()
        await trio.sleep(5)
        assert latest(watching).state == "waiting_for_operator"
        await ask(watching, Confirm(1))
        await wait_until(lambda: latest(watching).state == "done")
        await ask(watching, Begin("restart-recovery", drained.arguments))
        await wait_until(lambda: latest(watching).state == "waiting_for_operator")
        machines.start(third)
        await wait_until(lambda: latest(watching).state == "done")

    play(scenario)


def test_a_full_disk_of_another_node_stops_the_operation(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, third = await ready(machines)
        third.node.group.admission.is_disk_low = True
        await ask(leader, Begin("drain", Arguments(node_id=second.node_id)))
        expected = f"the disk of node {third.node_id} is nearly full"
        await wait_until(lambda: latest(leader).why == expected)
        third.node.group.admission.is_disk_low = False
        await wait_until(lambda: latest(leader).state == "waiting_for_operator")

    play(scenario)
