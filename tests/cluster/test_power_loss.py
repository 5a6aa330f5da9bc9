"""Power fails in the middle of writes on all nodes at once, or a state is damaged: nodes recover by
themselves."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from streamd.raft.messages import Entry, EntryKind
from streamd.storage.errors import StorageError
from streamd.storage.log_storage import open_log
from streamd.storage.state_store import StateStore
from tests.sim.torn_pages import torn
from tests.support.directories import copy_in_use
from tests.support.machines import Machine, Machines, Play, all_ready, wait_until
from tests.support.nodes import append, append_to, create, read_all, running_node
from tests.support.seeds import one_each


def tear(machine: Machine, random: Random) -> None:
    """Leave of an unacknowledged write to log and state what a loss of power may leave."""
    copy = copy_in_use(machine.path, machine.path.with_suffix(".copy"))
    log = open_log(copy / "log", copy / "floor", alone=False)
    state = StateStore(copy / "state")
    before = copy_in_use(copy, machine.path.with_suffix(".before"))
    hard_state = log.hard_state
    payload = random.randbytes(20_000)  # meaningless, in case it stays
    entry = Entry(log.last_index + 1, hard_state.term, EntryKind.NOOP, payload)
    log.append([entry], hard_state)
    state.write([(b"\xf0row", random.randbytes(20_000))])
    after = copy_in_use(copy, machine.path.with_suffix(".after"))
    log.close()
    state.close()
    for file in (*before.glob("*/*.log"), before / "log" / "journal"):
        written = after / file.relative_to(before)
        content = torn(file.read_bytes(), written.read_bytes(), random, [random.randbytes(4096)])
        file.write_bytes(content)
    shutil.rmtree(machine.path)
    before.rename(machine.path)


@pytest.mark.parametrize("seed", one_each(6, 1))
def test_writes_torn_on_all_nodes_at_once_cost_no_node_its_vote(seed: int, play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        random = Random(seed)
        leader, *_ = await all_ready(machines)
        await leader.node.group.writes.propose(create("a"))
        for number in range(9):
            await leader.node.group.writes.propose(append("a", b"<%d>" % number))
        for machine in machines.all:
            await machine.kill()
            tear(machine, random)
        for machine in machines.all:
            machines.start(machine)
        leader, *_ = await all_ready(machines)
        assert [machine.node.group.view.may_vote for machine in machines.all] == [True] * 3
        assert [machine.node.stores.log.lost_below for machine in machines.all] == [None] * 3
        await leader.node.group.writes.propose(append("a", b"<9>"))
        everything = b"".join(b"<%d>" % number for number in range(10))
        assert await read_all(leader.node, "a") == everything

    play(scenario)


def damage_state(path: Path) -> None:
    """Damage the state so that it cannot be opened."""
    manifest = max((path / "state").glob("MANIFEST-*"))
    content = bytearray(manifest.read_bytes())
    content[9] ^= 1
    manifest.write_bytes(content)


def test_a_member_rebuilds_a_damaged_state_from_its_log(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, damaged, _ = await all_ready(machines)
        await leader.node.group.writes.propose(create("a"))
        await leader.node.group.writes.propose(append("a", b"content"))
        await damaged.kill()
        damage_state(damaged.path)
        machines.start(damaged)
        await wait_until(lambda: damaged.is_ready)
        assert damaged.node.stores.log.lost_below is None
        assert await read_all(damaged.node, "a") == b"content"
        assert (damaged.path / "state.damaged").is_dir()

    play(scenario)


def test_a_member_with_a_damaged_state_and_a_compacted_log_gets_a_raft_snapshot(play: Play) -> None:
    """It needs a Raft snapshot, and does not vote until it has it."""

    async def scenario(machines: Machines) -> None:
        leader, damaged, other = await all_ready(machines)
        await leader.node.group.writes.propose(create("a"))
        await leader.node.group.writes.propose(append("a", b"content"))
        for machine in machines.all:
            await machine.node.group.storage.compact()
        reached = damaged.node.stores.log.last_index
        await damaged.kill()
        damage_state(damaged.path)
        for machine in (leader, other):
            await machine.kill()
        machines.start(damaged)
        await wait_until(lambda: damaged.running is not None)
        assert not damaged.node.group.view.may_vote
        lost = damaged.node.stores.log.lost_below
        assert lost is not None
        assert lost.index >= reached

        machines.start(leader)
        machines.start(other)
        await wait_until(lambda: damaged.is_ready and damaged.node.group.view.may_vote)
        assert await read_all(damaged.node, "a") == b"content"
        assert (damaged.path / "log.damaged").is_dir()

    play(scenario)


async def test_a_single_node_rebuilds_a_damaged_state_from_its_log(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
        await append_to(node, "a", b"content")
    damage_state(tmp_path)
    for _ in range(2):
        async with running_node(tmp_path) as node:
            assert await read_all(node, "a") == b"content"


async def test_a_single_node_refuses_a_damaged_state_once_its_log_was_compacted(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
        await append_to(node, "a", b"content")
        await node.group.storage.compact()
    damage_state(tmp_path)
    for _ in range(2):
        with pytest.raises(StorageError, match=r"state.* is corrupt"):
            async with running_node(tmp_path):
                pass
    assert (tmp_path / "state").is_dir()
