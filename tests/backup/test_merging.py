"""Segments that are merged while other objects of the archive are removed for their age."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio

from streamd.backup.checkpoints import Checkpointer
from streamd.backup.merging import Merger, runs
from streamd.cluster.administration import Transfer
from streamd.config.settings import ColdConfig
from streamd.objectstore.errors import ColdUnavailable
from streamd.tiering.tier import LeaderTerm
from tests.sim.runtime import run_virtually
from tests.support.machines import Machine, Machines, play, wait_until
from tests.support.nodes import append, create

SETTINGS = ColdConfig(
    backend="s3",
    s3_bucket="simulated",
    flush_after_ms=100_000_000,
    snapshot_interval_minutes=1_000_000,
    archive_retention_hours=10 / 3600,
)


async def archive_in_small_segments(leader: Machine, count: int) -> None:
    group = leader.node.group
    await group.writes.propose(create("a"))
    for number in range(count):
        await group.writes.propose(append("a", b"%d" % number))
        written = group.view.applied_index
        await wait_until(lambda: group.state.header.archived.index >= written)  # noqa: B023


def linger_over_the_last_part(leader: Machine, parts: int) -> trio.Event:
    """Delay the last part of a merge that begins now; the event is set when it is reached."""
    added, all_added = leader.calls["_add"], trio.Event()

    def linger(call: str) -> None:
        if leader.calls["_add"] == added + parts and not all_added.is_set():
            leader.disk_s = 5.0
            all_added.set()

    leader.on_call = linger
    return all_added


def test_a_merge_does_not_bring_back_segments_removed_meanwhile(tmp_path: Path) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await machines.leader()
        await archive_in_small_segments(leader, 30)
        archive, group = leader.node.archive, leader.node.group
        assert archive is not None
        target = archive.target
        checkpointer = Checkpointer(target, SETTINGS, random=Random(5))
        kept = await checkpointer.begin_archive()
        # The checkpoint becomes as old as the retention.
        await trio.sleep(20)
        [run] = runs(await target.objects.catalog())
        all_added = linger_over_the_last_part(leader, len(run))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Merger(target).make_round, LeaderTerm(group.view.term))
            await all_added.wait()
            leader.disk_s = 0.001
            await checkpointer.remove_old()
        catalog = await target.objects.catalog()
        assert catalog.bases() == [kept.index]
        assert not catalog.segments

    run_virtually(3, partial(play, scenario, tmp_path, SETTINGS))


def test_a_deposed_leaders_merge_does_not_bring_back_what_its_successor_removed(
    tmp_path: Path,
) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await machines.leader()
        await archive_in_small_segments(leader, 30)
        other = next(machine for machine in machines.all if machine is not leader)
        archive, others = leader.node.archive, other.node.archive
        assert archive is not None
        assert others is not None
        checkpointer = Checkpointer(others.target, SETTINGS, random=Random(5))
        kept = await checkpointer.begin_archive()
        await trio.sleep(20)
        await leader.node.group.writes.propose(append("a", b"new"))
        await trio.sleep(2)
        [run] = runs(await archive.target.objects.catalog())
        all_added = linger_over_the_last_part(leader, len(run))

        async def merge() -> None:
            with pytest.raises(ColdUnavailable, match="removed meanwhile"):
                await Merger(archive.target).make_round(LeaderTerm(leader.node.group.view.term))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(merge)
            await all_added.wait()
            leader.disk_s = 0.001
            # Only a leader removes anything; its predecessor continues its merge meanwhile.
            assert leader.node.administration is not None
            await leader.node.administration.perform(Transfer(other.node_id))
            await wait_until(lambda: other.leads)
            await checkpointer.remove_old()
        catalog = await others.target.objects.catalog()
        assert catalog.bases() == [kept.index]
        assert catalog.gaps() == []

    run_virtually(3, partial(play, scenario, tmp_path, SETTINGS))


def test_a_late_put_of_a_removed_object_is_removed_when_leadership_changes(tmp_path: Path) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await machines.leader()
        await archive_in_small_segments(leader, 5)
        archive = leader.node.archive
        assert archive is not None
        target, contents = archive.target, machines.objects.contents
        checkpointer = Checkpointer(target, SETTINGS, random=Random(5))
        await checkpointer.begin_archive()
        await trio.sleep(20)
        await leader.node.group.writes.propose(append("a", b"new"))
        await trio.sleep(2)
        await checkpointer.remove_old()
        name = target.folder + min(name for name in contents if ".segment" in name).split("/", 1)[1]
        assert name not in machines.objects.contents
        await target.cold.put(name, contents[name])
        assert (await target.objects.catalog()).gaps(), "what can be restored looks broken"
        heir = next(machine for machine in machines.all if machine is not leader)
        leader.node.group.view.transfer(heir.node_id)
        await wait_until(lambda: heir.leads and name not in machines.objects.contents)

    run_virtually(3, partial(play, scenario, tmp_path, SETTINGS))
