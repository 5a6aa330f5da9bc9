"""The leader scrubs the cold store: it reads everything slowly before anyone needs it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace
from structlog.testing import capture_logs

from streamd.backup import scrub as scrubbing
from streamd.config.settings import ColdConfig
from streamd.node.node import Node
from streamd.streams.cold.scrubs import MAX_NAMED, Scrub
from streamd.streams.commands import Delete, Scrubbed
from streamd.tiering.async_store import AsyncObjectStore
from tests.backup.test_archive import a_round, archived
from tests.support.archived import cold_in
from tests.support.flaky_store import Away, FlakyStore
from tests.support.nodes import append_to, create, key, running_node, wait_until

CONFIG = ColdConfig(
    backend="fs",
    pack_bytes=64 * 1024,
    flush_after_ms=10**9,
    hot_keep_bytes=1,
    snapshot_interval_minutes=0.0001,
    scrub_bytes_per_s=10**12,
)
KINDS = ("pack", "segment", "piece", "manifest")


@pytest.fixture(autouse=True)
def look_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "FIRST_LOOK_S", 0.0)
    monkeypatch.setattr(scrubbing, "LOOK_INTERVAL_S", 0.0)


@pytest.fixture
def place(tmp_path: Path) -> tuple[AsyncObjectStore, FlakyStore]:
    return cold_in(tmp_path / "cold")


async def filled(node: Node, streams: int = 3) -> None:
    """Put some packs, segments and a checkpoint into the store."""
    for number in range(streams):
        await node.group.writes.propose(create(f"s{number}"))
        await append_to(node, f"s{number}", bytes([number]) * 70_000)
        node.flusher.ask()
        await a_round(node, "flush")
        await archived(node)
    await a_round(node, "snapshot")


def run_now(node: Node) -> None:
    assert node.cold_tier is not None
    node.cold_tier.run_now()


async def scrubbed(node: Node) -> Scrub:
    """Wait for a complete pass that begins after now."""
    wanted = node.scrubber.ask()
    with trio.fail_after(20):
        while node.scrubber.scrub.passes < wanted:
            run_now(node)
            await trio.sleep(0.01)
    return node.scrubber.scrub


async def looked(node: Node) -> Scrub:
    """Wait until the leader has checked that every object exists."""
    await a_round(node, "scrub")
    return node.scrubber.scrub


def files(tmp_path: Path, kind: str) -> list[Path]:
    return sorted((tmp_path / "cold").rglob(f"*.{kind}"))


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


async def test_a_pass_reads_every_object_and_finds_nothing_where_nothing_is_wrong(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    async with running_node(tmp_path / "data", cold=cold, cold_config=CONFIG) as node:
        await filled(node)
        before = {one for kind in KINDS for one in files(tmp_path, kind)}
        scrub = await scrubbed(node)
        since = {one for kind in KINDS for one in files(tmp_path, kind)}
        assert (scrub.passes, scrub.under_way) == (1, False)
        assert scrub.objects >= len(before & since), "what is archived since may be left out"
        assert (scrub.missing_count, scrub.damaged_count) == (0, 0)
        assert scrub.done_ms > 0
        assert (await scrubbed(node)).passes == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spoil", [flip, pytest.param(cut, marks=pytest.mark.long)])
async def test_a_damaged_object_is_named_until_it_is_repaired(
    tmp_path: Path,
    place: tuple[AsyncObjectStore, FlakyStore],
    kind: str,
    spoil: Callable[[Path], None],
) -> None:
    cold, _ = place
    with capture_logs() as told:
        async with running_node(tmp_path / "data", cold=cold, cold_config=CONFIG) as node:
            await filled(node)
            [spoiled, *_] = files(tmp_path, kind)
            whole = spoiled.read_bytes()
            spoil(spoiled)
            scrub = await scrubbed(node)
            assert [name.rpartition("/")[2] for name in scrub.damaged] == [spoiled.name]
            assert scrub.damaged_count == 1
    errors = [one for one in told if one["event"] == "an object in the cold store is damaged"]
    assert [one["object"].rpartition("/")[2] for one in errors] == [spoiled.name]
    async with running_node(tmp_path / "data", cold=cold, cold_config=CONFIG) as node:
        assert node.scrubber.scrub.damaged_count == 1, "an alarm outlasts a restart"
        assert (await looked(node)).damaged_count == 1
        spoiled.write_bytes(whole)
        scrub = await looked(node)
        assert (scrub.missing, scrub.damaged, scrub.damaged_count) == ((), (), 0)


async def test_the_alarm_of_an_emptied_store_survives_a_restart(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    async with running_node(tmp_path / "data", cold=cold, cold_config=CONFIG) as node:
        await filled(node)
        assert (await looked(node)).missing_count == 0
        shutil.copytree(tmp_path / "cold", tmp_path / "saved")
        for kind in (*KINDS, "end"):
            for file in files(tmp_path, kind):
                file.unlink()
        scrub = await looked(node)
        assert scrub.missing_count == 4, "three packs and the log"
        assert sum("/packs/" in name for name in scrub.missing) == 3
        assert [name for name in scrub.missing if " entries 1 to " in name]
    async with running_node(tmp_path / "data", cold=cold, cold_config=CONFIG) as node:
        assert node.scrubber.report()["missing_objects"] == 4
        shutil.copytree(tmp_path / "saved", tmp_path / "cold", dirs_exist_ok=True)
        assert (await looked(node)).missing_count == 0


async def test_a_single_missing_pack_is_reported(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    async with running_node(tmp_path / "data", cold=cold, cold_config=CONFIG) as node:
        await filled(node)
        gone = files(tmp_path, "pack")[1]
        gone.unlink()
        scrub = await looked(node)
        assert [name.rpartition("/")[2] for name in scrub.missing] == [gone.name]


async def test_a_new_checkpoint_does_not_replace_a_missing_archive(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    async with running_node(tmp_path / "data", cold=cold, cold_config=CONFIG) as node:
        await filled(node)
        assert (await looked(node)).lost is None
        for kind in ("segment", "piece", "manifest", "end"):
            for file in files(tmp_path, kind):
                file.unlink()
        # The next check comes late.
        await append_to(node, "s0", b"x")
        await archived(node)
        checkpoints = len(files(tmp_path, "manifest"))
        await a_round(node, "snapshot")
        assert len(files(tmp_path, "manifest")) > checkpoints
        for _ in range(2):
            scrub = await looked(node)
            assert scrub.lost is not None
            assert scrub.missing_count == 1
            assert " entries 1 to " in scrub.missing[0]


async def test_a_limited_number_of_objects_is_named_and_all_are_counted(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    async with running_node(tmp_path / "data", cold=cold, cold_config=CONFIG) as node:
        await filled(node, MAX_NAMED + 3)
        for pack in files(tmp_path, "pack"):
            flip(pack)
        scrub = await scrubbed(node)
        assert (len(scrub.damaged), scrub.damaged_count) == (MAX_NAMED, MAX_NAMED + 3)
        for pack in files(tmp_path, "pack"):
            flip(pack)
        assert (await looked(node)).damaged_count == 3, "those not named are as the pass met them"
        assert (await scrubbed(node)).damaged_count == 0


async def test_a_pass_resumes_where_the_node_stopped(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing, "_CHECKPOINT_OBJECTS", 1)
    cold, store = place
    async with running_node(
        tmp_path / "data", cold=cold, cold_config=replace(CONFIG, scrub_bytes_per_s=10**6)
    ) as node:
        await filled(node)
        node.scrubber.ask()
        run_now(node)
        await wait_until(lambda: node.scrubber.scrub.objects >= 2)
    monkeypatch.setattr(scrubbing, "_CHECKPOINT_OBJECTS", 100)
    async with running_node(tmp_path / "data", cold=cold, cold_config=CONFIG) as node:
        before = node.scrubber.scrub
        assert before.under_way
        store.calls = 0
        with trio.fail_after(20):
            while node.scrubber.scrub.under_way:
                run_now(node)
                await trio.sleep(0.01)
        scrub = node.scrubber.scrub
        assert scrub.passes == 1
        assert scrub.objects > before.objects


async def test_reading_is_paced(tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]) -> None:
    cold, _ = place
    config = replace(CONFIG, scrub_bytes_per_s=1)
    async with running_node(tmp_path / "data", cold=cold, cold_config=config) as node:
        await filled(node)
        read: list[str] = []
        digest = cold.digest

        async def counted(name: str) -> tuple[str, int]:
            read.append(name)
            return await digest(name)

        cold.digest = counted  # type: ignore[method-assign]
        node.scrubber.ask()
        run_now(node)
        await wait_until(lambda: bool(read))
        first = read[0]
        for _ in range(5):
            await a_round(node)
        assert [name for name in read if name == first or "/packs/" in name] == [first]


@pytest.mark.long
async def test_objects_removed_meanwhile_raise_no_alarm(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    config = replace(CONFIG, gc_interval_ms=10, gc_grace_ms=1, archive_retention_hours=1e-7)
    async with running_node(tmp_path / "data", cold=cold, cold_config=config) as node:
        await filled(node)
        packs = set(files(tmp_path, "pack"))
        for number in range(3):
            await node.group.writes.propose(Delete(key(f"s{number}")))
        while packs & set(files(tmp_path, "pack")):
            await append_to(node, "s", b"x")
            await archived(node)
            await a_round(node, "snapshot")
            scrub = await scrubbed(node)
            assert (scrub.missing, scrub.damaged) == ((), ())


async def test_an_outage_is_not_damage(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, store = place
    async with running_node(tmp_path / "data", cold=cold, cold_config=CONFIG) as node:
        await filled(node)
        store.failures = Away()
        wanted = node.scrubber.ask()
        run_now(node)
        await wait_until(lambda: cold.health.away_s is not None)
        store.failures = []
        with trio.fail_after(20):
            while node.scrubber.scrub.passes < wanted:
                run_now(node)
                await trio.sleep(0.01)
        assert (node.scrubber.scrub.missing, node.scrubber.scrub.damaged) == ((), ())


async def test_a_deposed_leaders_scrub_report_is_refused(
    tmp_path: Path, place: tuple[AsyncObjectStore, FlakyStore]
) -> None:
    cold, _ = place
    async with running_node(tmp_path / "data", cold=cold, cold_config=CONFIG) as node:
        await node.group.writes.propose(Scrubbed(node.group.view.term - 1, Scrub(missing_count=7)))
        assert node.scrubber.scrub == Scrub()
