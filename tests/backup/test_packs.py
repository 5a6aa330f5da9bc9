"""The packs that a restored state refers to are there, with the bytes that were put."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from streamd.config.settings import ColdConfig
from streamd.group.stores import Stores
from streamd.objectstore.errors import ObjectMissing
from streamd.storage.errors import RestoreUnfinished
from streamd.streams.commands import FlushCold, Result
from tests.backup.history import UNFLUSHED, damage, streamd
from tests.backup.test_archive import a_round, archived
from tests.support.archived import cold_in, restored, state_in
from tests.support.nodes import append_to, create, read_all, running_node, wait_until


async def test_packs_are_read_from_the_old_clusters_folder(tmp_path: Path) -> None:
    cold, _ = cold_in(tmp_path / "cold")
    config = ColdConfig(backend="fs", flush_after_ms=1, pack_bytes=64 * 1024)
    content = [bytes([number]) * 20_000 for number in range(40)]
    async with running_node(tmp_path / "data", cold=cold, cold_config=config) as node:
        await node.group.writes.propose(create("a"))
        for part in content:
            await append_to(node, "a", part)
        header = node.group.state.header

        await wait_until(lambda: not header.hot_bytes)
        await archived(node)
        await a_round(node, "snapshot")
        await append_to(node, "a", b"the end")
        await archived(node)
    shutil.rmtree(tmp_path / "data")
    done = await restored(cold, tmp_path / "new")
    assert done.packs > 0
    said = state_in(tmp_path / "new")
    assert sum(len(data) for _, data in said.records.values()) < 100_000, "they are in packs"
    async with running_node(tmp_path / "new", cold=cold, cold_config=config) as node:
        assert await read_all(node, "a") == b"".join(content) + b"the end"
    store = ("--from", f"fs:{tmp_path / 'cold'}", "--cluster", done.former_cluster_id)
    verified = await streamd("backup", "verify", *store)
    assert verified.exit_code == 0, verified.output


async def test_a_pack_known_only_to_the_log_is_verified(tmp_path: Path) -> None:
    cold, _ = cold_in(tmp_path / "cold")
    config = ColdConfig(backend="fs", flush_after_ms=1, pack_bytes=64 * 1024)
    async with running_node(tmp_path / "data", cold=cold, cold_config=config) as node:
        header = node.group.state.header
        packs: list[set[Path]] = []
        await node.group.writes.propose(create("a"))
        for _ in range(2):
            await append_to(node, "a", bytes(100_000))
            await wait_until(lambda: not header.hot_bytes)
            await archived(node)
            await a_round(node, "snapshot")
            packs.append(set((tmp_path / "cold").rglob("*.pack")))
    assert len(list((tmp_path / "cold").rglob("*.manifest"))) == 1
    store = ("--from", f"fs:{tmp_path / 'cold'}")
    whole = await streamd("backup", "verify", *store, "--json")
    (told,) = json.loads(whole.stdout)
    assert (told["problems"], told["packs"]) == ([], len(packs[1]))
    later = min(packs[1] - packs[0])
    content = later.read_bytes()
    damage(later)
    found = await streamd("backup", "verify", *store)
    assert found.exit_code == 1
    assert later.name in found.output
    later.unlink()
    found = await streamd("backup", "verify", *store)
    assert found.exit_code == 1
    assert later.name in found.output
    later.write_bytes(content)
    assert (await streamd("backup", "verify", *store)).exit_code == 0


async def test_a_pack_that_the_log_refused_is_not_missed(tmp_path: Path) -> None:
    cold, _ = cold_in(tmp_path / "cold")
    async with running_node(tmp_path / "data", cold=cold, cold_config=UNFLUSHED) as node:
        await append_to(node, "a", b"x")
        term = node.group.view.term
        late = FlushCold(term - 1, 7, "gone.pack", 1, [])
        assert (await node.group.writes.propose(late)).result is Result.STALE
        await archived(node)
    found = await streamd("backup", "verify", "--from", f"fs:{tmp_path / 'cold'}")
    assert found.exit_code == 0, found.output


async def test_a_missing_pack_is_found_at_the_end(tmp_path: Path) -> None:
    cold, _ = cold_in(tmp_path / "cold")
    config = ColdConfig(backend="fs", flush_after_ms=1, pack_bytes=64 * 1024)
    async with running_node(tmp_path / "data", cold=cold, cold_config=config) as node:
        await node.group.writes.propose(create("a"))
        await append_to(node, "a", bytes(100_000))
        header = node.group.state.header

        await wait_until(lambda: not header.hot_bytes)
        await archived(node)
    for pack in (tmp_path / "cold").rglob("*.pack"):
        pack.unlink()
    with pytest.raises(ObjectMissing):
        await restored(cold, tmp_path / "new")
    with pytest.raises(RestoreUnfinished):
        Stores.open(tmp_path / "new", 1)
