"""Writes survive a change of leader: each node resends its own, and they take effect once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from streamd.cluster.cluster import Cluster
from streamd.group import forwarding
from streamd.group.packages import HOT_TIER_FULL
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.group.session_opener import SessionAnswer, SessionOpener, SessionRequest
from streamd.raft.messages import EntryKind
from streamd.streams import keys
from streamd.streams.codec import decode_batch
from streamd.streams.commands import Command, Delete, Result
from streamd.streams.state import State
from streamd.transport.hello import Hello
from tests.streams.memory_store import MemoryStore
from tests.support.machines import Machine, Machines, Play, all_ready, wait_until
from tests.support.nodes import append, create, key, read_all, running_node


async def begin(machines: Machines) -> tuple[Machine, Machine, Machine]:
    """The leader and the two others, all ready and with their sessions open, with a stream."""
    leader, second, third = await all_ready(machines)
    await wait_until(lambda: all(has_session(machine) for machine in machines.all))
    await leader.node.group.writes.propose(create("a"))
    return leader, second, third


def has_session(machine: Machine) -> bool:
    return machine.running is not None and machine.metrics.sessions_opened > 0


class Writer:
    """Appends through one node, many at a time; remembers when which was acknowledged."""

    def __init__(self, machine: Machine, nursery: trio.Nursery, name: str = "") -> None:
        self.machine = machine
        self._name = name.encode()
        self.acknowledged: dict[bytes, float] = {}
        self.failed: Counter[str] = Counter()
        self._nursery = nursery
        self._number = 0

    def begin(self, count: int) -> None:
        for _ in range(count):
            self._number += 1
            record = b"<%b%d.%d>" % (self._name, self.machine.node_id, self._number)
            self._nursery.start_soon(self._append, record)

    async def _append(self, record: bytes) -> None:
        group = self.machine.node.group
        try:
            outcome = await group.writes.propose(append("a", record), len(record))
        except (OutcomeUnknown, Unavailable) as error:
            self.failed[type(error).__name__] += 1
        else:
            assert outcome.result is Result.APPENDED
            self.acknowledged[record] = trio.current_time()

    async def all_acknowledged(self) -> None:
        await wait_until(lambda: len(self.acknowledged) + self.failed.total() == self._number)
        assert not self.failed


async def content(machine: Machine) -> bytes:
    await machine.node.group.reads.catch_up()
    return await read_all(machine.node, "a")


async def each_is_there_once(machine: Machine, *writers: Writer) -> None:
    written = await content(machine)
    for writer in writers:
        for record in writer.acknowledged:
            assert written.count(record) == 1, record


def test_both_survivors_write_through_the_new_leader_as_soon_as_they_know_it(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, *others = await begin(machines)
        async with trio.open_nursery() as nursery:
            # The leader falls silent; nothing tells the others that their requests are lost.
            machines.network.cut(
                [(leader.node_id, other.node_id) for other in others]
                + [(other.node_id, leader.node_id) for other in others]
            )
            writers = [Writer(other, nursery) for other in others]
            for _ in range(3 * forwarding.MAX_FORWARDS):
                for writer in writers:
                    writer.begin(1)
                await trio.sleep(0.001)
            known_at = {}
            for other in others:
                known = other.node.group.view
                await wait_until(lambda known=known: known.leader_id not in (0, leader.node_id))
                known_at[other] = trio.current_time()
            for writer in writers:
                await writer.all_acknowledged()
                last = max(writer.acknowledged.values())
                assert last - known_at[writer.machine] < 0.3
            await each_is_there_once(others[0], *writers)

    play(scenario)


def test_writes_of_a_partitioned_leader_take_effect_once_when_it_returns(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, third = await begin(machines)
        async with trio.open_nursery() as nursery:
            writer = Writer(leader, nursery)
            machines.network.cut(
                [(leader.node_id, other.node_id) for other in (second, third)]
                + [(other.node_id, leader.node_id) for other in (second, third)]
            )
            writer.begin(20)
            await wait_until(lambda: second.leads or third.leads)
            await trio.sleep(1)
            assert not writer.acknowledged
            machines.heal()
            await writer.all_acknowledged()
            await each_is_there_once(second, writer)

    play(scenario)


def test_a_write_whose_answer_was_lost_takes_effect_once(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, _ = await begin(machines)
        real = leader.node.group.admission.propose_package
        lost = 0

        async def answer_is_lost(node_id: int, payload: bytes) -> bytes:
            nonlocal lost
            answer = await real(node_id, payload)
            if lost < 3:
                lost += 1
                raise OutcomeUnknown("the answer was lost")
            return answer

        leader.node.group.admission.propose_package = answer_is_lost  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            writer = Writer(second, nursery)
            writer.begin(3)
            await writer.all_acknowledged()
            await each_is_there_once(leader, writer)

    play(scenario)


def test_a_node_learns_the_outcome_from_its_own_log_when_no_answer_comes(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, _ = await begin(machines)
        real = leader.node.group.admission.propose_package

        async def never_answered(node_id: int, payload: bytes) -> bytes:
            await real(node_id, payload)
            await trio.sleep_forever()
            raise AssertionError

        leader.node.group.admission.propose_package = never_answered  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            writer = Writer(second, nursery)
            started = trio.current_time()
            writer.begin(5)
            await writer.all_acknowledged()
            assert trio.current_time() - started < 1.0

    play(scenario)


def test_a_leader_that_dies_with_every_nodes_writes_in_its_log_loses_and_repeats_none(
    play: Play,
) -> None:
    async def scenario(machines: Machines) -> None:
        for life in range(4):
            leader, second, third = await begin(machines)
            async with trio.open_nursery() as nursery:
                writers = [Writer(one, nursery, f"{life}.") for one in (second, third)]
                for _ in range(20):
                    for writer in writers:
                        writer.begin(2)
                    await trio.sleep(0.001)
                await leader.kill()
                for writer in writers:
                    await writer.all_acknowledged()
                await each_is_there_once(second, *writers)
            machines.start(leader)

    play(scenario)


def test_only_sent_writes_that_nobody_decides_in_time_are_unknown(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, third = await begin(machines)
        await second.kill()
        await third.kill()
        started = trio.current_time()
        with pytest.raises(OutcomeUnknown):
            await leader.node.group.writes.propose(append("a", b"<proposed>"))
        assert trio.current_time() - started >= 15.0
        with pytest.raises(Unavailable):
            await leader.node.group.writes.propose(append("a", b"<never>"))
        machines.start(second)
        machines.start(third)
        await all_ready(machines)
        assert b"<never>" not in await content(leader)

    play(scenario)


def test_a_write_that_leaders_refuse_until_its_deadline_has_a_known_outcome(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, _ = await begin(machines)

        async def refuses(node_id: int, payload: bytes) -> bytes:
            raise Unavailable("not now")

        leader.node.group.admission.propose_package = refuses  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            await second.node.group.writes.propose(append("a", b"<refused>"))
        assert b"<refused>" not in await content(leader)

    play(scenario)


def test_a_client_that_leaves_does_not_disturb_other_writes(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, _ = await begin(machines)
        async with trio.open_nursery() as nursery:
            writer = Writer(second, nursery)
            for _ in range(30):
                with trio.move_on_after(0.0005):
                    await second.node.group.writes.propose(append("a", b"<gone>"))
                writer.begin(1)
            await writer.all_acknowledged()
            await each_is_there_once(leader, writer)

    play(scenario)


def test_a_restarted_process_opens_a_new_session(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, _ = await begin(machines)
        async with trio.open_nursery() as nursery:
            writer = Writer(second, nursery)
            writer.begin(5)
            await writer.all_acknowledged()
            await second.kill()
            machines.start(second)
            await wait_until(lambda: second.is_ready and has_session(second))
            again = Writer(second, nursery, "again.")
            again.begin(5)
            await again.all_acknowledged()
            await each_is_there_once(leader, writer, again)

    play(scenario)


def test_a_process_whose_state_lags_learns_which_session_it_replaces(play: Play) -> None:
    """Packages numbered in the old process's session would be mistaken for that process's
    packages."""

    async def scenario(machines: Machines) -> None:
        leader, second, _ = await begin(machines)
        group = second.node.group
        assert second.node.cluster is not None
        opener = SessionOpener(group._core, State(MemoryStore()), second.node.cluster, nonce=99)
        assert await opener.ask(opener.begin()) == 0
        opened = await opener.ask(opener.begin())
        session = leader.node.group.state.sessions.get(keys.number(second.node_id))
        assert session is not None
        assert (session.session_id, session.nonce) == (opened, 99)

    play(scenario)


def test_a_new_leader_does_not_refuse_sessions_before_it_knows_those_that_are_open(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state may lag its log, and it has not met the member that is down: without numbers, a
    write in progress at the next change of leader would have an unknown outcome."""
    monkeypatch.setattr("streamd.group.state_flusher.FLUSH_INTERVAL_S", 60.0)
    refused: list[bool] = []
    real = SessionOpener.open

    async def open_noting(
        self: SessionOpener, node_id: int, request: SessionRequest
    ) -> SessionAnswer:
        answer = await real(self, node_id, request)
        refused.append(answer.is_refused)
        return answer

    monkeypatch.setattr(SessionOpener, "open", open_noting)

    async def scenario(machines: Machines) -> None:
        await begin(machines)
        refused.clear()
        for machine in machines.all:
            await machine.kill()
            machine.disk_s = 0.05
        up = machines.all[:2]
        for machine in up:
            machines.start(machine)
        await wait_until(lambda: all(has_session(machine) for machine in up))
        assert refused
        assert not any(refused)

    play(scenario)


def test_a_leader_whose_hot_tier_is_full_accepts_only_commands_without_bytes(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, _ = await begin(machines)
        leader.node.group.admission.hot_limit_bytes = -1
        results: list[Result] = []
        refused: list[str] = []
        started = trio.current_time()

        async def one(command: Command) -> None:
            try:
                results.append((await second.node.group.writes.propose(command)).result)
            except Unavailable as error:
                refused.append(str(error))

        async with trio.open_nursery() as nursery:
            for command in (append("a", b"x"), Delete(key("a")), append("a", b"y")):
                nursery.start_soon(one, command)
        assert results == [Result.DELETED]
        assert refused == [HOT_TIER_FULL] * 2
        assert trio.current_time() - started < 1.0

    play(scenario)


# -- without sessions -----------------------------------------------------------------------------


def test_a_cluster_with_a_member_of_an_earlier_release_uses_no_sessions(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Cluster.hello
    is_early = True

    def hello(self: Cluster) -> Hello:
        found = real(self)
        if self.node_id != 3 or not is_early:
            return found
        return Hello(**_fields(found) | {"log_format": 0})

    monkeypatch.setattr(Cluster, "hello", hello)

    async def scenario(machines: Machines) -> None:
        nonlocal is_early
        leader, *_ = await all_ready(machines)
        await leader.node.group.writes.propose(create("a"))
        async with trio.open_nursery() as nursery:
            writers = [Writer(machine, nursery) for machine in machines.all]
            for writer in writers:
                writer.begin(3)
            for writer in writers:
                await writer.all_acknowledged()
        await trio.sleep(3)
        assert not any(machine.metrics.sessions_opened for machine in machines.all)
        is_early = False
        old = machines.all[2]
        await old.kill()
        machines.start(old)
        await all_ready(machines)
        await wait_until(lambda: all(has_session(machine) for machine in machines.all))

    play(scenario)


def _fields(hello: Hello) -> dict[str, Any]:
    return {name: getattr(hello, name) for name in hello.__struct_fields__}


async def test_a_single_node_opens_no_session_and_numbers_no_packages(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
        await node.group.writes.propose(append("a", b"x"))
        core = node.group._core
        for index in range(core.first_index, core.last_index + 1):
            entry = core.entry_at(index)
            if entry.kind == EntryKind.COMMANDS:
                assert decode_batch(entry.payload).packages == []
        assert node.metrics.sessions_opened == 0
