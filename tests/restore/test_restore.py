"""A cluster restored from the cold store alone, as of any entry or time that is archived."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest
import trio

from streamd.archive.objects import ArchivedObjects, list_all
from streamd.blocking import in_thread
from streamd.codec import time_of_batch
from streamd.cold.errors import ColdError, ColdUnavailable, ObjectMissing
from streamd.cold.objects import MAX_PAGE, ObjectInfo
from streamd.cold.segments import SegmentWriter, entries_of, read_segment_head
from streamd.cold.snapshots import SnapshotOf, SnapshotWriter
from streamd.config import ColdConfig
from streamd.group.stores import Stores
from streamd.raft.messages import Entry, EntryKind
from streamd.restore import restore as restore_module
from streamd.restore.backup import look, verify
from streamd.restore.base import Choice, RestoreRefused
from streamd.restore.replay import Replay
from streamd.storage.errors import RestoreUnfinished
from streamd.storage.incoming import SnapshotSink
from streamd.streams import keys
from streamd.streams.commands import Delete, FlushCold, Result
from streamd.streams.model import Header, Pack
from streamd.tier.store import Cold
from tests.archive.test_archive import a_round, archived
from tests.support.archived import (
    NOW_MS,
    Quiet,
    Said,
    cold_in,
    log_of,
    restored,
    state_after,
    state_in,
)
from tests.support.flaky_store import FlakyStore
from tests.support.nodes import Clock, append_to, create, key, read_all, running_node, wait_until

MINUTE_MS = 60_000
# Nothing is flushed, so that a state's rows say all.
UNFLUSHED = ColdConfig(
    backend="fs", flush_after_ms=10**9, snapshot_interval_minutes=10, archive_retention_hours=1000
)


class History(NamedTuple):
    """A cluster that is gone: its log as it was, and what is archived of it."""

    place: Path
    cluster_id: str
    entries: list[Entry]
    archived_index: int

    def cold(self) -> tuple[Cold, FlakyStore]:
        return cold_in(self.place)

    def as_of(self, index: int) -> Said:
        return state_after(self.entries[:index])

    def times(self) -> list[int]:
        """Log time as of each entry, from the first on."""
        found, now_ms = [], 0
        for entry in self.entries:
            if entry.kind == EntryKind.COMMANDS:
                now_ms = max(now_ms, time_of_batch(entry.payload))
            found.append(now_ms)
        return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("history")


@pytest.fixture
async def history(recorded: Path) -> History:
    """Half an hour of a cluster's life, with two snapshots in between; made once."""
    place, data = recorded / "cold", recorded / "data"
    if not (recorded / "done").exists():
        cold, _ = cold_in(place)
        clock = Clock(NOW_MS)
        async with running_node(data, cold=cold, clock=clock, cold_config=UNFLUSHED) as node:
            await node.group.propose(create("a"))
            await node.group.propose(create("short-lived", ttl_ms=5 * MINUTE_MS))
            for minute in range(30):
                clock.now_ms = NOW_MS + minute * MINUTE_MS
                await append_to(node, "a", b"minute %d;" % minute)
                await node.group.propose(create(f"s{minute % 7}"))
                await append_to(node, f"s{minute % 7}", bytes([minute]) * 5000)
                if minute % 5 == 4:
                    await node.group.propose(Delete(key(f"s{(minute * 3) % 7}")))
                    await archived(node)
                if minute in (8, 20):
                    await archived(node)
                    await a_round(node, "snapshot")
            await archived(node)
            (recorded / "done").write_text(
                f"{node.stores.data_dir.identity.cluster_id} "
                f"{node.group.state.header.archived.index}"
            )
    cluster_id, index = (recorded / "done").read_text().split()
    return History(place, cluster_id, log_of(data), int(index))


async def test_all_that_is_archived_is_there(tmp_path: Path, history: History) -> None:
    cold, _ = history.cold()
    done = await restored(cold, tmp_path / "new", fencing=False)
    assert done.last_index == history.archived_index
    assert done.former_cluster_id == history.cluster_id != done.cluster_id
    assert state_in(tmp_path / "new") == history.as_of(done.last_index)


async def test_any_entry_can_be_gone_back_to(tmp_path: Path, history: History) -> None:
    cold, _ = history.cold()
    for index in [1, 2, *range(3, history.archived_index, 9), history.archived_index]:
        done = await restored(cold, tmp_path / f"{index}", Choice(index=index), fencing=False)
        assert done.last_index == index
        assert state_in(tmp_path / f"{index}") == history.as_of(index)


async def test_any_time_can_be_gone_back_to(tmp_path: Path, history: History) -> None:
    cold, _ = history.cold()
    times = history.times()[: history.archived_index]
    for minute in (0, 4, 9, 20, 21, 28):
        for at_ms in (NOW_MS + minute * MINUTE_MS - 1, NOW_MS + minute * MINUTE_MS):
            index = sum(time_ms <= at_ms for time_ms in times)
            new = tmp_path / f"{at_ms}"
            if not index:
                continue
            done = await restored(cold, new, Choice(at_ms=at_ms), fencing=False)
            assert (done.last_index, done.time_ms <= at_ms) == (index, True)
            assert state_in(new) == history.as_of(index)


async def test_a_restore_begins_at_the_newest_snapshot_that_serves(
    tmp_path: Path, history: History
) -> None:
    cold, _ = history.cold()
    source = ArchivedObjects(cold, history.cluster_id, in_thread)
    first, *_, last = [one.log_index for one in (await source.catalog()).manifests]
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
        text = await read_all(node, "a")
        assert text == b"".join(b"minute %d;" % minute for minute in range(30))
        await append_to(node, "a", b"and on")
        await archived(node)
        assert node.archive is not None
        assert node.archive.report()["gaps"] == []
        names = [one.name for one in await list_all(cold, done.cluster_id)]
        assert any(".manifest" in name for name in names)
    again = await restored(
        cold, tmp_path / "again", Choice(cluster_id=done.cluster_id), fencing=False
    )
    async with running_node(tmp_path / "again") as node:
        assert await read_all(node, "a") == text + b"and on"
    shutil.rmtree(history.place / done.cluster_id)
    assert again.former_cluster_id == done.cluster_id


class Ran(NamedTuple):
    exit_code: int
    stdout: str
    output: str


async def streamd(*arguments: str) -> Ran:
    """The command, as an operator runs it."""
    found = await trio.run_process(
        [sys.executable, "-m", "streamd", *arguments],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    told = found.stdout.decode()
    return Ran(found.returncode, told, told + found.stderr.decode())


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("index", [10**6, -1])
async def test_an_entry_that_is_not_archived_is_refused(
    tmp_path: Path, history: History, index: int
) -> None:
    cold, _ = history.cold()
    with pytest.raises(RestoreRefused, match=f"entries 0 to {history.archived_index}"):
        await restored(cold, tmp_path / "new", Choice(index=index), fencing=False)


async def test_a_directory_with_anything_in_it_is_refused(tmp_path: Path, history: History) -> None:
    cold, _ = history.cold()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RestoreRefused, match="not empty"):
        await restored(cold, tmp_path, fencing=False)
    assert os.listdir(tmp_path) == ["file"]


async def test_an_unknown_cluster_is_refused(tmp_path: Path, history: History) -> None:
    cold, _ = history.cold()
    with pytest.raises(RestoreRefused, match="has nothing of cluster"):
        await restored(cold, tmp_path / "new", Choice(cluster_id="b" * 8), fencing=False)


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


class Copy(NamedTuple):
    """The history's store, for a test to spoil."""

    path: Path
    cluster_id: str

    def objects(self, kind: str) -> list[Path]:
        return sorted((self.path / self.cluster_id / kind / "00000000").iterdir())

    async def is_found_damaged(self) -> bool:
        found = await streamd("backup", "verify", "--from", f"fs:{self.path}")
        return found.exit_code == 1 and "DAMAGE" in found.output

    async def restore(self, new: Path, *choice: str) -> Ran:
        place = ("--from", f"fs:{self.path}", "--data-dir", str(new), "--no-fence")
        return await streamd("restore", *place, *choice)


@pytest.fixture
def copy(tmp_path: Path, history: History) -> Copy:
    shutil.copytree(history.place, tmp_path / "cold")
    return Copy(tmp_path / "cold", history.cluster_id)


async def test_damage_is_found_and_nothing_is_served(tmp_path: Path, copy: Copy) -> None:
    damage(copy.objects("log")[-1])
    cold, _ = cold_in(copy.path)
    with pytest.raises(ColdError):
        await restored(cold, tmp_path / "new", fencing=False)
    with pytest.raises(RestoreUnfinished):
        Stores.open(tmp_path / "new", 1)
    assert await copy.is_found_damaged()


async def test_an_object_larger_than_any_may_be_is_damage_and_takes_no_memory(copy: Copy) -> None:
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
async def test_rows_that_can_be_no_state_s_are_damage(copy: Copy, row: bytes, value: bytes) -> None:
    of = SnapshotOf(copy.cluster_id, 0, 5, 1, 0, NOW_MS, 7, b"")
    writer = SnapshotWriter(of)
    header = msgspec.msgpack.encode(Header(applied_index=5))
    rows = b"".join(
        struct.pack(">II", len(key), len(value)) + key + value
        for key, value in [(keys.HEADER, header), (row, value)]
    )
    for made in (writer.piece(rows), writer.manifest()):
        (copy.path / copy.cluster_id / made.name).write_bytes(made.content)
    assert await copy.is_found_damaged()


async def test_a_snapshot_under_the_name_of_another_is_not_taken_for_it(
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
async def test_damage_of_the_newest_snapshot_makes_an_older_one_serve(
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
    # Nobody misses a manifest that no list has.
    listed = (kind, how) != ("snapshots", "missing")
    assert [Path(name).name for name in told["given_up"]] == [newest.name] * listed
    assert ("A SNAPSHOT IN THE COLD STORE IS DAMAGED" in found.output) == listed
    if listed:
        assert await copy.is_found_damaged()


async def test_damage_of_all_snapshots_leaves_the_log_from_its_beginning(
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


async def test_with_all_damaged_it_is_said_and_goes_on_once_something_is_repaired(
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


async def test_a_damaged_snapshot_behind_a_gap_is_not_replaced_by_an_earlier_state(
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


async def test_bytes_damaged_on_their_way_are_asked_for_again(
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


# -- interruptions ------------------------------------------------------------------------------


class Cut(Exception):
    """The process ends here."""


def _cutting(after: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A wrapper of calls: all of them go on for `after` calls, then each raises."""
    left = [after]

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        def maybe(*args: Any, **kwargs: Any) -> Any:
            if left[0] <= 0:
                raise Cut
            left[0] -= 1
            return call(*args, **kwargs)

        return maybe

    return wrap


async def test_a_restore_that_is_cut_off_anywhere_goes_on(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold, _ = history.cold()
    new = tmp_path / "new"
    steps = 0
    for after in range(200):
        wrap = _cutting(after % 5)
        with monkeypatch.context() as patched:
            for owner, name in (
                (SnapshotSink, "take"),
                (SnapshotSink, "finish"),
                (Replay, "apply"),
                (Replay, "_flush"),
            ):
                patched.setattr(owner, name, wrap(getattr(owner, name)))
            for name in ("write_checked", "recover_install", "become_another", "remove_durably"):
                patched.setattr(restore_module, name, wrap(getattr(restore_module, name)))
            try:
                done = await restored(cold, new, fencing=False)
                break
            except* Cut:
                steps += 1
        if (new / "restore").exists():
            with pytest.raises(RestoreUnfinished):
                Stores.open(new, 1)
    assert steps > 5
    assert done.last_index == history.archived_index
    assert state_in(new) == history.as_of(done.last_index)
    async with running_node(new) as node:
        assert (await read_all(node, "a")).startswith(b"minute 0;")


async def test_a_store_that_goes_away_interrupts_and_nothing_else(
    tmp_path: Path, history: History
) -> None:
    cold, store = history.cold()
    new = tmp_path / "new"
    patient, get = 0, store.get
    left = [0]

    def impatient(name: str, offset: int, length: int) -> bytes:
        left[0] -= 1
        if left[0] < 0:
            raise ColdUnavailable("away")
        return get(name, offset, length)

    store.get = impatient  # type: ignore[method-assign]
    while True:
        left[0] = patient
        try:
            done = await restored(cold, new, fencing=False)
            break
        except* ColdUnavailable:
            patient += 6
    assert patient
    assert state_in(new) == history.as_of(done.last_index)


async def test_another_restore_does_not_go_on_in_the_directory_of_one(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold, _ = history.cold()

    def cut(*_: object) -> None:
        raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(Replay, "apply", cut)
        with pytest.raises(Cut):
            await restored(cold, tmp_path / "new", Choice(index=40), fencing=False)
    with pytest.raises(RestoreRefused, match="unfinished restore"):
        await restored(cold, tmp_path / "new", Choice(index=41), fencing=False)
    done = await restored(cold, tmp_path / "new", Choice(index=40), fencing=False)
    assert done.last_index == 40


async def test_a_finished_restore_may_be_asked_for_again(tmp_path: Path, history: History) -> None:
    cold, _ = history.cold()
    done = await restored(cold, tmp_path / "new", Choice(index=40), fencing=False)
    assert await restored(cold, tmp_path / "new", Choice(index=40), fencing=False) == done
    with pytest.raises(RestoreRefused, match="finished"):
        await restored(cold, tmp_path / "new", Choice(index=41), fencing=False)


# -- the commands -------------------------------------------------------------------------------


async def test_status_and_verify_tell_what_can_be_restored(history: History) -> None:
    place = ("--from", f"fs:{history.place}", "--json")
    (told,) = json.loads((await streamd("backup", "status", *place)).stdout)
    assert told["cluster_id"] == history.cluster_id
    (whole,) = told["ranges"]
    assert (whole["first_index"], whole["last_index"]) == (0, history.archived_index)
    assert (whole["last_time_ms"] - NOW_MS) // MINUTE_MS == 29
    assert len(told["restore_points"]) >= 2
    assert told["gaps"] == told["fenced_by"] == []
    (told,) = json.loads((await streamd("backup", "verify", *place)).stdout)
    assert told["problems"] == []
    assert told["entries"] == history.archived_index


async def test_the_restore_command_speaks_json(tmp_path: Path, history: History) -> None:
    place = ("--from", f"fs:{history.place}", "--no-fence", "--json")
    at = "2023-11-14T22:36:00+00:00"
    new = str(tmp_path / "new")
    found = await streamd("restore", *place, "--at", at, "--data-dir", new)
    told = json.loads(found.stdout)
    assert told["base_index"] > 0
    assert 0 <= 1_700_001_360_000 - told["time_ms"] < MINUTE_MS
    assert state_in(tmp_path / "new") == history.as_of(told["last_index"])


async def test_a_fence_is_left_and_told_of(tmp_path: Path, history: History) -> None:
    copy = tmp_path / "cold"
    shutil.copytree(history.place, copy)
    new = str(tmp_path / "new")
    found = await streamd("restore", "--from", f"fs:{copy}", "--data-dir", new)
    assert found.exit_code == 0, found.output
    assert "The old cluster is fenced" in found.output
    told = await streamd("backup", "status", "--from", f"fs:{copy}")
    assert "FENCED" in told.output


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--from", "ftp://x"), 2, "neither s3://bucket/prefix nor fs:path"),
        (("--at", "5", "--index", "7"), 2, "exclude each other"),
        (("--at", "yesterday"), 2, "is no time"),
        (("--at", "9" * 20, "--from", "{history}"), 2, "is no time"),
        ((), 2, "name the store"),
        (("--from", "fs:{empty}"), 1, "has nothing of any cluster"),
        (("--from", "{history}", "--index", "99999"), 1, "cannot be restored to then"),
    ],
)
async def test_what_cannot_be_done_is_said(
    tmp_path: Path, history: History, arguments: tuple[str, ...], status: int, message: str
) -> None:
    given = [
        one.format(empty=tmp_path / "empty", history=f"fs:{history.place}") for one in arguments
    ]
    found = await streamd("restore", "--data-dir", str(tmp_path / "new"), "--no-fence", *given)
    assert found.exit_code == status, found.output
    assert message in found.output


# -- packs --------------------------------------------------------------------------------------


async def test_what_lies_in_packs_is_read_from_the_old_cluster_s_folder(tmp_path: Path) -> None:
    cold, _ = cold_in(tmp_path / "cold")
    config = ColdConfig(backend="fs", flush_after_ms=1, pack_bytes=64 * 1024)
    content = [bytes([number]) * 20_000 for number in range(40)]
    async with running_node(tmp_path / "data", cold=cold, cold_config=config) as node:
        await node.group.propose(create("a"))
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


async def test_a_pack_that_only_the_log_knows_is_verified(tmp_path: Path) -> None:
    cold, _ = cold_in(tmp_path / "cold")
    config = ColdConfig(backend="fs", flush_after_ms=1, pack_bytes=64 * 1024)
    async with running_node(tmp_path / "data", cold=cold, cold_config=config) as node:
        header = node.group.state.header
        packs: list[set[Path]] = []
        await node.group.propose(create("a"))
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
    later = sorted(packs[1] - packs[0])[0]
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


async def test_what_a_cluster_removes_while_it_is_verified_is_not_missed(
    tmp_path: Path, history: History
) -> None:
    shutil.copytree(history.place, tmp_path / "cold")

    class Ageing(FlakyStore):
        def get(self, name: str, offset: int, length: int) -> bytes:
            """Before anything is read, the log up to the first snapshot is removed for age."""
            through = min(path.name[:16] for path in (tmp_path / "cold").rglob("*.manifest"))
            for segment in list((tmp_path / "cold").rglob("*.segment")):
                _, last = segment.name.split("-")[:2]
                if last <= through:
                    segment.unlink()
                    removed.append(segment.name)
            return super().get(name, offset, length)

    removed: list[str] = []
    store = Ageing(tmp_path / "cold")
    cold = Cold(store, run_blocking=in_thread, random=Random(1), max_requests=4)
    found = await verify(cold, history.cluster_id, in_thread, Quiet())
    assert removed
    assert found.problems == []
    assert 0 < found.entries < history.archived_index


def merge_segments(folder: Path) -> None:
    """Make all segments of a log one, as a cluster that goes on does it."""
    parts = sorted(folder.glob("*.segment"))
    writer = None
    for part in parts:
        content = part.read_bytes()
        writer = writer or SegmentWriter(0, read_segment_head(content).previous)
        for entry in entries_of(content):
            if entry.index > writer.last.index:
                writer.add(entry)
    assert writer is not None
    merged = writer.finish()
    (folder / merged.name.rpartition("/")[2]).write_bytes(merged.content)
    for part in parts:
        part.unlink()


class Merging(FlakyStore):
    """A store in which the segments are merged by a cluster that goes on, when told to."""

    def __init__(self, history: History, root: Path) -> None:
        shutil.copytree(history.place, root)
        super().__init__(root)
        self.folder = root / history.cluster_id / "log" / "00000000"
        self.before_page = self.before_get = -1

    def page(self, prefix: str, *, after: str = "", limit: int = MAX_PAGE) -> list[ObjectInfo]:
        if after.endswith(".segment"):
            self.before_page -= 1
            if self.before_page == 0:
                merge_segments(self.folder)
        return super().page(prefix, after=after, limit=min(limit, 3))

    def get(self, name: str, offset: int, length: int) -> bytes:
        if name.endswith(".segment"):
            self.before_get -= 1
            if self.before_get == 0:
                merge_segments(self.folder)
        return super().get(name, offset, length)


@pytest.fixture
def merging(tmp_path: Path, history: History) -> tuple[Cold, Merging]:
    store = Merging(history, tmp_path / "cold")
    return Cold(store, run_blocking=in_thread, random=Random(1), max_requests=1), store


async def test_segments_that_are_merged_while_they_are_listed_are_not_missed(
    history: History, merging: tuple[Cold, Merging]
) -> None:
    cold, store = merging
    store.before_page = 2
    standing = await look(cold, history.cluster_id, in_thread)
    assert [one.last_index for one in standing.ranges] == [history.archived_index]


async def test_a_restore_ends_no_earlier_for_segments_that_are_merged_while_they_are_listed(
    tmp_path: Path, history: History, merging: tuple[Cold, Merging]
) -> None:
    cold, store = merging
    store.before_page = 2
    done = await restored(cold, tmp_path / "new", fencing=False)
    assert done.last_index == history.archived_index
    assert state_in(tmp_path / "new") == history.as_of(history.archived_index)


async def test_segments_that_are_merged_while_they_are_read_are_not_missed(
    history: History, merging: tuple[Cold, Merging]
) -> None:
    cold, store = merging
    store.before_get = 1
    standing = await look(cold, history.cluster_id, in_thread)
    assert [one.last_index for one in standing.ranges] == [history.archived_index]


@pytest.mark.parametrize("before_get", [1, 2, 3])
async def test_a_restore_beside_a_cluster_that_merges_segments_goes_on_with_the_merged_ones(
    tmp_path: Path, history: History, merging: tuple[Cold, Merging], before_get: int
) -> None:
    cold, store = merging
    for file in store.folder.parent.parent.glob("snapshots/*/*"):
        file.unlink()
    store.before_get = before_get
    done = await restored(cold, tmp_path / "new", fencing=False)
    assert store.before_get <= 0
    assert done.last_index == history.archived_index
    assert state_in(tmp_path / "new") == history.as_of(history.archived_index)


async def test_a_pack_that_the_log_never_took_is_not_missed(tmp_path: Path) -> None:
    cold, _ = cold_in(tmp_path / "cold")
    async with running_node(tmp_path / "data", cold=cold, cold_config=UNFLUSHED) as node:
        await append_to(node, "a", b"x")
        term = node.group.core.term
        late = FlushCold(term - 1, 7, "gone.pack", 1, [])
        assert (await node.group.propose(late)).result is Result.STALE
        await archived(node)
    found = await streamd("backup", "verify", "--from", f"fs:{tmp_path / 'cold'}")
    assert found.exit_code == 0, found.output


async def test_a_missing_pack_is_found_at_the_end(tmp_path: Path) -> None:
    cold, _ = cold_in(tmp_path / "cold")
    config = ColdConfig(backend="fs", flush_after_ms=1, pack_bytes=64 * 1024)
    async with running_node(tmp_path / "data", cold=cold, cold_config=config) as node:
        await node.group.propose(create("a"))
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
