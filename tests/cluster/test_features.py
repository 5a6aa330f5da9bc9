"""What a release brings is used once the feature level is raised, which all members must allow."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from streamd.cluster.administration import Add, AdminCommand
from streamd.cluster.shipping import SnapshotSender
from streamd.group.log_formats import LOG_FORMAT, TREE_FORMAT
from streamd.group.proposals import OutcomeUnknown
from streamd.group.writes import GroupWrites
from streamd.protocol.problems import ProblemError
from streamd.storage.raft_snapshots import SnapshotUnavailable
from streamd.streams.commands import Command, Create, Outcome, Result
from streamd.streams.keys import stream_key
from streamd.streams.model import Settings
from streamd.streams.operations.requests import Begin, RaiseFeatures
from tests.cluster.test_administration import newcomer, run_an_earlier_release
from tests.sim.network import address_of
from tests.support.machines import Machine, Machines, Play, all_ready, wait_until
from tests.support.nodes import running_node


def level(machine: Machine) -> int:
    return machine.node.group.state.header.features


async def ask(machine: Machine, command: AdminCommand) -> dict[str, object]:
    assert machine.node.administration is not None
    return await machine.node.administration.perform(command)


async def refused(machine: Machine, command: AdminCommand) -> str:
    with pytest.raises(ProblemError) as refusal:
        await ask(machine, command)
    return refusal.value.problem.code


async def have_a_stream(machine: Machine) -> None:
    """From now on an operator may want to go back."""
    made = Create(stream_key(b"bucket", b"s"), Settings("text/plain"), implicit_bucket=True)
    assert (await machine.node.group.writes.propose(made)).result is Result.CREATED


def test_a_new_cluster_begins_at_the_highest_level(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        await all_ready(machines)
        await wait_until(lambda: all(level(one) == LOG_FORMAT for one in machines.all))
        assert await ask(machines.all[1], RaiseFeatures()) == {
            "level": LOG_FORMAT,
            "highest": LOG_FORMAT,
            "members": {"1": LOG_FORMAT, "2": LOG_FORMAT, "3": LOG_FORMAT},
        }

    play(scenario)


def test_until_the_level_is_raised_the_release_before_may_come_back(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    formats = {3: TREE_FORMAT, 4: TREE_FORMAT, 5: TREE_FORMAT}
    run_an_earlier_release(monkeypatch, formats, {})

    async def scenario(machines: Machines) -> None:
        leader, other, _ = await all_ready(machines)
        await have_a_stream(leader)
        assert await refused(other, RaiseFeatures()) == "FEATURES_NOT_RAISED"
        assert await refused(other, Begin("rolling-restart")) == "FEATURES_NOT_RAISED"
        third = machines.all[2]
        await third.kill()
        del formats[3]
        machines.start(third)
        await all_ready(machines)
        fourth, fifth = newcomer(machines, 4), newcomer(machines, 5)
        await wait_until(lambda: fourth.running is not None and fifth.running is not None)
        await trio.sleep(10)
        assert level(leader) == 0, "nobody has raised it"
        await ask(leader, Add(address_of(4)))
        assert await refused(leader, RaiseFeatures()) == "FEATURES_NOT_RAISED"
        await fourth.kill()
        del formats[4]
        machines.start(fourth)
        await wait_until(lambda: formats_at(leader).get(4) == LOG_FORMAT)
        assert (await ask(other, RaiseFeatures()))["level"] == LOG_FORMAT
        assert await refused(leader, Add(address_of(5))) == "RELEASE_TOO_OLD"

    play(scenario)


def formats_at(machine: Machine) -> dict[int, int | None]:
    return machine.node.log_formats.of_members


def test_a_leader_of_the_release_before_is_not_asked(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_an_earlier_release(monkeypatch, {1: TREE_FORMAT, 2: TREE_FORMAT, 3: TREE_FORMAT}, {})

    async def scenario(machines: Machines) -> None:
        leader, other, _ = await all_ready(machines)
        with pytest.raises(ProblemError, match=f"node {leader.node_id}, which leads, runs"):
            await ask(other, RaiseFeatures())

    play(scenario)


def test_a_level_whose_outcome_is_unknown_counts_for_newcomers(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    formats = {3: TREE_FORMAT, 4: TREE_FORMAT}
    run_an_earlier_release(monkeypatch, formats, {})
    real = GroupWrites.propose

    async def lost(self: GroupWrites, command: Command, size: int = 0) -> Outcome:
        if size or type(command).__name__ != "RaiseLevel":
            return await real(self, command, size)
        raise OutcomeUnknown("the connection was lost")

    async def scenario(machines: Machines) -> None:
        leader, _, _ = await all_ready(machines)
        await have_a_stream(leader)
        fourth = newcomer(machines, 4)
        await wait_until(lambda: fourth.running is not None)
        third = machines.all[2]
        await third.kill()
        del formats[3]
        machines.start(third)
        leader, _, _ = await all_ready(machines)
        await wait_until(lambda: formats_at(leader)[3] == LOG_FORMAT)
        with monkeypatch.context() as losing:
            losing.setattr(GroupWrites, "propose", lost)
            with pytest.raises(OutcomeUnknown):
                await ask(leader, RaiseFeatures())
        assert level(leader) == 0
        assert await refused(leader, Add(address_of(4))) == "RELEASE_TOO_OLD"

    play(scenario)


def test_a_node_of_the_release_before_gets_no_state_of_a_raised_cluster(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(machines: Machines) -> None:
        leader, other, _ = await all_ready(machines)
        await wait_until(lambda: level(leader) == LOG_FORMAT)
        sender: SnapshotSender = leader.node._sender
        sender._check_understands(other.node_id)
        cluster = leader.node.cluster
        assert cluster is not None
        monkeypatch.setattr(cluster, "log_format_of", lambda _: TREE_FORMAT)
        with pytest.raises(SnapshotUnavailable, match=r"this cluster has: .*operations"):
            sender._check_understands(other.node_id)

    play(scenario)


async def test_a_node_by_itself_raises_the_level_when_it_starts(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        assert node.group.state.header.features == LOG_FORMAT
        assert node.operations is None
    async with running_node(tmp_path) as node:
        assert node.group.state.header.features == LOG_FORMAT
