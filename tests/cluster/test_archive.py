"""One archive under every leader: it continues from its end, without avoidable gaps."""

from __future__ import annotations

import shutil
from pathlib import Path

import trio

from streamd.backup.archived_objects import ArchivedObjects
from streamd.backup.base import Choice
from streamd.backup.inventory import verify
from streamd.cluster.administration import Transfer
from streamd.objectstore.tree_frames import leaf_of
from streamd.process.threads import in_thread
from streamd.proofs.tree import folded, root_of
from streamd.storage.install import install
from tests.support.archived import Quiet, cold_in, header_in, restored, state_in
from tests.support.directories import copy_in_use
from tests.support.flaky_store import Away, FlakyStore
from tests.support.machines import Machine, Machines, Play, all_ready, wait_until
from tests.support.nodes import append, create, read_all, running_node
from tests.support.segments import entries_of

AWAY = 10**9


def away(store: FlakyStore) -> None:
    store.failures = Away()


def back(store: FlakyStore) -> None:
    store.failures = []


async def write(machine: Machine, count: int) -> None:
    for number in range(count):
        await machine.node.group.writes.propose(append("a", b"%d." % number))


async def archived(machine: Machine) -> None:
    """Everything applied now is archived, except for entries that only record archiving."""
    index = machine.node.group.view.applied_index
    state = machine.node.group.state
    await wait_until(lambda: state.header.archived.index >= index - 1)


async def hand_over(machines: Machines, to: Machine) -> None:
    leader = await machines.leader()
    assert leader.node.administration is not None
    await leader.node.administration.perform(Transfer(to.node_id))
    await wait_until(lambda: to.leads)


def check(tmp_path: Path, data_dir: Path) -> None:
    """The archive is one log without a gap, and restores the nodes' state."""

    async def check_it() -> None:
        cold, _ = cold_in(tmp_path / "cold")
        done = await restored(cold, tmp_path / "restored", Choice(), fencing=False)
        verified = await verify(cold, done.former_cluster_id, in_thread, Quiet())
        assert verified.problems == []
        said = state_in(tmp_path / "restored")
        assert said.applied_index == done.last_index
        async with running_node(tmp_path / "restored") as node:
            content = await read_all(node, "a")
        original = state_in(data_dir)
        assert original.records[1][1].startswith(content)
        header = header_in(data_dir)
        first, last = header.tree.first_index, header.archived.index
        assert header.tree.size_at(last) > 30, "one tree goes on"
        objects = ArchivedObjects(cold, done.former_cluster_id, in_thread)
        leaves: dict[int, bytes] = {}
        async for segment in objects.segments((await objects.log()).path(first - 1)):
            leaves |= {entry.index: leaf_of(entry) for entry in entries_of(segment)}
        root = root_of([leaves[index] for index in range(first, last + 1)])
        assert folded(header.tree.nodes) == root

    trio.run(check_it)


async def begin(machines: Machines) -> Machine:
    """Wait until all nodes are up, and create a stream. Returns the leader."""
    leader, *_ = await all_ready(machines)
    await leader.node.group.writes.propose(create("a"))
    return leader


async def copy(machine: Machine, to: Path) -> None:
    """What a node has on its disk, with everything that it has applied."""
    await machine.node.group.storage.flush()
    copy_in_use(machine.path, to)


def test_each_leader_continues_the_archive_where_the_last_one_stopped(
    tmp_path: Path, store: FlakyStore, play_with_store: Play
) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await begin(machines)
        for to in (*machines.all, *machines.all):
            await write(await machines.leader(), 20)
            if not to.leads:
                await hand_over(machines, to)
        leader = await machines.leader()
        await write(leader, 20)
        await archived(leader)
        await wait_until(
            lambda: len({m.node.group.state.header.archived for m in machines.all}) == 1
        )
        await copy(leader, tmp_path / "copy")

    play_with_store(scenario)
    check(tmp_path, tmp_path / "copy")


def test_other_members_archive_for_a_leader_whose_log_begins_too_late(
    tmp_path: Path, store: FlakyStore, play_with_store: Play
) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await begin(machines)
        await write(leader, 10)
        await archived(leader)
        lagging = next(machine for machine in machines.all if machine is not leader)
        await lagging.kill()
        away(store)
        await write(leader, 30)
        # The leader lacks the entries that the archive needs next, but another member has them.
        await leader.node.group.storage.flush()
        leader.node.group.retention.archived_index = None
        await leader.node.group.storage.compact()
        machines.start(lagging)
        await wait_until(lambda: bool(lagging.calls[install.__name__]))
        await wait_until(lambda: lagging.is_ready)
        await hand_over(machines, lagging)
        assert lagging.node.group.committed.first_index > 20
        assert lagging.node.archive is not None
        assert lagging.node.archive.cut_unarchived_index > 20
        back(store)
        await archived(lagging)
        archive = lagging.node.archive
        assert archive is not None
        # This leader learns it only once the store is back.
        await wait_until(lambda: archive.report()["gaps"] is not None)
        assert archive.report()["gaps"] == []
        assert archive.cut_unarchived_index == 0
        await write(lagging, 5)
        await archived(lagging)
        await copy(lagging, tmp_path / "copy")

    play_with_store(scenario)
    check(tmp_path, tmp_path / "copy")


def test_a_leader_that_lost_the_chain_of_its_log_continues_the_archives_chain(
    tmp_path: Path, store: FlakyStore, play_with_store: Play
) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await begin(machines)
        await write(leader, 10)
        await archived(leader)
        other = next(machine for machine in machines.all if machine is not leader)
        await other.node.group.storage.flush()
        await other.kill()
        # Its old log is lost: the new one begins after the state, with a chain of its own.
        shutil.rmtree(other.path / "log")
        machines.start(other)
        await write(leader, 10)
        await wait_until(lambda: other.is_ready and other.node.group.view.may_vote)
        await hand_over(machines, other)
        await write(other, 10)
        await archived(other)
        await copy(other, tmp_path / "copy")

    play_with_store(scenario)
    check(tmp_path, tmp_path / "copy")
