"""Rules that only a coincidence would break; each test brings it about by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import msgspec
import pytest
import trio
import trio.testing

from streamd.group import admission, state_flusher
from streamd.group.reads import ReadIndex
from streamd.group.reclaim import Pins, reclaim_some
from streamd.group.retention import Retention
from streamd.http.streams.live import Reader
from streamd.node.node import Node
from streamd.process.threads import in_thread
from streamd.raft.core import ReadState
from streamd.streams import keys
from streamd.streams.commands import Delete, Result
from streamd.streams.model import Stream
from tests.raft.cluster import lone_leader
from tests.support.machines import Machine, Machines, Play, all_ready, wait_until
from tests.support.nodes import append, append_to, create, key, read_all, running_node
from tests.support.threads import in_order

T = TypeVar("T")
Args = TypeVarTuple("Args")


# --- reads


async def test_a_reader_wakes_at_the_entry_it_waits_for_and_not_earlier() -> None:
    reads = ReadIndex(lone_leader().core, lambda: None)
    passed: list[bool] = []

    async def read() -> None:
        passed.append(await reads.wait(60))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        reads.ask()
        reads.answer([ReadState(1, 7)])
        reads.applied(6)
        await trio.testing.wait_all_tasks_blocked()
        assert passed == []
        reads.applied(7)
        await trio.testing.wait_all_tasks_blocked()
        assert passed == [True]


# --- rows that are read for a command


async def test_a_row_read_before_a_state_flush_does_not_replace_the_stored_row(
    tmp_path: Path,
) -> None:
    """The row is read; a newer one is stored and leaves memory; then the first read returns."""
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
    row = keys.STREAM + key("a")
    overtaken = False

    async def run_blocking(
        call: Callable[[*Args], T], *args: *Args, limiter: trio.CapacityLimiter | None = None
    ) -> T:
        nonlocal overtaken
        result = await in_thread(call, *args, limiter=limiter)
        if isinstance(result, dict) and result.get(row) is not None and not overtaken:
            overtaken = True
            stream = msgspec.msgpack.decode(result[row], type=Stream)
            stream.closed = True
            node.stores.state.write([(row, msgspec.msgpack.encode(stream))])
            await node.group.storage.flush()
        return result

    async with running_node(tmp_path, open_log_thread=in_order(run_blocking)) as node:
        outcome = await append_to(node, "a", b"x")
        assert overtaken
        assert outcome.result is Result.STREAM_CLOSED


# --- what is kept for readers and followers that still need it


def test_pinned_rows_stay_until_the_last_pin_is_released(tmp_path: Path) -> None:
    async def scenario(node: Node, stream_id: int, pins: Pins) -> None:
        def rows() -> int:
            start, stop = keys.id_range(keys.CHUNK, stream_id)
            return len(node.stores.state.scan(start, stop, limit=100))

        first, second = pins.hold([stream_id]), pins.hold([stream_id, stream_id + 1])
        reclaim_some(node.stores.state, keys.GARBAGE, pins.held())
        assert rows()
        first.release()
        first.release()
        reclaim_some(node.stores.state, keys.GARBAGE, pins.held())
        assert rows(), "one of the two still reads"
        second.release()
        assert pins.held() == frozenset()
        reclaim_some(node.stores.state, keys.GARBAGE, pins.held())
        assert not rows()

    async def run() -> None:
        async with running_node(tmp_path) as node:
            await node.group.writes.propose(create("gone"))
            await append_to(node, "gone", b"x" * 1000)
            await node.group.storage.flush()
            gone = await node.reads.stream(key("gone"))
            assert gone is not None
            held = node.group.pins.hold([gone.stream_id])
            await node.group.writes.propose(Delete(key("gone")))
            await node.group.storage.flush()
            await scenario(node, gone.stream_id, Pins())
            held.release()

    trio.run(run)


def test_the_log_keeps_the_entries_after_each_raft_snapshot_in_transfer() -> None:
    retention = Retention(lone_leader().core, 0.1)
    assert retention.unneeded_through() == math.inf
    with retention.keeping_after(50):
        with retention.keeping_after(20):
            assert retention.unneeded_through() == 20
        assert retention.unneeded_through() == 50
    assert retention.unneeded_through() == math.inf


async def test_the_log_is_not_compacted_under_a_raft_snapshot_in_transfer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_flusher, "CHECKPOINT_BYTES", 2_000)
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
        index = node.group.view.applied_index
        with node.group.retention.keeping_after(index):
            for _ in range(10):
                await append_to(node, "a", b"x" * 1_000)
                await node.group.reads.stored()
            assert node.group.view.first_index <= index + 1
        while node.group.view.first_index <= index + 1:
            await append_to(node, "a", b"x" * 1_000)
            await node.group.reads.stored()


async def test_tasks_waiting_for_the_state_flusher_wake_when_a_raft_snapshot_is_installed(
    tmp_path: Path,
) -> None:
    """Nothing is left to store then, so no flush would ever wake them."""
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
        went_on = trio.Event()

        async def wait() -> None:
            await node.group.reads.stored()
            went_on.set()

        async with trio.open_nursery() as nursery, node.group.storage.write_lock:
            await append_to(node, "a", b"x")
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert not went_on.is_set()
            state = node.group.state
            state.stored_index = state.header.applied_index
            node.group._flusher.restarted(state.stored_index)
            with trio.fail_after(20):
                await went_on.wait()


# --- limits


async def test_no_command_is_proposed_while_too_many_bytes_wait_to_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_flusher, "MAX_UNSTORED_BYTES", 10_000)
    monkeypatch.setattr(admission, "PROPOSE_TIMEOUT_S", 3600.0)
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
        most = 0
        async with trio.open_nursery() as nursery, node.group.storage.write_lock:
            for _ in range(50):
                nursery.start_soon(append_to, node, "a", b"x" * 1_000)
                await trio.testing.wait_all_tasks_blocked(0.01)
            most = node.group.state.unstored_bytes
            assert most < 10_000 + 5 * 1_000
        assert len(await read_all(node, "a")) == 50_000, "they went on when it was stored"


def test_a_follower_that_cannot_store_its_state_accepts_no_entries_until_it_can(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would hold in memory everything that the others commit meanwhile."""
    limit_bytes = 20_000
    monkeypatch.setattr(state_flusher, "MAX_UNSTORED_BYTES", limit_bytes)

    async def scenario(machines: Machines) -> None:
        leader, follower, _ = await all_ready(machines)
        await leader.node.group.writes.propose(create("a"))
        async with follower.node.group.storage.write_lock:
            for number in range(200):
                await leader.node.group.writes.propose(append("a", b"%01000d" % number))
            await trio.sleep(5)
            state = follower.node.group.state
            assert limit_bytes < state.unstored_bytes < 2 * limit_bytes
            assert follower.node.group.view.leader_id == leader.node_id, "it still hears it"
        await wait_until(
            lambda: follower.node.group.view.applied_index == leader.node.group.view.applied_index
        )
        assert await read_all(follower.node, "a") == await read_all(leader.node, "a")
        assert leader.leads

    play(scenario)


# --- installing a Raft snapshot


# Until then what was sent before is still on its way.
_CONNECTIONS_BREAK_S = 20.0


async def lagging_follower(machines: Machines) -> tuple[Machine, Machine]:
    """The leader, and a running follower that hears nothing and needs a Raft snapshot to catch
    up."""
    leader, follower, third = await all_ready(machines)
    await leader.node.group.writes.propose(create("a"))
    await wait_until(
        lambda: follower.node.group.view.applied_index == leader.node.group.view.applied_index
    )
    machines.network.cut(
        [
            (one.node_id, other.node_id)
            for pair in ((follower, leader), (follower, third))
            for one, other in (pair, pair[::-1])
        ]
    )
    for number in range(20):
        await leader.node.group.writes.propose(append("a", b"%0500d" % number))
    for machine in (leader, third):
        await machine.node.group.storage.compact()
    await trio.sleep(_CONNECTIONS_BREAK_S)
    return leader, follower


def test_a_raft_snapshot_is_not_installed_during_a_state_flush(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        _, follower = await lagging_follower(machines)
        node = follower.node
        before = node.group.view.applied_index
        async with node.group.storage.write_lock:
            machines.heal()
            await wait_until(lambda: node.group.storage.is_installing)
            await trio.sleep(5)
            assert node.group.view.applied_index == before
            assert follower.calls["install"] == 0
        await wait_until(lambda: node.group.view.applied_index > before)
        assert follower.calls["install"] == 1

    play(scenario)


def test_live_readers_look_again_once_a_raft_snapshot_is_installed(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        _, follower = await lagging_follower(machines)
        stream = await follower.node.reads.stream(key("a"))
        assert stream is not None
        reader = Reader((follower.node.group.group_id, stream.stream_id), stream.tail)
        follower.app.hub.add(reader)
        machines.heal()
        await wait_until(lambda: follower.calls["install"] == 1)
        await wait_until(lambda: reader.news)
        assert not follower.app.hub.present

    play(scenario)


def test_a_read_waiting_while_a_raft_snapshot_is_installed_sees_its_state(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, follower = await lagging_follower(machines)
        tail: list[int] = []

        async def read() -> None:
            await follower.node.group.reads.catch_up(60)
            stream = await follower.node.reads.stream(key("a"))
            assert stream is not None
            tail.append(stream.records)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            machines.heal()
            await wait_until(lambda: bool(tail))
        assert tail == [20]
        assert leader.leads

    play(scenario)
