"""A change of members is refused if too few voters would remain that answer and may vote."""

from __future__ import annotations

import pytest

from streamd.cluster.administration import Add, AdminCommand, Promote, Remove
from streamd.cluster.members import SILENT_TICKS
from streamd.protocol.problems import Problem, ProblemError
from tests.cluster.test_administration import configuration, connected, have, isolate, newcomer
from tests.cluster.test_power_loss import damage_state
from tests.sim.network import address_of
from tests.support.machines import Machine, Machines, Play, all_ready, wait_until
from tests.support.nodes import append, create


async def wait_for_silence(leader: Machine, *members: Machine) -> None:
    """Wait until members have been silent for longer than they may and still count."""

    def are_silent() -> bool:
        peers = leader.node.group.view.peers()
        return all(peers[one.node_id].ticks_since_heard >= SILENT_TICKS for one in members)

    await wait_until(are_silent)


async def with_fourth(machines: Machines, leader: Machine) -> Machine:
    """A fourth voter."""
    fourth = newcomer(machines)
    await wait_until(lambda: fourth.running is not None)
    await have(leader, Add(address_of(fourth.node_id)))
    await wait_until(lambda: fourth.is_ready)
    await have(leader, Promote(fourth.node_id))
    return fourth


async def is_refused(leader: Machine, command: AdminCommand, reason: str) -> None:
    before = configuration(leader)
    with pytest.raises(ProblemError, match=reason) as refused:
        await have(leader, command)
    assert refused.value.problem is Problem.QUORUM_AT_RISK
    assert configuration(leader) == before
    assert leader.leads


def test_of_two_voters_that_answer_and_one_that_does_not_only_that_one_is_removed(
    play: Play,
) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, third = await all_ready(machines)
        await third.kill()
        await wait_for_silence(leader, third)
        gone, own = f"node {third.node_id} does not answer", leader.node_id
        for one in (second, leader):
            await is_refused(leader, Remove(one.node_id), f"leave 1 of 2 voters.*: {gone}")
        answer = await have(second, Remove(third.node_id))
        assert answer["voters"] == sorted((own, second.node_id))

    play(scenario)


def test_a_voter_that_repairs_its_log_does_not_count(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, damaged, other = await all_ready(machines)
        fourth = await with_fourth(machines, leader)
        await leader.node.group.writes.propose(create("a"))
        await leader.node.group.writes.propose(append("a", b"content"))
        for machine in machines.all:
            await machine.node.group.storage.compact()
        await damaged.kill()
        damage_state(damaged.path)
        isolate(machines, damaged)
        machines.start(damaged)
        await wait_until(lambda: damaged.running is not None)
        # It answers, and does not get its log back in the time of this test.
        damaged.disk_s = 100.0
        machines.heal()
        await wait_until(lambda: damaged.node_id in connected(leader))
        answer = await have(leader, Remove(other.node_id))
        assert answer["voters"] == sorted((leader.node_id, damaged.node_id, fourth.node_id))
        assert not damaged.node.group.view.may_vote
        why = f"node {damaged.node_id} repairs its log"
        await is_refused(leader, Remove(fourth.node_id), f"leave 1 of 2 voters.*: {why}")
        # Without it the two others are whole.
        answer = await have(leader, Remove(damaged.node_id))
        assert answer["voters"] == sorted((leader.node_id, fourth.node_id))

    play(scenario)


def test_a_replacement_by_a_node_that_does_not_answer_is_refused(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, third = await all_ready(machines)
        fourth = newcomer(machines)
        await wait_until(lambda: fourth.running is not None)
        await have(leader, Add(address_of(fourth.node_id)))
        await wait_until(lambda: fourth.is_ready)
        await third.kill()
        await fourth.kill()
        await wait_for_silence(leader, third, fourth)
        why = f"node {third.node_id} does not answer, node {fourth.node_id} does not answer"
        command = Promote(fourth.node_id, replacing=second.node_id)
        await is_refused(leader, command, f"leave 1 of 3 voters.*: {why}")
        # A learner decides nothing: it may go.
        answer = await have(leader, Remove(fourth.node_id))
        assert answer["learners"] == []

    play(scenario)
