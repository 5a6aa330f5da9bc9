"""Operators' mistakes change nothing, and the message shows how to correct them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.backup.history import MINUTE_MS, Copy, History, damage, files_in, streamd
from tests.backup.test_archive import archived
from tests.backup.test_fence import a_packed_life
from tests.support.archived import NOW_MS, cold_in
from tests.support.nodes import append_to, running_node

SECONDS = NOW_MS // 1000 + 600
UNKNOWN = "7d0c3a52-0000-4000-8000-2b7f1f0c6a11"


@pytest.mark.parametrize(
    ("command", "arguments", "status", "message"),
    [
        # The wrong time.
        ("restore", ("--at", str(SECONDS)), 2, f"ask for --at {SECONDS}000"),
        ("restore", ("--at", str(NOW_MS - MINUTE_MS)), 1, "2023-11-14T22:13:20.000Z to"),
        ("restore", ("--at", "1998-01-01"), 1, "2023-11-14T22:13:20.000Z to 2023-11-14T22:42:20"),
        ("restore", ("--at", "2203-11-14T22:20:00Z"), 1, "has not come yet"),
        ("restore", ("--at", str(NOW_MS * 1000)), 1, "has not come yet"),
        ("restore", ("--at", "0"), 1, "can be restored to entries 1 to"),
        ("restore", ("--index", "0"), 1, "can be restored to entries 1 to"),
        ("restore", ("--index", "-3"), 1, "can be restored to entries 1 to"),
        # The wrong place.
        ("restore", ("--from", "fs:{up}"), 1, "is below {cold}/: is the prefix right?"),
        ("restore", ("--from", "fs:{empty}"), 1, "is the bucket right"),
        ("status", ("--from", "fs:{up}"), 1, "is below {cold}/: is the prefix right?"),
        ("status", ("--from", "fs:{empty}"), 1, "is the bucket right"),
        ("status", ("--from", "fs:{other}"), 1, "other objects such as 'notes.txt'"),
        ("verify", ("--from", "fs:{up}"), 1, "is below {cold}/: is the prefix right?"),
        ("verify", ("--from", "fs:{empty}"), 1, "is the bucket right"),
        # The wrong cluster.
        ("restore", ("--cluster", UNKNOWN), 1, UNKNOWN),
        ("status", ("--cluster", UNKNOWN), 1, "it holds {cluster}"),
        ("verify", ("--cluster", UNKNOWN), 1, "it holds {cluster}"),
        ("unfence", ("--cluster", UNKNOWN, "--restored", UNKNOWN), 1, "it holds {cluster}"),
        ("unfence", ("--cluster", "{cluster}", "--restored", UNKNOWN), 1, "is not fenced off"),
    ],
)
async def test_a_mistake_is_reported_and_changes_nothing(
    tmp_path: Path,
    copy: Copy,
    command: str,
    arguments: tuple[str, ...],
    status: int,
    message: str,
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    (tmp_path / "up").mkdir()
    copy.path.rename(tmp_path / "up" / "cold")
    known = {
        "up": str(tmp_path / "up"),
        "empty": str(tmp_path / "empty"),
        "other": str(tmp_path / "other"),
        "cold": "cold",
        "cluster": copy.cluster_id,
    }
    before = files_in(tmp_path)
    given = [one.format(**known) for one in arguments]
    if "--from" not in given:
        given += ["--from", f"fs:{tmp_path}/up/cold"]
    if command == "restore":
        given += ["--data-dir", str(tmp_path / "new"), "--no-fence"]
    else:
        command = f"backup {command}"
    found = await streamd(*command.split(), *given)
    assert found.exit_code == status, found.output
    assert message.format(**known) in " ".join(found.output.split()), found.output
    assert "Traceback" not in found.output
    shutil.rmtree(tmp_path / "new", ignore_errors=True)
    assert files_in(tmp_path) == before


async def test_a_restore_that_finds_no_stream_says_so(tmp_path: Path) -> None:
    cold, _ = cold_in(tmp_path / "cold")
    async with running_node(tmp_path / "data", cold=cold) as node:
        await archived(node)
    new = ("--data-dir", str(tmp_path / "new"), "--no-fence")
    found = await streamd("restore", "--from", f"fs:{tmp_path / 'cold'}", *new)
    assert found.exit_code == 0, found.output
    assert "it is EMPTY" in found.output


async def test_a_state_that_refers_to_a_cold_store_does_not_start_without_one(
    tmp_path: Path,
) -> None:
    cold, _ = cold_in(tmp_path / "cold")
    await a_packed_life(tmp_path / "data", cold)
    found = await streamd("serve", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    assert found.exit_code == 2, found.output
    assert "[cold]" in found.output


async def test_a_damaged_checkpoint_of_one_cluster_does_not_hide_the_others(
    tmp_path: Path, history: History, copy: Copy
) -> None:
    cold, _ = cold_in(copy.path)
    async with running_node(tmp_path / "other", cold=cold) as node:
        await append_to(node, "a", b"x")
        await archived(node)
        other = node.stores.data_dir.identity.cluster_id
    newest = copy.objects("snapshots")[-1]
    damage(newest)
    found = await streamd("backup", "status", "--from", f"fs:{copy.path}")
    assert found.exit_code == 1
    assert f"DAMAGE: snapshots/00000000/{newest.name}" in found.output
    assert f"cluster {other}" in found.output
    assert f"to {history.archived_index}, " in found.output


async def test_another_clusters_log_in_the_folder_is_not_mistaken_for_its_own(
    tmp_path: Path, copy: Copy
) -> None:
    cold, _ = cold_in(copy.path)
    async with running_node(tmp_path / "other", cold=cold) as node:
        await append_to(node, "a", b"x")
        await archived(node)
        other = node.stores.data_dir.identity.cluster_id
    for kind in ("log", "pieces", "snapshots", "ends"):
        shutil.rmtree(copy.path / copy.cluster_id / kind)
    shutil.copytree(copy.path / other / "log", copy.path / copy.cluster_id / "log")
    place = ("--from", f"fs:{copy.path}", "--cluster", copy.cluster_id)
    verified = await streamd("backup", "verify", *place)
    assert verified.exit_code == 1
    assert f"of another cluster, {other}" in verified.output
    done = await streamd("restore", *place, "--no-fence", "--data-dir", str(tmp_path / "new"))
    assert done.exit_code == 1
    assert f"of another cluster, {other}" in done.output
