"""A cluster restored from the cold store alone, as of any entry or time that is archived."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from streamd.backup.archived_objects import ArchivedObjects, list_all
from streamd.backup.base import Choice, RestoreRefused
from streamd.backup.restore import Plan
from streamd.objectstore.segments import named_fields
from streamd.process.threads import in_thread
from streamd.proofs.published import checked
from streamd.streams.commands import Result
from streamd.streams.limits import Limits
from streamd.streams.model import LogPosition
from tests.backup.history import MINUTE_MS, UNFLUSHED, History
from tests.backup.test_archive import archived
from tests.support.archived import NOW_MS, restored, state_in
from tests.support.nodes import append_to, read_all, running_node


async def test_everything_archived_is_restored(tmp_path: Path, history: History) -> None:
    cold, _ = history.cold()
    done = await restored(cold, tmp_path / "new", fencing=False)
    assert done.last_index == history.archived_index
    assert done.former_cluster_id == history.cluster_id != done.cluster_id
    assert state_in(tmp_path / "new") == history.as_of(done.last_index)


def test_an_unfinished_restore_of_an_earlier_version_can_be_resumed() -> None:
    plan = (
        b"\x88\xa5place\xb3the directory /cold"
        b"\xa6choice\x83\xaacluster_id\xc0\xa5index\xc0\xa5at_ms\xc0"
        b"\xb1former_cluster_id\xa3old\xaabase_index\x07\xa8manifest\xa1m\xabuntil_index\x09"
        b"\xa7reached\x84\xa5index\x09\xa4term\x02\xa5chainM\xa7time_ms\xcd\x03\xe8\xa8given_up\x80"
    )
    reached = named_fields(LogPosition(9, 2, 77, 1000))
    expected = Plan("the directory /cold", Choice(), "old", 7, "m", 9, reached, {})
    assert msgspec.msgpack.decode(plan, type=Plan) == expected
    assert msgspec.msgpack.encode(expected) == plan


async def test_a_restore_can_end_at_any_entry(tmp_path: Path, history: History) -> None:
    cold, _ = history.cold()
    for index in [1, 2, *range(3, history.archived_index, 9), history.archived_index]:
        done = await restored(cold, tmp_path / f"{index}", Choice(index=index), fencing=False)
        assert done.last_index == index
        assert state_in(tmp_path / f"{index}") == history.as_of(index)


async def test_a_restore_can_end_at_any_time(tmp_path: Path, history: History) -> None:
    cold, _ = history.cold()
    times = history.times()[: history.archived_index]
    for minute in (0, 4, 9, 20, 21, 28):
        for at_ms in (NOW_MS + minute * MINUTE_MS - 1, NOW_MS + minute * MINUTE_MS):
            index = sum(time_ms <= at_ms for time_ms in times)
            new = tmp_path / f"{at_ms}"
            if at_ms < NOW_MS:
                with pytest.raises(RestoreRefused, match=f"entries 1 to {history.archived_index}"):
                    await restored(cold, new, Choice(at_ms=at_ms), fencing=False)
                continue
            done = await restored(cold, new, Choice(at_ms=at_ms), fencing=False)
            assert (done.last_index, done.time_ms <= at_ms) == (index, True)
            assert state_in(new) == history.as_of(index)


async def test_a_restore_begins_at_the_newest_usable_checkpoint(
    tmp_path: Path, history: History
) -> None:
    cold, _ = history.cold()
    source = ArchivedObjects(cold, history.cluster_id, in_thread)
    first, *_, last = [one.parsed.log_index for one in (await source.catalog()).manifests]
    bases = []
    for index in (first - 1, first, last - 1, last, last + 1):
        done = await restored(cold, tmp_path / f"{index}", Choice(index=index), fencing=False)
        bases.append(done.base_index)
    assert bases[0] == 0
    assert bases[1:3] != [first, last]
    assert bases[3:] == [last, last]


async def test_the_restored_node_serves_and_is_archived_itself(
    tmp_path: Path, history: History
) -> None:
    cold, _ = history.cold()
    done = await restored(cold, tmp_path / "new", fencing=False)
    async with running_node(tmp_path / "new", cold=cold, cold_config=UNFLUSHED) as node:
        header = node.group.state.header
        assert node.group.state.limits.rows("bucket") == {"bucket": Limits(max_bytes=60_000)}
        bucket = await node.reads.bucket(b"bucket")
        assert bucket is not None
        assert bucket.counted == bucket.streams
        assert (await append_to(node, "a", bytes(60_000 - bucket.size + 1))).result is (
            Result.BUCKET_FULL
        )
        text = await read_all(node, "a")
        assert text == b"".join(b"minute %d;" % minute for minute in range(30))
        await append_to(node, "a", b"and on")
        await archived(node)
        assert node.archive is not None
        head = node.archive.heads.newest()
        assert head is not None
        assert checked(head).head.cluster_id == done.cluster_id, "a tree and a key of its own"
        assert header.tree.first_index > done.last_index
        assert [key.signed_by for key in header.log_keys] == [b""]
        assert node.archive.report()["gaps"] == []
        names = [one.name for one in await list_all(cold, done.cluster_id)]
        assert any(".manifest" in name for name in names)
    again = await restored(
        cold, tmp_path / "again", Choice(cluster_id=done.cluster_id), fencing=False
    )
    async with running_node(tmp_path / "again", cold=cold, cold_config=UNFLUSHED) as node:
        assert await read_all(node, "a") == text + b"and on"
    shutil.rmtree(history.place / done.cluster_id)
    assert again.former_cluster_id == done.cluster_id


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("index", [10**6, -1])
async def test_an_entry_that_is_not_archived_is_refused(
    tmp_path: Path, history: History, index: int
) -> None:
    cold, _ = history.cold()
    with pytest.raises(RestoreRefused, match=f"entries 1 to {history.archived_index}"):
        await restored(cold, tmp_path / "new", Choice(index=index), fencing=False)


async def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path, history: History) -> None:
    cold, _ = history.cold()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RestoreRefused, match="not empty"):
        await restored(cold, tmp_path, fencing=False)
    assert os.listdir(tmp_path) == ["file"]


async def test_an_unknown_cluster_is_refused(tmp_path: Path, history: History) -> None:
    cold, _ = history.cold()
    with pytest.raises(RestoreRefused, match="does not hold cluster"):
        await restored(cold, tmp_path / "new", Choice(cluster_id="b" * 8), fencing=False)
