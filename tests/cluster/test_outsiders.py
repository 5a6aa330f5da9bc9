"""A node that is not a member answers at once, and says why and what to do."""

from __future__ import annotations

import shutil

import pytest
import trio

from streamd.cluster.administration import Add, Remove, Transfer
from streamd.group.proposals import NotAMember
from streamd.node import status
from tests.cluster.test_administration import have, newcomer
from tests.sim.network import address_of
from tests.support.machines import Machine, Machines, Play, all_ready, wait_until
from tests.support.nodes import create


async def refused_at_once(machine: Machine) -> NotAMember:
    """Why the node refuses writes, reads and changes of the members, without a wait."""
    began = trio.current_time()
    with pytest.raises(NotAMember) as of_write:
        await machine.node.group.writes.propose(create("a"))
    with pytest.raises(NotAMember) as of_read:
        await machine.node.group.reads.catch_up()
    with pytest.raises(NotAMember) as of_command:
        await have(machine, Transfer())
    assert trio.current_time() == began
    assert len({of_write.value.problem, of_read.value.problem, of_command.value.problem}) == 1
    assert status.report(machine.node)["advice"] == str(of_write.value)
    return of_write.value


def membership(machine: Machine) -> str:
    return str(status.report(machine.node)["membership"])


def test_a_removed_node_names_the_members(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, _, third = await all_ready(machines)
        assert {membership(machine) for machine in machines.all} == {"member"}
        await have(leader, Remove(third.node_id))
        await wait_until(lambda: not third.node.group.view.leader_id)
        told = await refused_at_once(third)
        assert told.problem.code == "NODE_REMOVED"
        members = sorted({1, 2, 3} - {third.node_id})
        assert f"whose members are {members[0]}, {members[1]}: ask one of them" in str(told)
        assert "never use its id again" in str(told)
        assert membership(third) == "removed"
        await third.kill()
        machines.start(third)
        await wait_until(lambda: third.running is not None)
        assert (await refused_at_once(third)).problem.code == "NODE_REMOVED"

    play(scenario)


def test_a_node_that_waits_to_be_added_says_with_which_command(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, _, _ = await all_ready(machines)
        fourth = newcomer(machines)
        await wait_until(lambda: fourth.running is not None)
        told = await refused_at_once(fourth)
        assert told.problem.code == "NODE_NOT_ADDED"
        assert f"`streamd cluster add {address_of(4)}` at a member" in str(told)
        assert membership(fourth) == "waiting"
        await have(leader, Add(address_of(4)))
        await wait_until(lambda: fourth.is_ready)
        await fourth.node.group.writes.propose(create("a"))
        assert membership(fourth) == "member"

    play(scenario)


def test_a_member_that_came_back_without_its_data_says_what_to_do(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        _, _, third = await all_ready(machines)
        await third.kill()
        shutil.rmtree(third.path)
        machines.start(third)
        await wait_until(lambda: third.running is not None and membership(third) != "waiting")
        told = await refused_at_once(third)
        assert told.problem.code == "NODE_DATA_LOST"
        assert "its data directory is empty" in str(told)
        assert "never use its id again" in str(told)
        assert membership(third) == "data lost"

    play(scenario)


def test_a_member_without_a_leader_still_waits_for_one(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, third = await all_ready(machines)
        await leader.kill()
        await third.kill()
        await wait_until(lambda: not second.node.group.view.leader_id)
        assert membership(second) == "member"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(second.node.group.writes.propose, create("a"))
            await trio.sleep(1)
            machines.start(third)

    play(scenario)
