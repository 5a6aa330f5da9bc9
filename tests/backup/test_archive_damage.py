"""Damaged or foreign objects in the archive stop no node."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.backup.inventory import look, verify
from streamd.node.node import Node
from streamd.objectstore.errors import ObjectCorrupt
from streamd.process.threads import in_thread
from tests.backup.test_archive import archived, task
from tests.support.archived import Quiet, cold_in, restored
from tests.support.nodes import append_to, create, read_all, running_node, wait_until


async def many_segments(node: Node) -> None:
    await node.group.writes.propose(create("a"))
    for number in range(20):
        await append_to(node, "a", b"%d," % number)
        await archived(node)


def name_after_another(place: Path, number: int) -> Path:
    """Put a valid segment in the place of the one before it and in its own."""
    segments = sorted(place.rglob("*.segment"))
    before, itself = segments[number - 1], segments[number]
    first, (_, rest) = before.name.split("-")[0], itself.name.split("-", 1)
    before.unlink()
    return itself.rename(itself.with_name(f"{first}-{rest}"))


async def test_a_segment_under_the_name_of_another_is_reported_and_stops_no_leader(
    tmp_path: Path,
) -> None:
    cold, _ = cold_in(tmp_path / "cold")
    async with running_node(tmp_path / "data", cold=cold) as node:
        await many_segments(node)
        spoilt = name_after_another(tmp_path / "cold", 7)
        task(node, "merge").run_now()
        await wait_until(lambda: spoilt.name in (task(node, "merge").error or ""))
        await append_to(node, "a", b"and on")
        await archived(node)
        assert (await read_all(node, "a")).endswith(b"19,and on")
    assert spoilt.exists()


async def test_a_segment_under_the_name_of_another_is_damage_to_a_restore(tmp_path: Path) -> None:
    cold, _ = cold_in(tmp_path / "cold")
    async with running_node(tmp_path / "data", cold=cold) as node:
        await many_segments(node)
        cluster_id = node.stores.data_dir.identity.cluster_id
    for manifest in (tmp_path / "cold").rglob("*.manifest"):
        manifest.unlink()
    spoilt = name_after_another(tmp_path / "cold", -1)
    [problem] = (await verify(cold, cluster_id, in_thread, Quiet())).problems
    assert spoilt.name in problem
    told = await look(cold, cluster_id, in_thread)
    assert spoilt.name in told.damaged[0]
    with pytest.raises(ObjectCorrupt, match=spoilt.name):
        await restored(cold, tmp_path / "new")
