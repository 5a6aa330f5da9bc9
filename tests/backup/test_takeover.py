"""A cluster recovered from one node, and the old majority that returns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from streamd.config.settings import ColdConfig
from streamd.node.node import Node
from streamd.objectstore.objects import MAX_PAGE, ObjectInfo
from streamd.process.threads import in_thread
from streamd.streams.commands import Delete
from streamd.tiering.async_store import AsyncObjectStore
from tests.backup.history import Ran, files_in, streamd
from tests.backup.test_archive import a_round, archived, task
from tests.support.archived import cold_in
from tests.support.directories import copy_in_use
from tests.support.flaky_store import FlakyStore
from tests.support.nodes import append_to, create, key, read_all, running_node, wait_until

# Objects that nothing needs are removed at once, and so are restore points.
HASTY = ColdConfig(
    backend="fs",
    flush_after_ms=1,
    pack_bytes=64 * 1024,
    hot_keep_bytes=1,
    snapshot_interval_minutes=0.001,
    archive_retention_hours=0.000_001,
    gc_interval_ms=50,
    gc_grace_ms=1,
)
CONTENT = bytes(range(250)) * 400
# A pack of an earlier term that nothing refers to.
PACK = "{}/packs/00000000/0000000000000000-{:08x}-" + "0" * 64 + ".pack"


@pytest.fixture
def place(tmp_path: Path) -> tuple[AsyncObjectStore, FlakyStore]:
    return cold_in(tmp_path / "cold")


async def flushed(node: Node) -> None:
    header = node.group.state.header
    await wait_until(lambda: not header.hot_bytes)
    await archived(node)


async def old_cluster(tmp_path: Path, cold: AsyncObjectStore) -> tuple[Path, str]:
    """A node's data from the middle of its life, and the cluster's id; the node itself returns
    later."""
    async with running_node(tmp_path / "data", cold=cold, cold_config=HASTY) as node:
        await node.group.writes.propose(create("a"))
        await append_to(node, "a", CONTENT)
        await flushed(node)
        await node.group.storage.flush()
        archive: Any = node.archive
        await wait_until(lambda: archive.report()["last_snapshot"]["index"] is not None)
        survivor = copy_in_use(tmp_path / "data", tmp_path / "survivor")
        return survivor, node.stores.data_dir.identity.cluster_id


async def recover(tmp_path: Path, survivor: Path, *, cold: Path | None) -> Ran:
    config = tmp_path / "node.toml"
    named = f'[cold]\nbackend = "fs"\nfs_path = "{cold}"\n' if cold else ""
    config.write_text(f"version = 1\n{named}")
    given = ("--offline", "--accept-data-loss", "--config", str(config))
    return await streamd("recover", *given, "--data-dir", str(survivor))


async def comes_back(tmp_path: Path, cold: AsyncObjectStore) -> None:
    """The old cluster's node, which deletes everything that it had if it is allowed to."""
    async with running_node(tmp_path / "data", cold=cold, cold_config=HASTY) as node:
        await node.group.writes.propose(Delete(key("a")))
        for name in ("flush", "archive", "snapshot", "merge", "garbage"):
            await wait_until(lambda: task(node, name).error is not None)  # noqa: B023
            assert "restored or recovered from this one" in str(task(node, name).error)


async def test_the_old_majority_no_longer_deletes_archives_or_flushes(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    survivor, _ = await old_cluster(tmp_path, cold)
    found = await recover(tmp_path, survivor, cold=tmp_path / "cold")
    assert found.exit_code == 0, found.output
    assert "WARNING" not in found.output
    before = files_in(tmp_path / "cold")
    await comes_back(tmp_path, cold)
    assert files_in(tmp_path / "cold") == before
    async with running_node(survivor, cold=cold, cold_config=HASTY) as node:
        assert await read_all(node, "a") == CONTENT
        await append_to(node, "a", b"and on")
        await flushed(node)
        assert node.archive is not None
        assert node.archive.report()["gaps"] == []
        assert all(one.error is None for one in node.cold_tier.leader_tasks)  # type: ignore
    after = files_in(tmp_path / "cold")
    assert {name: after[name] for name in before} == before, "it keeps what the old one has"
    verified = await streamd("backup", "verify", "--from", f"fs:{tmp_path / 'cold'}")
    assert verified.exit_code == 0, verified.output


async def test_a_node_recovered_without_its_store_fences_before_it_uses_it(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    survivor, cluster_id = await old_cluster(tmp_path, cold)
    found = await recover(tmp_path, survivor, cold=None)
    assert found.exit_code == 0, found.output
    assert "keep the old nodes stopped until this node has started" in found.output
    async with running_node(survivor, cold=cold, cold_config=HASTY) as node:
        await archived(node)
        fence = tmp_path / "cold" / cluster_id / "fence"
        assert [one.name for one in fence.iterdir()] == [node.stores.data_dir.identity.cluster_id]
    await comes_back(tmp_path, cold)
    async with running_node(survivor, cold=cold, cold_config=HASTY) as node:
        assert await read_all(node, "a") == CONTENT


class Recording(FlakyStore):
    """Records the order in which folders are listed and objects deleted."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.told: list[str] = []

    def page(self, prefix: str, *, after: str = "", limit: int = MAX_PAGE) -> list[ObjectInfo]:
        found = super().page(prefix, after=after, limit=limit)
        self.told.append(f"list {prefix.split('/')[1] if '/' in prefix else prefix}")
        return found

    def delete(self, names: Sequence[str]) -> None:
        self.told.append("delete " + names[0].split("/")[1])
        super().delete(names)


_DELETED = {"packs", "log", "pieces", "snapshots", "ends", "heads"}


async def test_each_deletion_follows_a_check_of_the_fence_and_the_archives_end(
    tmp_path: Path,
) -> None:
    store = Recording(tmp_path / "cold")
    cold = AsyncObjectStore(store, run_blocking=in_thread, random=Random(1), max_requests=1)
    async with running_node(tmp_path / "data", cold=cold, cold_config=HASTY) as node:
        for number in range(12):
            await node.group.writes.propose(create("a"))
            await append_to(node, "a", CONTENT)
            await flushed(node)
            await node.group.writes.propose(Delete(key("a")))
            (
                tmp_path / "cold" / PACK.format(node.stores.data_dir.identity.cluster_id, number)
            ).touch()
        await a_round(node, "snapshot")
        node.cold_gc.want_round()
        await a_round(node, "garbage")
        await wait_until(lambda: node.cold_gc.total.deleted_packs > 0)
        assert node.cold_gc.total.deleted_orphans == 12
        await node.group.writes.propose(create("b"))
        with trio.fail_after(60):
            while not {call.removeprefix("delete ") for call in store.told} >= _DELETED:
                # A checkpoint is removed once a later one is old enough, which needs entries in
                # between.
                await append_to(node, "b", b"x")
                await a_round(node, "snapshot")
    looks: set[str] = set()
    deleted: set[str] = set()
    for call in store.told:
        verb, _, what = call.partition(" ")
        if verb == "list":
            looks.add(what)
        else:
            assert {"fence", "ends"} <= looks, f"{what} deleted without another look"
            deleted.add(what)
            looks.clear()
    assert deleted == _DELETED


async def test_objects_that_the_old_majority_deleted_earlier_are_reported(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    survivor, _ = await old_cluster(tmp_path, cold)
    packs = [name for name in files_in(tmp_path / "cold") if name.endswith(".pack")]
    cold._store.delete([name.removeprefix(f"{tmp_path / 'cold'}/") for name in packs])
    found = await recover(tmp_path, survivor, cold=tmp_path / "cold")
    assert found.exit_code == 0, found.output
    assert f"WARNING: {len(packs)} packs are missing in the cold store" in found.output
