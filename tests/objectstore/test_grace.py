"""Objects that nothing needs leave the store soon after their grace period, and not before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from streamd.config.settings import ColdConfig
from streamd.streams.commands import Create, Delete, Result
from streamd.streams.model import ForkRequest, Settings
from tests.sim.runtime import run_virtually
from tests.support.machines import Machine, Machines, play, wait_until
from tests.support.nodes import TEXT, append, create, key, read_all

GRACE_S = 15.0
# What a round of removal, archiving or checkpoints may add to the grace period.
SLACK_S = 8.0
SETTINGS = ColdConfig(
    backend="s3",
    s3_bucket="simulated",
    pack_bytes=64 * 1024,
    flush_after_ms=500,
    hot_keep_bytes=1,
    cache_bytes=1,
    gc_interval_ms=1_000,
    gc_grace_ms=round(GRACE_S * 1000),
    # Restore points are removed long before the grace period is over.
    archive_retention_hours=0.0005,
    snapshot_interval_minutes=0.02,
)

Step = Callable[[Machines, Machine], Awaitable[None]]
# So much that its pack is not merged with others.
BODY = b"0123456789" * 2000


@pytest.fixture(name="play")
def _play(tmp_path: Path) -> Callable[[Step], None]:
    """Play a scenario at a leader that has flushed a stream, while another stream is busy."""

    async def scenario(step: Step, machines: Machines) -> None:
        leader = await machines.leader()
        for name in ("gone", "busy"):
            await leader.node.group.writes.propose(create(name))
        await leader.node.group.writes.propose(append("gone", BODY), len(BODY))
        await wait_until(lambda: leader.node.group.state.header.hot_bytes == 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stay_busy, leader)
            await step(machines, leader)
            nursery.cancel_scope.cancel()

    return lambda step: run_virtually(3, partial(play, partial(scenario, step), tmp_path, SETTINGS))


async def stay_busy(leader: Machine) -> None:
    """Restore points are removed only for newer ones, which need new entries."""
    while True:
        outcome = await leader.node.group.writes.propose(append("busy", b"x" * 3000), 3000)
        assert outcome.result is Result.APPENDED
        await trio.sleep(1)


def packs(machines: Machines) -> set[str]:
    return {name for name in machines.objects.contents if "/packs/" in name}


async def time_until(condition: Callable[[], bool]) -> float:
    began = trio.current_time()
    await wait_until(condition, 6 * GRACE_S)
    return trio.current_time() - began


def test_slices_and_then_their_pack_are_removed_after_their_grace_period(
    play: Callable[[Step], None],
) -> None:
    async def step(machines: Machines, leader: Machine) -> None:
        [pack] = packs(machines)
        gc = leader.node.cold_gc
        await leader.node.group.writes.propose(Delete(key("gone")))
        waited_s = await time_until(lambda: gc.total.dropped_slices == 1)
        assert GRACE_S <= waited_s <= GRACE_S + SLACK_S
        assert pack in packs(machines)
        waited_s = await time_until(lambda: pack not in packs(machines))
        assert GRACE_S <= waited_s <= GRACE_S + SLACK_S
        assert gc.total.deleted_orphans == 0

    play(step)


@pytest.mark.long
def test_objects_that_are_being_read_stay_until_the_reader_ends(
    play: Callable[[Step], None],
) -> None:
    async def step(machines: Machines, leader: Machine) -> None:
        [pack] = packs(machines)
        node = leader.node
        stream = await node.reads.stream(key("gone"))
        assert stream is not None
        pin = node.group.pins.hold([stream.stream_id])
        await node.group.writes.propose(Delete(key("gone")))
        await trio.sleep(2 * GRACE_S)
        assert pack in packs(machines)
        assert node.cold_gc.total.dropped_slices == 0
        pin.release()
        # Nothing else has needed them for long.
        assert await time_until(lambda: node.cold_gc.total.dropped_slices == 1) <= SLACK_S
        await wait_until(lambda: pack not in packs(machines), 4 * GRACE_S)

    play(step)


def test_a_new_leader_waits_for_the_whole_grace_again(play: Callable[[Step], None]) -> None:
    async def step(machines: Machines, leader: Machine) -> None:
        await leader.node.group.writes.propose(Delete(key("gone")))
        await trio.sleep(GRACE_S - SLACK_S)
        heir = next(machine for machine in machines.all if machine is not leader)
        leader.node.group.view.transfer(heir.node_id)
        waited_s = await time_until(lambda: heir.leads)
        assert waited_s < SLACK_S
        waited_s = await time_until(lambda: heir.node.cold_gc.total.dropped_slices == 1)
        assert GRACE_S - 1 <= waited_s <= GRACE_S + SLACK_S

    play(step)


@pytest.mark.long
def test_objects_that_a_fork_reads_stay_until_the_fork_is_deleted(
    play: Callable[[Step], None],
) -> None:
    async def step(machines: Machines, leader: Machine) -> None:
        [pack] = packs(machines)
        node = leader.node
        forked = ForkRequest(key("gone"))
        outcome = await node.group.writes.propose(
            Create(key("fork"), Settings(TEXT, fork=forked), implicit_bucket=True)
        )
        assert outcome.result is Result.CREATED
        await node.group.writes.propose(Delete(key("gone")))
        await trio.sleep(2 * GRACE_S)
        assert await read_all(node, "fork") == BODY
        assert pack in packs(machines)
        await node.group.writes.propose(Delete(key("fork")))
        waited_s = await time_until(lambda: node.cold_gc.total.dropped_slices == 1)
        assert GRACE_S <= waited_s <= GRACE_S + SLACK_S
        await wait_until(lambda: pack not in packs(machines), 4 * GRACE_S)

    play(step)
