"""A node set back to an old copy of its data leaves the archive alone, and reports it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from streamd.backup import history
from streamd.backup.inventory import verify
from streamd.config.settings import ColdConfig
from streamd.node import cold_status
from streamd.node.node import Node
from streamd.objectstore.errors import ColdError
from streamd.process.metrics import Metrics
from streamd.process.threads import in_thread
from streamd.tiering.async_store import AsyncObjectStore
from tests.backup.history import files_in
from tests.backup.test_archive import a_round, archived, task
from tests.sim.runtime import run_virtually
from tests.support.archived import Quiet, cold_in, restored
from tests.support.directories import copy_in_use
from tests.support.flaky_store import FlakyStore
from tests.support.machines import Machine, Machines, all_ready, play
from tests.support.nodes import append, append_to, create, read_all, running_node, wait_until

FLUSHED = ColdConfig(
    backend="fs", flush_after_ms=1, pack_bytes=64 * 1024, gc_interval_ms=50, gc_grace_ms=1
)


@pytest.fixture
def place(tmp_path: Path) -> tuple[AsyncObjectStore, FlakyStore]:
    return cold_in(tmp_path / "cold")


async def flushed(node: Node) -> None:
    header = node.group.state.header
    await wait_until(lambda: not header.hot_bytes)
    await archived(node)


async def refused(node: Node, *names: str) -> None:
    """Every task of the leader has run, and ended with the same alarm."""
    for name in names or ("flush", "archive", "snapshot", "merge", "garbage"):
        await wait_until(lambda: "was set back" in (task(node, name).error or ""))  # noqa: B023


async def a_life(directory: Path, place: Path, cold: AsyncObjectStore) -> Path:
    """A node's data and archive; returns a copy of the data from the middle of its life."""
    async with running_node(directory, cold=cold, cold_config=FLUSHED) as node:
        await node.group.writes.propose(create("a"))
        for number in range(3):
            await append_to(node, "a", bytes([number]) * 50_000)
            await flushed(node)
        await node.group.storage.flush()
        copy = copy_in_use(directory, directory.with_name("copy"))
        for number in range(3, 9):
            await append_to(node, "a", bytes([number]) * 50_000)
            await flushed(node)
    return copy


async def test_a_node_set_back_deletes_archives_and_flushes_nothing(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    copy = await a_life(tmp_path / "data", tmp_path / "cold", cold)
    before = files_in(tmp_path / "cold")
    async with running_node(copy, cold=cold, cold_config=FLUSHED) as node:
        await refused(node)
        await append_to(node, "a", b"written meanwhile")
        node.cold_gc.want_round()
        for _ in range(3):
            with pytest.raises(ColdError, match="streamd restore"):
                await task(node, "garbage")._make_round(node.cold_tier.lead)  # type: ignore
        assert node.cold_gc.total.deleted_orphans == 0
        content = await read_all(node, "a")
        assert content == b"\0" * 50_000 + b"\1" * 50_000 + b"\2" * 50_000 + b"written meanwhile"
    assert files_in(tmp_path / "cold") == before
    done = await restored(cold, tmp_path / "new", fencing=False)
    async with running_node(tmp_path / "new", cold=cold) as node:
        assert len(await read_all(node, "a")) == 9 * 50_000
    assert done.packs >= 9


async def test_a_node_set_back_is_reported_by_an_alarm_and_by_the_status(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    copy = await a_life(tmp_path / "data", tmp_path / "cold", cold)
    async with running_node(copy, cold=cold, cold_config=FLUSHED) as node:
        await refused(node)
        metrics = Metrics()
        cold_status.export(node, metrics)
        assert b'streamd_archive_alarm{alarm="set_back"} 1.0' in metrics.exposition()
        told = await cold_status.report(node)
        assert told is not None
        archive = told["archive"]
        assert isinstance(archive, dict)
        assert "before the archive's end at entry" in archive["set_back"]
        assert node.stores.data_dir.identity.cluster_id in archive["set_back"]


async def test_a_history_that_grew_beyond_the_archives_end_is_still_another(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    copy = await a_life(tmp_path / "data", tmp_path / "cold", cold)
    before = files_in(tmp_path / "cold")
    for _ in range(2):
        async with running_node(copy, cold=cold, cold_config=FLUSHED) as node:
            await refused(node)
            for number in range(60):
                await append_to(node, "a", b"%d" % number)
    async with running_node(copy, cold=cold, cold_config=FLUSHED) as node:
        await refused(node)
        assert "does not match the archive" in str(task(node, "archive").error)
    assert files_in(tmp_path / "cold") == before


async def test_an_archive_without_pointers_is_compared_by_its_segments(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    copy = await a_life(tmp_path / "data", tmp_path / "cold", cold)
    for end in list((tmp_path / "cold").rglob("*.end")):
        end.unlink()
    before = files_in(tmp_path / "cold")
    for _ in range(2):
        async with running_node(copy, cold=cold, cold_config=FLUSHED) as node:
            await refused(node)
            for number in range(60):
                await append_to(node, "a", b"%d" % number)
    assert files_in(tmp_path / "cold") == before
    async with running_node(tmp_path / "data", cold=cold, cold_config=FLUSHED) as node:
        await append_to(node, "a", b"the node that was not set back goes on")
        await flushed(node)
        assert task(node, "garbage").error is None
    assert list((tmp_path / "cold").rglob("*.end"))


async def test_a_copy_running_beside_the_node_is_stopped_while_both_lead(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_GOOD_FOR_S", 0.1)
    cold, _ = place
    async with running_node(tmp_path / "data", cold=cold, cold_config=FLUSHED) as node:
        await node.group.writes.propose(create("a"))
        await flushed(node)
        await node.group.storage.flush()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    async with (
        running_node(tmp_path / "data", cold=cold, cold_config=FLUSHED) as node,
        running_node(tmp_path / "copy", cold=cold, cold_config=FLUSHED) as other,
    ):
        await wait_until(lambda: task(other, "garbage").done_at is not None)
        for number in range(30):
            await append_to(node, "a", b"%d" % number)
        await flushed(node)
        await append_to(other, "a", b"another history")
        await refused(other, "archive", "garbage")
        assert task(node, "archive").error is None


async def test_a_segment_put_but_not_committed_before_a_crash_is_not_another_history(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    async with running_node(tmp_path / "data", cold=cold) as node:
        await node.group.writes.propose(create("a"))
        await archived(node)
        before = node.group.state.header.archived
        await append_to(node, "a", b"x")
        assert node.archive is not None
        node.archive.target.wanted_index = 0
        written, _ = await node.archive._write_segment(node.archive.reached)
        assert written.index >= before.index
    async with running_node(tmp_path / "data", cold=cold) as node:
        await append_to(node, "a", b"y")
        await archived(node)
        await a_round(node, "garbage")
        assert task(node, "archive").error is task(node, "garbage").error is None
        found = await verify(cold, node.stores.data_dir.identity.cluster_id, in_thread, Quiet())
    assert found.problems == []


@pytest.fixture(name="play")
def _play(tmp_path: Path) -> Callable[..., None]:
    _, store = cold_in(tmp_path / "cold")
    return lambda scenario: run_virtually(1, partial(play, scenario, tmp_path, store=store))


def test_a_cluster_whose_majority_was_set_back_leaves_the_store_alone(
    tmp_path: Path, play: Callable[..., None]
) -> None:
    async def write(machine: Machine, count: int) -> None:
        for number in range(count):
            await machine.node.group.writes.propose(append("a", b"%d." % number))
        archived = machine.node.group.state.header
        index = machine.node.group.view.applied_index
        with trio.fail_after(60):
            while archived.archived.index < index - 1:  # noqa: ASYNC110
                await trio.sleep(0.1)

    async def scenario(machines: Machines) -> None:
        leader, *others = await all_ready(machines)
        await leader.node.group.writes.propose(create("a"))
        await write(leader, 10)
        for machine in others:
            await machine.node.group.storage.flush()
            copy_in_use(machine.path, tmp_path / f"copy{machine.node_id}")
        await write(leader, 40)
        for machine in machines.all:
            await machine.kill()
        before = files_in(tmp_path / "cold")
        for machine in others:
            shutil.rmtree(machine.path)
            (tmp_path / f"copy{machine.node_id}").rename(machine.path)
            machines.start(machine)
        set_back = await machines.leader()
        with trio.fail_after(60):
            while "was set back" not in str(task(set_back.node, "garbage").error):  # noqa: ASYNC110
                await trio.sleep(0.1)
        await set_back.node.group.writes.propose(append("a", b"meanwhile"))
        await trio.sleep(60)
        assert files_in(tmp_path / "cold") == before

    play(scenario)
