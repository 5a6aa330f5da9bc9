"""Losses of the archive are reported, and a new checkpoint makes it whole again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from streamd.backup import history
from streamd.backup.inventory import verify
from streamd.config.settings import ColdConfig
from streamd.node.node import Node
from streamd.process.threads import in_thread
from streamd.tiering.async_store import AsyncObjectStore
from tests.backup.history import damage, files_in
from tests.backup.test_archive import a_round, archived, scraped, task
from tests.support.archived import NOW_MS, Quiet, cold_in, restored, state_in
from tests.support.flaky_store import FlakyStore
from tests.support.nodes import Clock, append_to, create, running_node, wait_until

HOUR_MS = 3_600_000
# Everything is in the log, and a checkpoint is hardly ever due.
RARELY = ColdConfig(
    backend="fs", flush_after_ms=10**9, snapshot_interval_minutes=60, archive_retention_hours=2
)


@pytest.fixture
def place(tmp_path: Path) -> tuple[AsyncObjectStore, FlakyStore]:
    return cold_in(tmp_path / "cold")


def stored(tmp_path: Path, ending: str) -> list[Path]:
    return sorted(Path(name) for name in files_in(tmp_path / "cold") if name.endswith(ending))


def remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink()


async def restores_all(tmp_path: Path, node: Node, cold: AsyncObjectStore) -> None:
    """The store alone restores what the node has, and is whole except for a reported gap."""
    await archived(node)
    wanted = node.group.state.header.archived.index
    done = await restored(cold, tmp_path / "new", fencing=False)
    assert done.last_index == wanted
    (content,) = [data for _, data in state_in(tmp_path / "new").records.values()]
    assert content == b"before;after;"


async def test_a_damaged_newest_checkpoint_stops_neither_checkpoints_nor_retention(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, store = place
    clock = Clock(NOW_MS)
    store.clock_ms = clock
    async with running_node(tmp_path / "data", cold=cold, clock=clock, cold_config=RARELY) as node:
        await node.group.writes.propose(create("a"))
        for _ in range(2):
            clock.now_ms += 2 * HOUR_MS
            await append_to(node, "a", b"x")
            await archived(node)
            await a_round(node, "snapshot")
    older, newest = stored(tmp_path, ".manifest")
    damage(newest)
    async with running_node(tmp_path / "data", cold=cold, clock=clock, cold_config=RARELY) as node:
        await append_to(node, "a", b"y")
        await archived(node)
        await wait_until(lambda: len(stored(tmp_path, ".manifest")) == 3)
        assert node.archive is not None
        (named,) = node.archive.damaged_checkpoints or []
        assert named.endswith(newest.name)
        assert scraped(node)["alarm_snapshot_damaged"] == 1
        assert older in stored(tmp_path, ".manifest"), "what is damaged does not stand for it"
        for _ in range(2):
            clock.now_ms += 3 * HOUR_MS
            await append_to(node, "a", b"z")
            await archived(node)
            await a_round(node, "snapshot")
        assert not {older, newest} & set(stored(tmp_path, ".manifest"))
        await wait_until(lambda: scraped(node)["alarm_snapshot_damaged"] == 0)


async def test_segments_lost_while_the_node_was_down_are_reported_and_replaced(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    async with running_node(tmp_path / "data", cold=cold, cold_config=RARELY) as node:
        await node.group.writes.propose(create("a"))
        await append_to(node, "a", b"before;")
        await archived(node)
        await a_round(node, "snapshot")
        await append_to(node, "a", b"after;")
        await archived(node)
    cluster_id = node.stores.data_dir.identity.cluster_id
    remove(stored(tmp_path, ".segment")[-1:])
    assert (await verify(cold, cluster_id, in_thread, Quiet())).problems
    async with running_node(tmp_path / "data", cold=cold, cold_config=RARELY) as node:
        await wait_until(lambda: len(stored(tmp_path, ".manifest")) == 2)
        await a_round(node, "snapshot")
        assert scraped(node)["alarm_gap"] == 1
        await restores_all(tmp_path, node, cold)


async def test_a_bucket_emptied_under_a_running_node_is_filled_again(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_GOOD_FOR_S", 0.1)
    cold, _ = place
    async with running_node(tmp_path / "data", cold=cold, cold_config=RARELY) as node:
        await node.group.writes.propose(create("a"))
        await append_to(node, "a", b"before;")
        await archived(node)
        await a_round(node, "snapshot")
        remove(Path(name) for name in files_in(tmp_path / "cold"))
        await append_to(node, "a", b"after;")
        task(node, "snapshot").run_now()
        await wait_until(lambda: bool(stored(tmp_path, ".manifest")))
        await wait_until(lambda: bool(stored(tmp_path, ".end")))
        await restores_all(tmp_path, node, cold)
        problems = (
            await verify(cold, node.stores.data_dir.identity.cluster_id, in_thread, Quiet())
        ).problems
        assert problems == []
