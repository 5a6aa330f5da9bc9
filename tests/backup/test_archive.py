"""The archive of the log: every committed entry, within a second, and none twice."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from streamd.backup.archive import Reached
from streamd.backup.archived_objects import ArchivedObjects, list_all
from streamd.config.settings import ColdConfig
from streamd.group.proposals import Unavailable
from streamd.node import cold_status
from streamd.node.node import Node
from streamd.objectstore.errors import ColdUnavailable
from streamd.process.metrics import Metrics
from streamd.process.threads import in_thread
from streamd.raft.messages import Entry
from streamd.streams.model import LogPosition, LogTree
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.fence import FenceNote, put_fence
from streamd.tiering.tier import PeriodicTask
from tests.support.archived import NOW_MS, cold_in, log_of
from tests.support.flaky_store import Away, FlakyStore
from tests.support.nodes import Clock, append_to, create, read_all, running_node, wait_until
from tests.support.segments import entries_of

HOUR_MS = 3_600_000


@pytest.fixture
def place(tmp_path: Path) -> tuple[AsyncObjectStore, FlakyStore]:
    return cold_in(tmp_path / "cold")


def task(node: Node, name: str) -> PeriodicTask[[object]]:
    assert node.cold_tier is not None
    return next(one for one in node.cold_tier.leader_tasks if one.name == name)


async def a_round(node: Node, name: str = "archive") -> None:
    """Wait for a complete round of a task that begins after now."""
    with trio.fail_after(20):
        for _ in range(2):
            found = task(node, name)
            before = found.done_at
            while found.done_at == before:
                found.run_now()
                await trio.sleep(0.01)


async def archived(node: Node) -> None:
    """Wait until every entry applied now that needs archiving is archived."""
    await a_round(node)


async def objects(node: Node, cold: AsyncObjectStore) -> ArchivedObjects:
    return ArchivedObjects(cold, node.stores.data_dir.identity.cluster_id, in_thread)


async def stored_entries(node: Node, cold: AsyncObjectStore) -> list[Entry]:
    source = await objects(node, cold)
    path = (await source.catalog()).path(0)
    found: list[Entry] = []
    async for content in source.segments(path):
        for entry in entries_of(content):
            if entry.index == len(found) + 1:
                found.append(entry)
    return found


async def test_the_archive_holds_the_log(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    async with running_node(tmp_path / "data", cold=cold) as node:
        await node.group.writes.propose(create("a"))
        for number in range(20):
            await append_to(node, "a", b"%d" % number)
            if number % 7 == 0:
                await archived(node)
        await archived(node)
        stored = await stored_entries(node, cold)
    log = log_of(tmp_path / "data")
    assert stored == log[: len(stored)]
    assert len(log) - len(stored) <= 1, "all but the entry that says so"


async def test_an_idle_node_archives_nothing(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _store = place
    async with running_node(tmp_path / "data", cold=cold) as node:
        await append_to(node, "a", b"x")
        await archived(node)
        await a_round(node, "snapshot")
        await a_round(node)
        index, names = node.group.view.applied_index, await list_all(cold, "")
        for _ in range(3):
            await a_round(node)
            await a_round(node, "snapshot")
        assert node.group.view.applied_index == index
        assert await list_all(cold, "") == names


async def test_an_entry_too_large_for_an_object_is_reported_and_stops_only_the_archive(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written before the cold store existed: with one, no entry so large is accepted."""
    cold, _ = place
    monkeypatch.setattr("streamd.objectstore.objects.MAX_OBJECT_BYTES", 10_000)
    async with running_node(tmp_path / "data", cold=cold) as node:
        await node.group.writes.propose(create("a"))
        await append_to(node, "a", Random(1).randbytes(20_000))
        why = "exceeds the limit for one object"
        await wait_until(lambda: why in (task(node, "archive").error or ""))
        await append_to(node, "a", b"more")
        assert (await read_all(node, "a"))[20_000:] == b"more"


async def test_a_store_that_is_away_delays_the_archive_and_nothing_else(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, store = place
    async with running_node(tmp_path / "data", cold=cold) as node:
        await a_round(node)
        store.failures = [ColdUnavailable("away")] * 1_000_000
        await append_to(node, "a", b"x")
        await wait_until(lambda: task(node, "archive").error is not None)
        before = node.group.state.header.archived
        await append_to(node, "a", b"y")
        assert node.group.state.header.archived == before
        store.failures = []
        await archived(node)
        await a_round(node)
        assert task(node, "archive").error is None


async def test_a_put_whose_answer_is_lost_leaves_an_extra_segment_and_no_gap(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    cold, store = place
    put = store.put

    def put_and_lose(name: str, content: bytes) -> None:
        put(name, content)
        monkeypatch.setattr(store, "put", put)
        raise ColdUnavailable("the answer is lost")

    async with running_node(tmp_path / "data", cold=cold) as node:
        await a_round(node)
        monkeypatch.setattr(store, "put", put_and_lose)
        await append_to(node, "a", b"x")
        await archived(node)
        stored = await stored_entries(node, cold)
        assert [entry.index for entry in stored] == list(range(1, len(stored) + 1))


async def test_the_log_is_not_compacted_beyond_the_archive(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, store = place
    async with running_node(tmp_path / "data", cold=cold) as node:
        await append_to(node, "a", b"x")
        await archived(node)
        store.failures = [ColdUnavailable("away")] * 1_000_000
        for _ in range(5):
            await append_to(node, "a", b"y")
        end = node.group.state.header.archived.index
        assert await node.group.storage.compact() == end + 1
        store.failures = []
        await archived(node)
        assert await node.group.storage.compact() > end + 1


def alarms(node: Node) -> tuple[Any, Any]:
    assert node.archive is not None
    told = node.archive.report()
    return told["log_cut_unarchived_index"], told["gaps"]


async def test_a_log_beyond_its_limit_is_compacted_with_an_alarm_until_the_archive_continues(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.group.state_flusher.CHECKPOINT_BYTES", 20_000)
    cold, store = place
    store.failures = Away()
    config = ColdConfig(backend="fs", log_limit_bytes=40_000)
    async with running_node(tmp_path / "data", cold=cold, cold_config=config) as node:
        await node.group.writes.propose(create("a"))
        assert alarms(node) == (None, None)
        with trio.fail_after(30):
            while node.group.committed.first_index == 1:
                await append_to(node, "a", bytes(10_000))
                await node.group.reads.stored()
        cut = node.group.committed.first_index - 1
        assert alarms(node) == (cut, None)
    async with running_node(tmp_path / "data", cold=cold, cold_config=config) as node:
        assert alarms(node) == (cut, None), "a restart does not make it true that all is archived"
        # When the store is back, the archive continues after a gap, and names it.
        store.failures = []
        await archived(node)
        await a_round(node, "snapshot")
        assert alarms(node) == (None, []), "there was nothing before it"
        found = await (await objects(node, cold)).catalog()
        assert found.ranges()[0].first >= cut


async def without_an_archive(data: Path, cold: AsyncObjectStore) -> int:
    """A life of a node whose log is compacted beyond the archive. Returns the index."""
    async with running_node(data, cold=cold) as node:
        await append_to(node, "a", b"x")
        await archived(node)
        end = node.group.state.header.archived.index
    async with running_node(data) as node:
        for _ in range(5):
            await append_to(node, "a", b"without a cold store")
        await node.group.storage.compact()
    return end


async def test_entries_that_no_node_has_are_a_gap_which_is_reported(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _store = place
    end = await without_an_archive(tmp_path / "data", cold)
    async with running_node(tmp_path / "data", cold=cold) as node:
        first = node.group.committed.first_index
        await append_to(node, "a", b"y")
        await archived(node)
        ranges = (await (await objects(node, cold)).catalog()).ranges()
        assert ranges[0].last == end
        assert ranges[1].first >= first - 1
        assert alarms(node) == (None, [[end + 1, ranges[1].first]])
        header = node.group.state.header
        await append_to(node, "a", b"z")
        await archived(node)
        assert header.tree.first_index == ranges[1].first + 1, "a new tree begins after the gap"
        assert header.tree.fits(header.archived.index)
    async with running_node(tmp_path / "data", cold=cold) as node:
        await a_round(node, "snapshot")
        assert alarms(node) == (None, [[end + 1, ranges[1].first]]), "it is told after a restart"


async def test_the_alarm_of_a_gap_ends_once_everything_before_it_is_past_retention(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, store = place
    store.clock_ms = clock = Clock(NOW_MS)
    config = ColdConfig(backend="fs", snapshot_interval_minutes=60, archive_retention_hours=3)
    await without_an_archive(tmp_path / "data", cold)
    async with running_node(tmp_path / "data", cold=cold, clock=clock, cold_config=config) as node:
        await append_to(node, "a", b"y")
        await archived(node)
        for _ in range(3):
            assert len(alarms(node)[1]) == 1
            clock.now_ms = max(clock.now_ms, node.group.now_ms()) + HOUR_MS
            await append_to(node, "a", b"z")
            await archived(node)
            await a_round(node, "snapshot")
        assert alarms(node) == (None, [])


def scraped(node: Node) -> dict[str, float]:
    """The archive's metrics, without their prefix."""
    metrics = Metrics()
    cold_status.export(node, metrics)
    return {
        sample.name.removeprefix("streamd_archive_")
        + "".join(f"_{value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
        if sample.name.startswith("streamd_archive_")
    }


async def test_the_status_of_the_archive_is_in_the_metrics(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, store = place
    clock = Clock(NOW_MS)
    async with running_node(tmp_path / "data", cold=cold, clock=clock) as node:
        await append_to(node, "a", b"x")
        await archived(node)
        await a_round(node, "snapshot")
        end = node.group.state.header.archived
        found = scraped(node)
        assert found["index"] == end.index
        assert found["lag_entries"] <= 1
        assert found["lag_seconds"] == 0
        assert found["last_segment_time_seconds"] == NOW_MS / 1000
        assert found["last_snapshot_time_seconds"] == NOW_MS / 1000
        assert [found[f"alarm_{one}"] for one in ("log_cut", "gap", "fenced")] == [0, 0, 0]
        store.failures = Away()
        clock.now_ms += 5000
        await append_to(node, "a", bytes(10_000))
        metrics = scraped(node)
        assert metrics["index"] == end.index
        assert metrics["lag_entries"] >= 1
        assert 10_000 < metrics["lag_bytes"] < 11_000
        assert metrics["lag_seconds"] == 5
        assert metrics["last_segment_time_seconds"] == NOW_MS / 1000


async def test_alarms_of_the_archive_are_in_the_metrics(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, store = place
    await without_an_archive(tmp_path / "data", cold)
    store.failures = Away()
    async with running_node(tmp_path / "data", cold=cold) as node:
        found = scraped(node)
        assert found["alarm_log_cut"] == 1
        assert math.isnan(found["alarm_gap"])
        assert math.isnan(found["last_snapshot_time_seconds"])
        store.failures = []
        await append_to(node, "a", b"y")
        await archived(node)
        found = scraped(node)
        assert (found["alarm_log_cut"], found["alarm_gap"]) == (0, 1)


async def test_a_member_archives_entries_that_its_leader_lacks(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    async with running_node(tmp_path / "data", cold=cold) as node:
        await append_to(node, "a", b"x")
        await archived(node)
        await append_to(node, "a", b"y")
        previous = node.group.state.header.archived
        for asked, has_tree in (
            (Reached.of(previous, node.group.state.header.tree), True),
            (previous, False),
        ):
            answer = await node.archive_for(msgspec.msgpack.encode(asked))
            found = msgspec.msgpack.decode(answer, type=Reached)
            assert found.index > previous.index
            assert (found.tree is not None) == has_tree, "an earlier release asks without it"
            if found.tree is not None:
                assert found.tree.fits(found.index)
            assert msgspec.msgpack.decode(answer, type=LogPosition) == found.position
        await node.group.storage.compact()
        nothing = Reached()
        answer = await node.archive_for(msgspec.msgpack.encode(nothing))
        assert msgspec.msgpack.decode(answer, type=Reached) == nothing
        impossible = Reached(tree=LogTree(7, (bytes(32),)))
        with pytest.raises(Unavailable, match="cannot be"):
            await node.archive_for(msgspec.msgpack.encode(impossible))
        with pytest.raises(Unavailable):
            await node.archive_for(b"\xc1")


async def test_checkpoints_are_written_at_intervals_and_removed_by_age(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, store = place
    store.clock_ms = clock = Clock(NOW_MS)
    config = ColdConfig(backend="fs", snapshot_interval_minutes=60, archive_retention_hours=3)
    async with running_node(tmp_path / "data", cold=cold, clock=clock, cold_config=config) as node:
        source = await objects(node, cold)
        oldest: list[int] = []
        for hour in range(8):
            clock.now_ms = NOW_MS + hour * HOUR_MS
            await append_to(node, "a", b"%d" % hour)
            await archived(node)
            await a_round(node, "snapshot")
            found = await source.catalog()
            assert len(found.ranges()) == 1, "there is never a gap"
            assert len(found.manifests) == min(hour + 1, 4)
            oldest.append(found.manifests[0].parsed.log_index)
            needed = found.segments[0].parsed
            assert needed.first_index == 1 or needed.last_index > oldest[-1]
            indexes = {manifest.parsed.log_index for manifest in found.manifests}
            assert {piece.parsed.log_index for piece in found.pieces} == indexes
        assert oldest == sorted(oldest)
        assert oldest[-1] > oldest[0]


async def test_checkpoints_continue_after_a_clock_that_was_ahead_is_corrected(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    clock = Clock(NOW_MS + 24 * HOUR_MS)
    config = ColdConfig(backend="fs", snapshot_interval_minutes=0.001)
    async with running_node(tmp_path / "data", cold=cold, clock=clock, cold_config=config) as node:
        source = await objects(node, cold)
        await append_to(node, "a", b"ahead")
        await archived(node)
        await a_round(node, "snapshot")
        clock.now_ms = NOW_MS
        for number in range(3):
            await append_to(node, "a", b"%d" % number)
            written = node.group.view.applied_index
            await archived(node)
            with trio.fail_after(20):
                while (await source.catalog()).manifests[-1].parsed.log_index < written:
                    await a_round(node, "snapshot")


async def test_a_leader_whose_clock_is_far_ahead_removes_no_recent_objects(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, store = place
    clock, store.clock_ms = Clock(NOW_MS), (of_store := Clock(NOW_MS))
    config = ColdConfig(backend="fs", snapshot_interval_minutes=60, archive_retention_hours=10)
    async with running_node(tmp_path / "data", cold=cold, clock=clock, cold_config=config) as node:
        source = await objects(node, cold)

        async def an_hour_passes() -> list[int]:
            of_store.now_ms += HOUR_MS
            clock.now_ms += HOUR_MS
            await append_to(node, "a", b"x")
            await archived(node)
            await a_round(node, "snapshot")
            return [one.parsed.log_index for one in (await source.catalog()).manifests]

        for _ in range(3):
            young = await an_hour_passes()
        assert len(young) >= 3
        clock.now_ms += 1000 * HOUR_MS
        for _ in range(3):
            assert (await an_hour_passes())[: len(young)] == young
        of_store.now_ms += 10 * HOUR_MS
        kept = await an_hour_passes()
        assert kept[0] == young[-1], "they go when they are old by both clocks"


async def test_a_fenced_cluster_leaves_the_store_alone_and_keeps_serving(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    async with running_node(tmp_path / "data", cold=cold) as node:
        await append_to(node, "a", b"x")
        await archived(node)
        await a_round(node, "snapshot")
        cluster_id = node.stores.data_dir.identity.cluster_id
        await put_fence(cold, cluster_id, FenceNote("another", NOW_MS))
        assert node.archive is not None
        node.archive.target.fence.forget()
        await append_to(node, "a", b"y")
        await wait_until(lambda: task(node, "archive").error is not None)
        names = await list_all(cold, "")
        assert node.archive.report()["fenced_by"] == "another"
        assert "another was restored or recovered from this one" in str(task(node, "archive").error)
        await append_to(node, "a", b"z")
        assert await list_all(cold, "") == names


async def test_small_segments_are_merged_without_changing_the_log(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    async with running_node(tmp_path / "data", cold=cold) as node:
        await node.group.writes.propose(create("a"))
        for number in range(40):
            await append_to(node, "a", b"%d" % number)
            await archived(node)
        source = await objects(node, cold)
        before, stored = await source.catalog(), await stored_entries(node, cold)
        assert len(before.segments) > 35
        await a_round(node, "merge")
        after = await source.catalog()
        assert len(after.segments) < 20
        assert after.ranges()[0].last >= before.ranges()[0].last
        assert (await stored_entries(node, cold))[: len(stored)] == stored
        await a_round(node, "merge")
        assert len((await source.catalog()).segments) == len(after.segments)
