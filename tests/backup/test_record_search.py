"""The command of a record is found in what is left of the archived log."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.backup.record_search import Unprovable
from streamd.config.settings import ColdConfig
from streamd.node import prover
from streamd.node.node import Node
from streamd.protocol.problems import ProblemError
from streamd.streams.offsets import Position
from streamd.tiering.async_store import AsyncObjectStore
from streamd_audit.proof import Proved, verify_record
from tests.backup.test_archive import (
    HOUR_MS,
    NOW_MS,
    a_round,
    archived,
    objects,
)
from tests.support.archived import cold_in
from tests.support.flaky_store import FlakyStore
from tests.support.nodes import Clock, append_to, create, key, running_node


@pytest.fixture
def place(tmp_path: Path) -> tuple[AsyncObjectStore, FlakyStore]:
    return cold_in(tmp_path / "cold")


async def appended(node: Node, data: bytes) -> Position:
    """Append; returns where the record begins."""
    tail = (await append_to(node, "a", data)).tail
    return Position(tail.record - 1, tail.byte - len(data))


async def proved(node: Node, at: Position) -> Proved:
    stream = await node.reads.stream(key("a"))
    assert stream is not None
    assert node.prover is not None
    content = await node.prover.prove(key("a"), stream, at)
    assert node.archive is not None
    head = node.archive.heads.newest()
    assert head is not None
    return verify_record(content, head.keys[0].key)


async def settled(node: Node) -> None:
    """Archive all that there is, and something after it."""
    await append_to(node, "a", b"later")
    await archived(node)
    await archived(node)


async def test_what_retention_has_left_is_proved(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    """From the checkpoint on that has the stream before the record."""
    cold, store = place
    store.clock_ms = clock = Clock(NOW_MS)
    config = ColdConfig(backend="fs", snapshot_interval_minutes=60, archive_retention_hours=3)
    async with running_node(tmp_path / "data", cold=cold, clock=clock, cold_config=config) as node:
        await node.group.writes.propose(create("a"))
        places = []
        for hour in range(8):
            clock.now_ms = NOW_MS + hour * HOUR_MS
            places.append(await appended(node, b"in hour %d" % hour))
            await settled(node)
            await a_round(node, "snapshot")
        found = await (await objects(node, cold)).catalog()
        assert found.segments[0].parsed.first_index > 1
        for hour in (5, 6, 7):
            assert (await proved(node, places[hour])).record == b"in hour %d" % hour
        for at in places[:3]:
            with pytest.raises(Unprovable, match="no checkpoint has the stream"):
                await proved(node, at)


async def test_a_record_is_proved_in_merged_segments(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    async with running_node(tmp_path / "data", cold=cold) as node:
        await node.group.writes.propose(create("a"))
        places = []
        for number in range(40):
            places.append(await appended(node, b"%d" % number))
            await archived(node)
        await settled(node)
        before = (await (await objects(node, cold)).catalog()).segments
        first = await proved(node, places[3])
        await a_round(node, "merge")
        after = (await (await objects(node, cold)).catalog()).segments
        assert len(after) < len(before)
        again = await proved(node, places[3])
        assert (again.entry, again.record) == (first.entry, b"3")


async def test_the_records_of_a_stream_that_is_older_than_the_archive_are_proved(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    """The archive begins with a checkpoint, because there was no cold store before."""
    cold, _ = place
    async with running_node(tmp_path / "data") as node:
        await node.group.writes.propose(create("a"))
        await appended(node, b"not archived")
        await node.group.storage.flush()
        await node.group.storage.compact()
    async with running_node(tmp_path / "data", cold=cold) as node:
        assert node.group.committed.first_index > 1
        await settled(node)
        at = await appended(node, b"archived")
        await settled(node)
        found = await proved(node, at)
        assert (found.record, found.head.first_index > 1) == (b"archived", True)
        with pytest.raises(Unprovable, match="no checkpoint has the stream"):
            await proved(node, Position(0, 0))


async def test_a_search_that_takes_too_long_is_ended(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    cold, _ = place
    async with running_node(tmp_path / "data", cold=cold) as node:
        await node.group.writes.propose(create("a"))
        at = await appended(node, b"x")
        await settled(node)
        monkeypatch.setattr(prover, "SEARCH_S", 0.0)
        with pytest.raises(ProblemError, match="too long"):
            await proved(node, at)
        monkeypatch.undo()
        assert (await proved(node, at)).record == b"x"


async def test_an_archive_without_its_segments_proves_nothing(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, store = place
    clock = Clock(NOW_MS)
    async with running_node(tmp_path / "data", cold=cold, clock=clock) as node:
        await node.group.writes.propose(create("a"))
        at = await appended(node, b"x")
        clock.now_ms += 1000  # What is archived by then has the record, too.
        await node.group.writes.propose(create("b"))
        await archived(node)
        await archived(node)
        for info in store.page(""):
            if "/log/" in info.name:
                store.delete([info.name])
        with pytest.raises(Unprovable, match="no archived command"):
            await proved(node, at)
