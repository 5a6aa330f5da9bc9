"""Records of any size: those that fit an object are flushed, and others delay no stream."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from streamd.config.settings import ColdConfig
from streamd.node.cold_status import report
from streamd.node.node import Node
from streamd.objectstore.objects import MAX_OBJECT_BYTES
from streamd.objectstore.packs import read_pack
from streamd.tiering import flush
from tests.backup.test_archive import a_round
from tests.support.archived import cold_in
from tests.support.nodes import append, append_to, create, read_all, running_node, wait_until

MIB = 1024 * 1024
SETTINGS = ColdConfig(
    backend="fs", pack_bytes=MIB, flush_after_ms=100, hot_keep_bytes=1, cache_bytes=1
)


async def only_cold(node: Node, hot_bytes: int = 0) -> None:
    """Wait until all but so many bytes are in the cold store, and none of them in memory."""
    await wait_until(lambda: node.group.state.header.hot_bytes == hot_bytes)
    await wait_until(lambda: node.evictor.held_bytes == 0)
    node.group.state.tails.__init__(MIB)


@pytest.mark.long
async def test_a_record_larger_than_a_pack_gets_its_own_pack(tmp_path: Path) -> None:
    cold, _ = cold_in(tmp_path / "cold")
    bodies = {"before": b"b" * 100_000, "large": b"l" * 40 * MIB, "after": b"c" * 100_000}
    async with running_node(tmp_path / "data", cold=cold, cold_config=SETTINGS) as node:
        for name, body in bodies.items():
            await node.group.writes.propose(create(name))
            await append_to(node, name, body)
        await only_cold(node)
        for name, body in bodies.items():
            assert await read_all(node, name) == body
    packs = [path.read_bytes() for path in (tmp_path / "cold").rglob("*.pack")]
    [large] = [pack for pack in packs if len(pack) > 40 * MIB]
    assert len(read_pack(large).slices) == 1


async def test_small_messages_take_more_than_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "_PACK_MAX_BYTES", 100_000)
    cold, _ = cold_in(tmp_path / "cold")
    # Both are gathered for one pack; only their lengths make them too large for it.
    settings = msgspec.structs.replace(SETTINGS, pack_bytes=64 * 1024, flush_after_ms=100_000)
    numbers = b"[" + b"1," * 15_000 + b"1]"
    async with running_node(tmp_path / "data", cold=cold, cold_config=settings) as node:
        await node.group.writes.propose(create("bytes"))
        await append_to(node, "bytes", b"x" * 60_000)
        await node.group.writes.propose(create("numbers", content_type="application/json"))
        await node.group.writes.propose(
            append("numbers", numbers, "application/json"), len(numbers)
        )
        node.flusher.ask()
        await only_cold(node)
        assert not node.flusher.stuck_bytes
    sizes = [path.stat().st_size for path in (tmp_path / "cold").rglob("*.pack")]
    assert len(sizes) == 2
    assert sum(sizes) > 100_000


async def test_a_pack_close_to_the_size_limit_matches_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold, _ = cold_in(tmp_path / "cold")
    settings = msgspec.structs.replace(SETTINGS, pack_bytes=64 * 1024, flush_after_ms=10**9)
    async with running_node(tmp_path / "data", cold=cold, cold_config=settings) as node:
        for name in ("first", "second"):
            await node.group.writes.propose(create(name))
            await append_to(node, name, b"x" * 30_000)
        await node.group.storage.flush()
        counts = set()
        for limit in range(60_000, 60_300):
            monkeypatch.setattr(flush, "_PACK_MAX_BYTES", limit)
            now_ms = node.group.now_ms()
            found = flush.gather_pack(node.stores.state, now_ms, settings.pack_bytes, 1, 1)
            assert [(one.stream_id, one.offset) for one in found.slices] == [
                (ref.stream_id, ref.offset) for ref in read_pack(found.content).slices
            ]
            assert not found.stuck
            counts.add(len(found.slices))
        assert counts == {1, 2}


async def test_a_record_too_large_for_an_object_does_not_stop_other_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert flush._PACK_MAX_BYTES < MAX_OBJECT_BYTES
    monkeypatch.setattr(flush, "_PACK_MAX_BYTES", 2 * MIB)
    cold, _ = cold_in(tmp_path / "cold")
    large = b"x" * 2 * MIB
    # Nothing is flushed for its age, however long the writing takes.
    settings = msgspec.structs.replace(SETTINGS, flush_after_ms=10**9)
    async with running_node(tmp_path / "data", cold=cold, cold_config=settings) as node:
        for name in ("large", "other"):
            await node.group.writes.propose(create(name))
        await append_to(node, "large", b"small")
        node.flusher.ask()
        await only_cold(node)
        await append_to(node, "large", large)
        await append_to(node, "other", b"first")
        node.flusher.ask()
        await only_cold(node, len(large))
        assert node.flusher.stuck_bytes == len(large)
        reported = await report(node)
        assert reported is not None
        assert reported["flush"]["stuck_bytes"] == len(large)
        # It does not make younger bytes due.
        packs = node.flusher.packs
        await append_to(node, "large", b"after")
        for number in range(20):
            await append_to(node, "other", b"%05d" % number)
        await a_round(node, "flush")
        assert node.flusher.packs == packs
        node.flusher.ask()
        await only_cold(node, len(large) + len(b"after"))
        assert node.flusher.packs == packs + 1
        assert await read_all(node, "large") == b"small" + large + b"after"
        assert await read_all(node, "other") == b"first" + b"".join(b"%05d" % n for n in range(20))
        told = capfd.readouterr().out.count("exceeds the limit for one object")
        assert told == 1
