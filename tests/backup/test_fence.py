"""The fence of a restore: confirmed by the cluster's id, set at the end, removable."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import trio

from streamd.config.settings import ColdConfig
from streamd.objectstore.errors import ObjectMissing
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.fence import fences_of
from tests.backup.history import Copy, History, Ran, streamd
from tests.backup.test_archive import archived, task
from tests.support.archived import cold_in, restored
from tests.support.nodes import append_to, create, running_node, wait_until

PACKED = ColdConfig(backend="fs", flush_after_ms=1, pack_bytes=64 * 1024)


async def restore(copy: Copy, new: Path, *arguments: str) -> Ran:
    place = ("--from", f"fs:{copy.path}", "--data-dir", str(new))
    return await streamd("restore", *place, *arguments)


def fences(copy: Copy) -> list[str]:
    folder = copy.path / copy.cluster_id / "fence"
    return [fence.name for fence in folder.iterdir()] if folder.exists() else []


async def test_a_fence_is_confirmed_by_the_clusters_id(tmp_path: Path, copy: Copy) -> None:
    unconfirmed = await restore(copy, tmp_path / "new")
    assert unconfirmed.exit_code == 2
    assert f"--fence {copy.cluster_id}" in unconfirmed.output
    mistaken = await restore(copy, tmp_path / "new", "--fence", "prod")
    assert mistaken.exit_code == 2
    assert copy.cluster_id in mistaken.output
    assert fences(copy) == []
    assert not (tmp_path / "new").exists()
    done = await restore(copy, tmp_path / "new", "--fence", copy.cluster_id)
    assert done.exit_code == 0, done.output
    assert "The old cluster is fenced" in done.output
    assert len(fences(copy)) == 1
    told = await streamd("backup", "status", "--from", f"fs:{copy.path}")
    assert "FENCED" in told.output


async def test_on_a_terminal_the_confirmation_is_asked_for(tmp_path: Path, copy: Copy) -> None:
    place = ("--from", f"fs:{copy.path}", "--data-dir", str(tmp_path / "new"))
    for typed, status in ((b"yes", 2), (copy.cluster_id.encode(), 0)):
        ours, theirs = os.openpty()
        try:
            os.write(ours, typed + b"\n")
            found = await trio.run_process(
                [sys.executable, "-m", "streamd", "restore", *place],
                stdin=theirs,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
        finally:
            os.close(ours)
            os.close(theirs)
        assert found.returncode == status, found.stderr
        assert b"Type its id to confirm" in found.stderr
        assert bool(fences(copy)) == (status == 0)


async def test_a_failed_restore_leaves_no_fence(tmp_path: Path, copy: Copy) -> None:
    shutil.rmtree(copy.path / copy.cluster_id / "pieces")
    copy.objects("log")[-1].unlink()
    failed = await restore(copy, tmp_path / "new", "--fence", copy.cluster_id)
    assert failed.exit_code == 1, failed.output
    assert fences(copy) == []


async def a_packed_life(directory: Path, cold: AsyncObjectStore) -> str:
    """A node with packs that are archived; returns its cluster's id."""
    async with running_node(directory, cold=cold, cold_config=PACKED) as node:
        await node.group.writes.propose(create("a"))
        await append_to(node, "a", bytes(100_000))
        header = node.group.state.header
        await wait_until(lambda: not header.hot_bytes)
        await archived(node)
        return node.stores.data_dir.identity.cluster_id


async def test_packs_that_the_old_cluster_deletes_before_the_fence_are_found_missing(
    tmp_path: Path,
) -> None:
    cold, store = cold_in(tmp_path / "cold")
    cluster_id = await a_packed_life(tmp_path / "data", cold)
    put = store.put

    def put_late(name: str, content: bytes) -> None:
        if "/fence/" in name:
            for pack in (tmp_path / "cold").rglob("*.pack"):
                pack.unlink()
        put(name, content)

    store.put = put_late  # type: ignore[method-assign]
    with pytest.raises(ObjectMissing, match="stop its nodes"):
        await restored(cold, tmp_path / "new")
    assert await fences_of(cold, cluster_id) == []


async def test_a_fence_can_be_removed_and_the_old_cluster_continues(tmp_path: Path) -> None:
    cold, _ = cold_in(tmp_path / "cold")
    cluster_id = await a_packed_life(tmp_path / "data", cold)
    done = await restored(cold, tmp_path / "new")
    place = ("--from", f"fs:{tmp_path / 'cold'}")
    async with running_node(tmp_path / "data", cold=cold, cold_config=PACKED) as node:
        await wait_until(lambda: task(node, "archive").error is not None)
        assert f"--restored {done.cluster_id}" in str(task(node, "archive").error)
        unfence = ("backup", "unfence", *place, "--cluster", cluster_id, "--restored")
        assert (await streamd(*unfence, "another")).exit_code == 1
        assert (await streamd(*unfence, done.cluster_id)).exit_code == 0
        task(node, "archive").run_now()
        await append_to(node, "a", b"on")
        await archived(node)
        assert task(node, "archive").error is None
    assert (await streamd(*unfence, done.cluster_id)).exit_code == 1


async def test_a_finished_drill_can_be_fenced_by_a_second_run(
    tmp_path: Path, history: History, copy: Copy
) -> None:
    cold, _ = cold_in(copy.path)
    drill = await restored(cold, tmp_path / "new", fencing=False)
    assert fences(copy) == []
    assert await restored(cold, tmp_path / "new") == drill
    assert fences(copy) == [drill.cluster_id]
