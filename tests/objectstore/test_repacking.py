"""Packs of slow writers: repacking keeps them few, however often little is flushed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from streamd.config.settings import ColdConfig
from streamd.node.node import Node
from streamd.streams import keys
from streamd.streams.commands import Delete, Result
from streamd.streams.model import Pack
from streamd.tiering import repacking
from tests.sim.runtime import run_virtually
from tests.support.machines import Machine, Machines, play, wait_until
from tests.support.manifest import Manifest
from tests.support.nodes import append, create, key, read_all

NAMES = ("a", "b", "c", "d", "e")
FLUSHES = 200
SETTINGS = ColdConfig(
    backend="s3",
    s3_bucket="simulated",
    pack_bytes=64 * 1024,
    flush_after_ms=100,
    hot_keep_bytes=1,
    gc_interval_ms=1_000,
    # Nothing is removed, so that everything ever written can be counted.
    gc_grace_ms=100_000_000,
)
_PACK = msgspec.msgpack.Decoder(Pack)


def living_packs(node: Node) -> list[Pack]:
    rows = node.stores.state.scan(keys.PACK, bytes([keys.PACK[0] + 1]), limit=10_000)
    return [pack for _, value in rows if (pack := _PACK.decode(value)).live]


def pack_sizes(machines: Machines) -> list[int]:
    """Sizes of all packs ever written."""
    contents = machines.objects.contents
    return [len(content) for name, content in contents.items() if "/packs/" in name]


async def rounds(machine: Machine, count: int = 2) -> None:
    """Wait for so many whole rounds of removal."""
    wanted = machine.node.cold_gc.ended + count
    await wait_until(lambda: machine.node.cold_gc.ended >= wanted)
    await machine.node.group.storage.flush()


async def only_cold(machine: Machine) -> None:
    """Wait until a node has evicted everything that was flushed."""
    stop = bytes([keys.CHUNK[0] + 1])
    await wait_until(lambda: not machine.node.stores.state.scan(keys.CHUNK, stop, limit=1))
    await machine.node.group.storage.flush()
    machine.node.group.state.tails.__init__(1 << 20)


async def flush_little_by_little(leader: Machine, count: int) -> dict[str, bytes]:
    """Append little, with a flush after each, so that every pack is small."""
    expected = dict.fromkeys(NAMES, b"")
    for name in NAMES:
        await leader.node.group.writes.propose(create(name))
    for number in range(count):
        name, body = NAMES[number % len(NAMES)], b"%04d|" % number * 20
        outcome = await leader.node.group.writes.propose(append(name, body), len(body))
        assert outcome.result is Result.APPENDED
        expected[name] += body
        await wait_until(lambda: leader.node.group.state.header.hot_bytes == 0)
    return expected


@pytest.mark.long
def test_small_packs_are_repacked_and_each_byte_moves_few_times(tmp_path: Path) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await machines.leader()
        expected = await flush_little_by_little(leader, FLUSHES)
        await rounds(leader)
        assert leader.node.flusher.packs == FLUSHES
        assert len(living_packs(leader.node)) <= 30
        written = pack_sizes(machines)
        rewritten = sum(written) - leader.node.flusher.bytes
        assert 0 < rewritten <= 3 * leader.node.flusher.bytes
        # With nothing new, nothing more is done.
        await rounds(leader, 5)
        assert pack_sizes(machines) == written
        for machine in machines.all:
            await only_cold(machine)
            Manifest(machine.node.stores.state, machines.objects.contents).check()
            for name in NAMES:
                assert await read_all(machine.node, name, 50_000) == expected[name]

    run_virtually(3, partial(play, scenario, tmp_path, SETTINGS))


@pytest.mark.long
def test_repacking_brings_the_slices_of_a_stream_together(tmp_path: Path) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await machines.leader()
        await flush_little_by_little(leader, 100)
        await rounds(leader)
        await only_cold(leader)
        rows = leader.node.stores.state.scan(keys.SLICE, bytes([keys.SLICE[0] + 1]), limit=1000)
        assert len(rows) == 100
        before = machines.objects.counts["get"]
        for name in NAMES:
            await read_all(leader.node, name, 50_000)
        assert machines.objects.counts["get"] - before <= 60

    run_virtually(3, partial(play, scenario, tmp_path, SETTINGS))


def test_an_unreadable_pack_stays_and_the_others_are_repacked(tmp_path: Path) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await machines.leader()
        machines.objects.counts.clear()
        await flush_little_by_little(leader, 3)
        await leader.node.group.storage.flush()
        [damaged, *_] = living_packs(leader.node)
        content, at_ms = machines.objects.objects[damaged.name]
        machines.objects.objects[damaged.name] = (content[:-1] + b"?", at_ms)
        await flush_little_by_little(leader, 40)
        await rounds(leader)
        packs = living_packs(leader.node)
        assert damaged.name in [pack.name for pack in packs]
        assert len(packs) <= 20
        # It is not retried endlessly.
        before = machines.objects.counts["get"]
        await rounds(leader, 5)
        assert machines.objects.counts["get"] - before < 10

    run_virtually(3, partial(play, scenario, tmp_path, SETTINGS))


def test_sparse_packs_too_large_for_one_object_are_repacked_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As with packs of 48 MiB: the live bytes of two of them are less than a pack, of three more
    # than an object.
    monkeypatch.setattr(repacking, "_MAX_LIVING_BYTES", SETTINGS.pack_bytes * 60 // 48)

    async def scenario(machines: Machines) -> None:
        leader = await machines.leader()
        group = leader.node.group
        for number in range(6):
            for name, size in ((f"kept{number}", 28_000), (f"doomed{number}", 35_000)):
                await group.writes.propose(create(name))
                outcome = await group.writes.propose(append(name, bytes([number]) * size), size)
                assert outcome.result is Result.APPENDED
            await wait_until(lambda: group.state.header.hot_bytes == 0)
        await group.storage.flush()
        assert len(living_packs(leader.node)) == 6
        for number in range(6):
            await group.writes.propose(Delete(key(f"doomed{number}")))
        await rounds(leader, 4)
        assert len(living_packs(leader.node)) == 3
        for number in range(6):
            assert await read_all(leader.node, f"kept{number}", 50_000) == bytes([number]) * 28_000

    settings = replace(SETTINGS, gc_grace_ms=500)
    run_virtually(3, partial(play, scenario, tmp_path, settings))
