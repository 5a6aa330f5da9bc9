"""Three nodes and a cold store: crashes at each step, changes of leader, outages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from streamd.config.settings import ColdConfig
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.streams import keys
from streamd.streams.commands import FlushCold, Result
from tests.sim.runtime import run_virtually
from tests.support.long import first_quick
from tests.support.machines import Machine, Machines, Scenario, play, wait_until
from tests.support.manifest import Manifest
from tests.support.nodes import append, create, read_all

NAMES = ("a", "b", "c", "d", "e")
SETTINGS = ColdConfig(
    backend="s3",
    s3_bucket="simulated",
    pack_bytes=64 * 1024,
    flush_after_ms=500,
    hot_keep_bytes=1,
    hot_limit_bytes=500_000,
)

Play = Callable[[Scenario], None]


@pytest.fixture(name="play")
def _play(tmp_path: Path) -> Play:
    return lambda scenario: run_virtually(3, partial(play, scenario, tmp_path, SETTINGS))


class Writer:
    """Appends to some streams and records what must be there."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.expected = dict.fromkeys(NAMES, b"")
        self.number = 0

    async def begin(self) -> None:
        leader = await self.machines.leader()
        for name in NAMES:
            await insist(leader.node.group.writes.propose, create(name))

    async def write(self, count: int) -> None:
        for _ in range(count):
            name = NAMES[self.number % len(NAMES)]
            body = b"%06d|" % self.number * 300
            self.number += 1
            leader = await self.machines.leader()
            outcome = await leader.node.group.writes.propose(append(name, body), len(body))
            assert outcome.result is Result.APPENDED
            self.expected[name] += body

    async def check(self) -> None:
        """Every node reads everything, with nothing on its own disk or in memory."""
        await settled(self.machines)
        for machine in self.machines.all:
            node = machine.node
            Manifest(node.stores.state, self.machines.objects.contents).check()
            node.group.state.tails.__init__(1 << 20)
            for name in NAMES:
                assert await read_all(node, name, 50_000) == self.expected[name]


async def insist(propose: Callable[..., Awaitable[object]], command: object) -> None:
    while True:
        try:
            await propose(command)
            return
        except (Unavailable, OutcomeUnknown):
            await trio.sleep(0.1)


async def settled(machines: Machines) -> None:
    """Wait until all nodes are up, agree, and hold nothing that is in the cold store."""

    def is_settled() -> bool:
        if not all(machine.is_ready for machine in machines.all):
            return False
        applied = {machine.node.group.view.applied_index for machine in machines.all}
        return len(applied) == 1 and all(
            machine.node.group.state.header.hot_bytes == 0 and not chunks(machine)
            for machine in machines.all
        )

    await wait_until(is_settled)
    for machine in machines.all:
        await machine.node.group.storage.flush()


def chunks(machine: Machine) -> list[tuple[bytes, bytes]]:
    """The rows with records that a node has on its own disk."""
    return machine.node.stores.state.scan(keys.CHUNK, bytes([keys.CHUNK[0] + 1]), limit=100)


def on_call(machine: Machine, name: str, count: int) -> trio.Event:
    """Set when a node has done something for the `count`-th time from now on."""
    happened = trio.Event()
    wanted = machine.calls[name] + count

    def hear(called: str) -> None:
        if called == name and machine.calls[name] == wanted:
            happened.set()
            machine.disk_s = 0.5  # it is killed before it can continue

    machine.on_call = hear
    return happened


def test_a_raft_snapshot_leaves_out_records_that_are_in_the_cold_store(tmp_path: Path) -> None:
    """The others keep them for their readers; a Raft snapshot with them would be as large."""

    async def scenario(machines: Machines) -> None:
        writer = Writer(machines)
        await writer.begin()
        leader = await machines.leader()
        lagging = next(machine for machine in machines.all if machine is not leader)
        await lagging.kill()
        await writer.write(60)
        header = leader.node.group.state.header
        await wait_until(lambda: not header.hot_bytes and header.archived.index > 60)
        for machine in machines.all:
            if machine is not lagging:
                await machine.node.group.storage.compact()
        assert chunks(leader)
        machines.start(lagging)
        await wait_until(lambda: lagging.calls["install"] > 0 and lagging.is_ready)
        assert not chunks(lagging)
        for name in NAMES:
            assert await read_all(lagging.node, name, 50_000) == writer.expected[name]

    keeping = replace(SETTINGS, hot_keep_bytes=1 << 30)
    run_virtually(3, partial(play, scenario, tmp_path, keeping))


def test_all_nodes_read_evicted_records(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        writer = Writer(machines)
        await writer.begin()
        await writer.write(120)
        await writer.check()
        await writer.write(10)
        await writer.check()

    play(scenario)


@pytest.mark.parametrize("count", first_quick([1, 2, 3]))
@pytest.mark.parametrize(
    "step",
    first_quick(
        ["put", "_store_blocking", "evict_some", "gather_pack", "stat", "_checked_get", "write"], 3
    ),
)
def test_a_crash_at_any_step_loses_nothing_and_leaves_no_gap(
    play: Play, step: str, count: int
) -> None:
    async def scenario(machines: Machines) -> None:
        writer = Writer(machines)
        await writer.begin()
        machines.objects.is_away = True
        await writer.write(200)
        leader = await machines.leader()
        happened = on_call(leader, step, count)
        machines.objects.heal()
        await happened.wait()
        await leader.kill()
        for machine in machines.all:
            if machine is not leader:
                await wait_until(lambda m=machine: m.is_ready)
        leader.disk_s = 0.001
        leader.on_call = lambda _: None
        machines.start(leader)
        await wait_until(lambda: leader.is_ready)
        await writer.write(20)
        await writer.check()

    play(scenario)


def test_a_leader_that_was_deposed_in_the_middle_of_a_flush_changes_nothing(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        writer = Writer(machines)
        await writer.begin()
        await writer.write(45)
        old = await machines.leader()
        happened = on_call(old, "put", 1)
        await happened.wait()
        others = [machine.node_id for machine in machines.all if machine is not old]
        machines.network.cut(
            [pair for i in others for pair in ((old.node_id, i), (i, old.node_id))]
        )
        await wait_until(lambda: any(m.leads for m in machines.all if m is not old))
        old.disk_s = 0.001
        await wait_until(lambda: not old.leads)
        machines.heal()
        await writer.write(20)
        await writer.check()

    play(scenario)


def test_a_late_flush_of_a_former_leader_is_refused(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        writer = Writer(machines)
        await writer.begin()
        leader = await machines.leader()
        term = leader.node.group.view.term
        late = FlushCold(term - 1, 0, "x/packs/late.pack", 1, [])
        follower = next(machine for machine in machines.all if machine is not leader)
        with pytest.raises(Unavailable):
            await follower.node.group.writes.propose(late)
        outcome = await leader.node.group.writes.propose(late)
        assert outcome.result is Result.STALE
        assert not leader.node.stores.state.scan(keys.PACK, bytes([keys.PACK[0] + 1]), limit=1)

    play(scenario)


def test_a_lagging_node_catches_up_after_the_others_evicted(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        writer = Writer(machines)
        await writer.begin()
        leader = await machines.leader()
        lagging = next(machine for machine in machines.all if machine is not leader)
        await lagging.kill()
        await writer.write(60)
        up = [machine for machine in machines.all if machine is not lagging]
        archived = leader.node.group.state.header.archived
        await wait_until(lambda: not any(chunks(machine) for machine in up))
        await wait_until(lambda: leader.node.group.state.header.archived.index > archived.index)
        for machine in up:
            await machine.node.group.storage.compact()
        machines.start(lagging)
        await wait_until(lambda: lagging.calls["install"] > 0 and lagging.is_ready)
        await writer.check()

    play(scenario)


def test_while_the_store_is_away_bytes_are_refused_at_the_limit_by_every_node(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        writer = Writer(machines)
        await writer.begin()
        await writer.write(30)
        machines.objects.is_away = True
        written = writer.number
        with pytest.raises(Unavailable, match="hot tier is full"):
            await writer.write(1_000)
        writer.number -= 1
        assert writer.number > written
        for machine in machines.all:
            with pytest.raises(Unavailable, match="hot tier is full"):
                await machine.node.group.writes.propose(append("a", b"more"), 4)
            # A new leader knows it at once; commands without bytes are accepted.
            await machine.node.group.writes.propose(create(f"n{machine.node_id}"))
        machines.objects.heal()
        await wait_until(lambda: not any(m.node.group.admission.is_full for m in machines.all))
        await writer.write(30)
        await writer.check()

    play(scenario)


@pytest.mark.long
def test_a_store_that_often_fails_is_used_and_verified(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        writer = Writer(machines)
        await writer.begin()
        machines.objects.refusal_probability = 0.1
        machines.objects.lost_reply_probability = 0.1
        machines.objects.flip_probability = 0.1
        leader = await machines.leader()
        counts = machines.objects.counts
        while not (counts["flipped bit"] and counts["lost reply to put"]) or writer.number < 150:
            await wait_until(lambda: not leader.node.group.admission.is_full)
            await writer.write(1)
        await settled(machines)
        machines.objects.heal()
        await writer.check()

    play(scenario)


def test_a_node_keeps_bytes_that_differ_from_those_in_the_store(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        writer = Writer(machines)
        await writer.begin()
        machines.objects.is_away = True
        await writer.write(5)
        leader = await machines.leader()
        follower = next(machine for machine in machines.all if machine is not leader)
        await wait_until(lambda: len(chunks(follower)) == len(NAMES))
        await follower.node.group.storage.flush()
        damaged, value = chunks(follower)[0]
        follower.node.stores.state.write([(damaged, value[:-1] + b"?")])
        machines.objects.heal()
        others = [machine for machine in machines.all if machine is not follower]
        await wait_until(lambda: not any(chunks(machine) for machine in others))
        await wait_until(lambda: [row for row, _ in chunks(follower)] == [damaged])
        await trio.sleep(5)
        assert [row for row, _ in chunks(follower)] == [damaged]

    play(scenario)
