"""Damage in the store is found, reported, and worked around where possible."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import msgspec
import pytest

from streamd.backup.archived_objects import ArchivedObjects
from streamd.group.stores import Stores
from streamd.objectstore.checkpoints import CheckpointOf, CheckpointWriter
from streamd.objectstore.errors import ColdError
from streamd.process.threads import in_thread
from streamd.storage.errors import RestoreUnfinished
from streamd.streams import keys
from streamd.streams.model import Header, Pack
from tests.backup.history import Copy, History, damage
from tests.support.archived import NOW_MS, cold_in, restored, state_in


async def test_damage_is_found_and_nothing_is_served(tmp_path: Path, copy: Copy) -> None:
    damage(copy.objects("log")[-1])
    cold, _ = cold_in(copy.path)
    with pytest.raises(ColdError):
        await restored(cold, tmp_path / "new", fencing=False)
    with pytest.raises(RestoreUnfinished):
        Stores.open(tmp_path / "new", 1)
    assert await copy.is_found_damaged()


async def test_an_oversized_object_is_damage_and_takes_no_memory(copy: Copy) -> None:
    os.truncate(copy.objects("log")[-1], 1 << 40)
    assert await copy.is_found_damaged()


@pytest.mark.parametrize(
    ("row", "value"),
    [
        (keys.HEADER, b"\xc1"),
        (keys.pack_key(1, 1), b"\xc1"),
        (keys.pack_key(1, 1), msgspec.msgpack.encode(Pack("../../another/place.pack", 1, 1))),
    ],
)
async def test_impossible_rows_of_a_state_are_damage(copy: Copy, row: bytes, value: bytes) -> None:
    of = CheckpointOf(copy.cluster_id, 0, 5, 1, 0, NOW_MS, 7, b"")
    writer = CheckpointWriter(of)
    header = msgspec.msgpack.encode(Header(applied_index=5))
    rows = b"".join(
        struct.pack(">II", len(key), len(value)) + key + value
        for key, value in [(keys.HEADER, header), (row, value)]
    )
    for made in (writer.piece(rows), writer.manifest()):
        (copy.path / copy.cluster_id / made.name).write_bytes(made.content)
    assert await copy.is_found_damaged()


async def test_a_checkpoint_under_the_name_of_another_is_not_mistaken_for_it(
    tmp_path: Path, copy: Copy
) -> None:
    older, newer = copy.objects("snapshots")
    as_older = f"{older.name[:33]}{newer.name[33:]}"
    newer.rename(older.with_name(as_older))
    older.unlink()
    assert await copy.is_found_damaged()
    wanted = int(older.name[:16], 16) + 1
    found = await copy.restore(tmp_path / "new", "--index", str(wanted))
    assert found.exit_code == 0, found.output
    assert f"as of entry {wanted} " in found.output


@pytest.mark.parametrize("how", ["damaged", "missing"])
@pytest.mark.parametrize("kind", ["pieces", "snapshots"])
async def test_an_older_checkpoint_replaces_a_damaged_newest_one(
    tmp_path: Path, history: History, copy: Copy, kind: str, how: str
) -> None:
    older, newest = copy.objects("snapshots")[-2:]
    spoilt = copy.objects(kind)[-1]
    if how == "damaged":
        damage(spoilt)
    else:
        spoilt.unlink()
    found = await copy.restore(tmp_path / "new", "--json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert (told["last_index"], told["base_index"]) == (
        history.archived_index,
        int(older.name.split("-")[0], 16),
    )
    assert state_in(tmp_path / "new") == history.as_of(told["last_index"])
    # A manifest that no listing has is not missed.
    listed = (kind, how) != ("snapshots", "missing")
    assert [Path(name).name for name in told["given_up"]] == [newest.name] * listed
    assert ("A CHECKPOINT IN THE COLD STORE IS DAMAGED" in found.output) == listed
    if listed:
        assert await copy.is_found_damaged()


async def test_the_log_from_its_start_replaces_damaged_checkpoints(
    tmp_path: Path, history: History, copy: Copy
) -> None:
    for piece in copy.objects("pieces"):
        damage(piece)
    at = ("--at", str(history.times()[history.archived_index - 1]))
    for number, choice in enumerate(((), at, ("--index", str(history.archived_index)))):
        new = tmp_path / str(number)
        found = await copy.restore(new, *choice)
        assert found.exit_code == 0, found.output
        assert found.stdout.count("WARNING: snapshots/") == len(copy.objects("snapshots"))
        assert state_in(new) == history.as_of(history.archived_index)


async def test_a_restore_with_everything_damaged_fails_and_resumes_after_a_repair(
    tmp_path: Path, history: History, copy: Copy
) -> None:
    copy.objects("log")[0].unlink()
    *_, newest = manifests = copy.objects("snapshots")
    whole = newest.read_bytes()
    for manifest in manifests:
        damage(manifest)
    found = await copy.restore(tmp_path / "new")
    assert found.exit_code == 1
    assert "because of damage" in found.output
    assert all(manifest.name in found.output for manifest in manifests)
    with pytest.raises(RestoreUnfinished):
        Stores.open(tmp_path / "new", 1)
    newest.write_bytes(whole)
    found = await copy.restore(tmp_path / "new")
    assert found.exit_code == 0, found.output
    assert state_in(tmp_path / "new") == history.as_of(history.archived_index)


async def test_a_damaged_checkpoint_after_a_gap_is_not_replaced_by_an_earlier_state(
    tmp_path: Path, history: History, copy: Copy
) -> None:
    newest = copy.objects("snapshots")[-1]
    index = int(newest.name.split("-")[0], 16)
    for segment in copy.objects("log"):
        first, last = (int(part, 16) for part in segment.name.split("-")[:2])
        if first <= index <= last:
            segment.unlink()
    damage(copy.objects("pieces")[-1])
    found = await copy.restore(tmp_path / "new")
    assert found.exit_code == 1
    reach = int(found.output.rsplit("--index ", 1)[1])
    found = await copy.restore(tmp_path / "older", "--index", str(reach))
    assert found.exit_code == 0, found.output
    assert state_in(tmp_path / "older") == history.as_of(reach)


async def test_bytes_damaged_in_transit_are_requested_again(
    tmp_path: Path, history: History
) -> None:
    cold, store = history.cold()
    store.damaged_reads = 1
    source = ArchivedObjects(cold, history.cluster_id, in_thread)
    (stored, *_) = (await source.catalog()).manifests
    manifest = await source.manifest(stored)
    store.damaged_reads = 1
    assert await source.rows(manifest, 0)
    assert not store.damaged_reads
