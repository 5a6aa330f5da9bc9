"""Admin commands that overlap with each other or with a change of leader."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from msgspec.structs import replace
from structlog.testing import capture_logs

from streamd import __version__
from streamd.cluster.administration import Add, AdminCommand, Promote, Remove, Transfer
from streamd.cluster.cluster import Cluster
from streamd.group.log_formats import LOG_FORMAT, lacking
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.node import status
from streamd.protocol.problems import ProblemError
from streamd.raft.messages import Configuration
from streamd.transport import Hello, Limits
from tests.sim.network import address_of
from tests.support.machines import Machine, Machines, Play, all_ready, wait_until
from tests.support.nodes import create


def run_an_earlier_release(
    monkeypatch: pytest.MonkeyPatch, log_formats: dict[int, int], releases: dict[int, bytes]
) -> None:
    """Let nodes say, by id, that they understand an earlier log format, and name their release."""
    real_hello, real_init = Cluster.hello, Cluster.__init__

    def hello(self: Cluster) -> Hello:
        found = real_hello(self)
        return replace(found, log_format=log_formats.get(self.node_id, found.log_format))

    def init(self: Cluster, *arguments: Any, **named: Any) -> None:
        real_init(self, *arguments, **named)
        if self.node_id in releases:
            self.transport._context.release = releases[self.node_id]

    monkeypatch.setattr(Cluster, "hello", hello)
    monkeypatch.setattr(Cluster, "__init__", init)


def newcomer(machines: Machines, node_id: int = 4) -> Machine:
    """Another machine, which is not a member."""
    machine = Machine(node_id, machines.all[0].path.parent, machines.network)
    machines.start(machine)
    return machine


def connected(machine: Machine) -> set[int]:
    """The peers that a machine is connected with."""
    cluster = machine.node.cluster
    assert cluster is not None
    return {node_id for node_id, peer in cluster.connections().items() if peer.connected}


async def have(machine: Machine, command: AdminCommand) -> dict[str, Any]:
    administration = machine.node.administration
    assert administration is not None
    return await administration.perform(command)


def configuration(machine: Machine) -> Configuration:
    return machine.node.group.view.configuration


async def hand_over(leader: Machine, to: Machine) -> None:
    """Transfer leadership without an admin command, which would wait for its turn."""
    leader.node.group.view.transfer(to.node_id)
    await wait_until(lambda: to.leads and to.is_ready)


def isolate(machines: Machines, one: Machine) -> None:
    """Cut one founder off from the two others."""
    others = [machine for machine in machines.all if machine is not one]
    machines.network.cut(
        [(one.node_id, other.node_id) for other in others]
        + [(other.node_id, one.node_id) for other in others]
    )


def test_a_command_queued_before_a_transfer_is_carried_out_by_the_new_leader(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, _ = await all_ready(machines)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(have, leader, Transfer(second.node_id))
            while not leader.node.group.view.transferring:
                await trio.lowlevel.checkpoint()
            answer = await have(leader, Transfer())
        assert answer["leader_id"] not in (None, second.node_id)

    play(scenario)


def test_a_command_that_times_out_in_the_queue_is_unavailable(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, _, _ = await all_ready(machines)
        answers: list[str] = []

        async def ask(what: AdminCommand) -> None:
            try:
                await have(leader, what)
            except ProblemError as error:
                answers.append(error.problem.code)
            except Unavailable:
                answers.append("UNAVAILABLE")

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(ask, Add(address_of(17 + number)))
            await trio.sleep(1)
            nursery.start_soon(ask, Transfer())
            await wait_until(lambda: len(answers) == 2)
            isolate(machines, leader)
        assert answers == [*["NO_ANSWER"] * 3, "UNAVAILABLE"]

    play(scenario)


def test_a_command_waits_for_a_change_whose_operator_has_left(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, third = await all_ready(machines)
        fourth = newcomer(machines)
        await wait_until(lambda: fourth.running is not None)
        second.disk_s = third.disk_s = 0.1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(have, leader, Remove(third.node_id))
            await wait_until(lambda: bool(configuration(leader).voters_outgoing))
            nursery.cancel_scope.cancel()
        assert configuration(leader).voters_outgoing
        answer = await have(leader, Add(address_of(fourth.node_id)))
        assert answer["voters"] == sorted((leader.node_id, second.node_id))
        assert answer["learners"] == [fourth.node_id]

    play(scenario)


def test_a_member_removed_by_another_leader_meanwhile_stays_removed(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, third = await all_ready(machines)
        fourth = newcomer(machines)
        await wait_until(lambda: fourth.running is not None)
        fourth.disk_s = 4.0
        answers: list[dict[str, Any]] = []

        async def add() -> None:
            answers.append(await have(leader, Add(address_of(fourth.node_id))))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(add)
            await wait_until(lambda: fourth.calls["join"] == 1)
            await hand_over(leader, second)
            await have(second, Remove(third.node_id))
            await hand_over(second, leader)
            assert not answers, "the newcomer has joined too early"
        assert answers[0]["voters"] == sorted((leader.node_id, second.node_id))
        assert answers[0]["learners"] == [fourth.node_id]

    play(scenario)


def test_no_operator_hears_success_of_a_change_that_a_new_leader_undid(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, third = await all_ready(machines)
        fourth = newcomer(machines)
        await wait_until(lambda: fourth.running is not None)
        ended: list[Exception] = []

        async def add() -> None:
            try:
                await have(leader, Add(address_of(fourth.node_id)))
            except OutcomeUnknown as error:
                ended.append(error)

        def on_call(call: str) -> None:
            if call == "join":
                isolate(machines, leader)

        fourth.on_call = on_call
        async with trio.open_nursery() as nursery:
            nursery.start_soon(add)
            await wait_until(lambda: second.leads or third.leads)
            successor = second if second.leads else third
            assert fourth.node_id in configuration(leader).learners
            for number in range(5):
                await successor.node.group.writes.propose(create(str(number)))
            machines.heal()
        assert fourth.node_id not in configuration(leader).members()
        assert ended

    play(scenario)


def test_a_forwarded_change_that_takes_too_long_is_not_an_error_of_the_leader(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, third = await all_ready(machines)
        await third.kill()
        second.disk_s = 12.0
        with capture_logs() as logs, pytest.raises(OutcomeUnknown, match="not committed yet"):
            await have(second, Remove(third.node_id))
        assert leader.leads
        assert not [entry for entry in logs if entry["log_level"] == "error"]

    play(scenario)


def test_a_transfer_without_a_target_goes_to_a_reachable_voter(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, third = await all_ready(machines)
        # By its log, the node that is down would do as well, and it has the lower id.
        gone, there = sorted((second, third), key=lambda machine: machine.node_id)
        await gone.kill()
        await trio.sleep(10)
        answer = await have(leader, Transfer())
        assert answer["leader_id"] == there.node_id

    play(scenario)


@pytest.mark.long
def test_addresses_that_do_not_answer_block_no_later_command(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, _, _ = await all_ready(machines)
        for number in range(Limits().max_routes):
            with pytest.raises(ProblemError, match="no node"):
                await have(leader, Add(address_of(100 + number)))
        fourth = newcomer(machines)
        answer = await have(leader, Add(address_of(fourth.node_id)))
        assert answer["learners"] == [fourth.node_id]

    play(scenario)


def test_addresses_of_cancelled_commands_block_no_later_command(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, _, _ = await all_ready(machines)
        for number in range(Limits().max_routes):
            with trio.move_on_after(0.1) as patience:
                await have(leader, Add(address_of(100 + number)))
            assert patience.cancelled_caught
        fourth = newcomer(machines)
        answer = await have(leader, Add(address_of(fourth.node_id)))
        assert answer["learners"] == [fourth.node_id]

    play(scenario)


@pytest.mark.long
def test_strangers_that_have_left_block_no_later_command(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, _, _ = await all_ready(machines)
        for number in range(0, Limits().max_routes, 8):
            strangers = [newcomer(machines, 100 + number + i) for i in range(8)]
            await wait_until(lambda: all(one.node_id in connected(leader) for one in strangers))  # noqa: B023 - awaited at once
            for one in strangers:
                await one.kill()
            # Longer than the silence limit of a connection and an attempt to dial.
            await trio.sleep(10)
        fourth = newcomer(machines)
        answer = await have(leader, Add(address_of(fourth.node_id)))
        assert answer["learners"] == [fourth.node_id]

    play(scenario)


def test_a_removed_member_that_is_still_connected_is_refused_for_its_data(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, _, _ = await all_ready(machines)
        fourth = newcomer(machines)
        await wait_until(lambda: fourth.running is not None)
        await have(leader, Add(address_of(fourth.node_id)))
        await wait_until(lambda: fourth.is_ready)
        await have(leader, Remove(fourth.node_id))
        assert fourth.node_id in connected(leader)
        with pytest.raises(ProblemError, match="already has data"):
            await have(leader, Add(address_of(fourth.node_id)))

    play(scenario)


# -- a leader that is about to stop ---------------------------------------------------------------


def test_a_leader_that_stops_hands_over_without_an_election_timeout(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        for _ in range(5):
            leader, *others = await all_ready(machines)
            began, term = trio.current_time(), leader.node.group.view.term
            await leader.node.hand_over()
            assert trio.current_time() - began < 0.1
            [successor] = [other for other in others if other.leads]
            assert successor.node.group.view.term == term + 1
            assert leader.node.group.view.leader_id == successor.node_id

    play(scenario)


def test_a_follower_and_a_leader_without_a_reachable_voter_stop_at_once(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, _ = await all_ready(machines)
        began = trio.current_time()
        await second.node.hand_over()
        assert trio.current_time() == began
        assert leader.leads
        isolate(machines, leader)
        await trio.sleep(0.7)
        assert leader.leads
        began = trio.current_time()
        await leader.node.hand_over()
        assert trio.current_time() == began

    play(scenario)


def test_a_leader_stops_after_a_while_if_no_other_voter_takes_over(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, _, _ = await all_ready(machines)
        isolate(machines, leader)
        began = trio.current_time()
        await leader.node.hand_over()
        assert 0.5 < trio.current_time() - began < 2.5

    play(scenario)


# -- releases -------------------------------------------------------------------------------------


def versions_at(machine: Machine) -> dict[int, str]:
    members = status.report(machine.node)["members"]
    return {member["node_id"]: member["version"] for member in members}


def test_a_node_that_does_not_understand_the_log_is_not_added(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_an_earlier_release(monkeypatch, {4: 0, 5: LOG_FORMAT - 1}, {4: b"", 5: b"0.1.9"})

    async def scenario(machines: Machines) -> None:
        leader, second, _ = await all_ready(machines)
        fourth, fifth = newcomer(machines, 4), newcomer(machines, 5)
        await wait_until(lambda: fourth.running is not None and fifth.running is not None)
        for asked in (leader, second):
            with pytest.raises(ProblemError) as refusal:
                await have(asked, Add(address_of(4)))
            assert refusal.value.problem.code == "RELEASE_TOO_OLD"
            assert "node 4 runs an earlier release of streamd" in str(refusal.value)
            assert "it lacks sessions between nodes, tokens, limits" in str(refusal.value)
            assert f"node {leader.node_id} runs {__version__}" in str(refusal.value)
        with pytest.raises(ProblemError, match=r"node 5 runs 0\.1\.9 of streamd"):
            await have(leader, Add(address_of(5)))
        assert configuration(leader).members() == {1, 2, 3}

    play(scenario)


def test_a_learner_that_came_back_with_an_earlier_release_is_not_promoted(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_formats: dict[int, int] = {}
    run_an_earlier_release(monkeypatch, log_formats, {})

    async def scenario(machines: Machines) -> None:
        leader, _, _ = await all_ready(machines)
        fourth = newcomer(machines)
        await wait_until(lambda: fourth.running is not None)
        await have(leader, Add(address_of(4)))
        await wait_until(lambda: 4 in connected(leader))
        await wait_until(lambda: all(m.metrics.sessions_opened > 0 for m in machines.all))
        await fourth.kill()
        log_formats[4] = 0
        machines.start(fourth)
        await wait_until(lambda: fourth.running is not None and fourth.is_ready)
        with pytest.raises(ProblemError) as refusal:
            await have(leader, Promote(4))
        assert refusal.value.problem.code == "RELEASE_TOO_OLD"
        assert configuration(leader).learners == (4,)

    play(scenario)


def test_a_member_that_came_back_with_an_earlier_release_is_named(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot read the log: what it lacks is told by those that have met it."""
    log_formats: dict[int, int] = {}
    run_an_earlier_release(monkeypatch, log_formats, {})

    async def scenario(machines: Machines) -> None:
        first, second, third = await all_ready(machines)
        await wait_until(lambda: all(m.metrics.sessions_opened > 0 for m in machines.all))
        assert lacks_at(first) == {}
        assert status.too_old_members(first.node) == 0
        await third.kill()
        log_formats[third.node_id] = 0
        machines.start(third)
        everything = lacking(0, LOG_FORMAT)
        expected = {third.node_id: everything}
        await wait_until(lambda: lacks_at(first) == lacks_at(second) == expected)
        assert status.too_old_members(first.node) == 1

    play(scenario)


def lacks_at(machine: Machine) -> dict[int, str]:
    """What members lack, by id, as a machine reports it."""
    members = status.report(machine.node)["members"]
    return {member["node_id"]: member["lacks"] for member in members if "lacks" in member}


def test_until_the_last_member_is_upgraded_its_release_may_still_be_added(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way back: what one member does not understand is not used yet."""
    log_formats = {3: 0, 4: 0}
    run_an_earlier_release(monkeypatch, log_formats, {})

    async def scenario(machines: Machines) -> None:
        leader, _, third = await all_ready(machines)
        fourth = newcomer(machines)
        await wait_until(lambda: fourth.running is not None)
        answer = await have(leader, Add(address_of(4)))
        assert answer["learners"] == [4]
        assert not any(machine.metrics.sessions_opened for machine in machines.all)
        await have(leader, Remove(4))
        del log_formats[3]
        await third.kill()
        machines.start(third)
        await all_ready(machines)
        fifth = newcomer(machines, 5)
        await wait_until(lambda: fifth.running is not None)
        log_formats[6] = 0
        sixth = newcomer(machines, 6)
        await wait_until(lambda: sixth.running is not None)
        with pytest.raises(ProblemError, match="it lacks sessions"):
            await have(leader, Add(address_of(6)))
        await have(leader, Add(address_of(5)))

    play(scenario)


def test_each_node_reports_the_releases_of_the_others(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_an_earlier_release(monkeypatch, {}, {2: b"", 3: b"0.3.0-rc.1"})

    async def scenario(machines: Machines) -> None:
        await all_ready(machines)
        first, second, third = machines.all
        expected = {1: __version__, 2: "unknown", 3: "0.3.0-rc.1"}
        await wait_until(lambda: versions_at(first) == expected)
        await wait_until(lambda: versions_at(second)[3] == "0.3.0-rc.1")
        # What a node says last is kept while it is gone.
        await third.kill()
        await wait_until(lambda: 3 not in connected(first))
        assert versions_at(first) == expected

    play(scenario)
