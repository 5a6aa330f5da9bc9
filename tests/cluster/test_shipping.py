"""A Raft snapshot in transfer: it arrives, or the leader learns that it did not."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path

import pytest
import trio

from streamd.cluster import shipping
from streamd.cluster.administration import Remove
from streamd.cluster.cluster import Cluster
from streamd.group.log_formats import LIMITS_FORMAT
from streamd.storage.raft_snapshots import SnapshotUnavailable
from streamd.streams.commands import Result, SetLimits
from streamd.streams.limits import Limits
from tests.sim.runtime import run_virtually
from tests.support.machines import Machine, Machines, Play, play, wait_until
from tests.support.nodes import append, create, read_all

_PIECE_BYTES = 2_000
_RECORDS = 40
_BOUND_S = 60.0


@pytest.fixture(name="play")
def _play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Play a scenario with three machines whose Raft snapshots have small pieces."""
    monkeypatch.setattr("streamd.storage.raft_snapshots.PIECE_BYTES", _PIECE_BYTES)
    return lambda scenario: run_virtually(1, partial(play, scenario, tmp_path))


async def let_one_lag(machines: Machines) -> tuple[Machine, Machine]:
    """The leader, and a follower that is down and needs compacted entries."""
    leader = await machines.leader()
    lagging = next(machine for machine in machines.all if machine is not leader)
    await wait_until(lambda: all(machine.is_ready for machine in machines.all))
    await lagging.kill()
    await leader.node.group.writes.propose(create("a"))
    for number in range(_RECORDS):
        await leader.node.group.writes.propose(append("a", b"%0500d" % number))
    for machine in machines.all:
        if machine is not lagging:
            await machine.node.group.storage.compact()
    return leader, lagging


def flow(leader: Machine, follower: Machine) -> str:
    return leader.node.group.view.peers()[follower.node_id].state


def has_caught_up(follower: Machine, leader: Machine) -> bool:
    if follower.running is None:
        return False
    return follower.node.group.view.applied_index == leader.node.group.view.commit_index


def incoming(machine: Machine) -> Path:
    return machine.path / "incoming"


async def content(machine: Machine) -> bytes:
    return await read_all(machine.node, "a")


def after_pieces(lagging: Machine, count: int) -> trio.Event:
    """An event that is set when the follower has stored that many more pieces."""
    until = lagging.calls["take"] + count
    reached = trio.Event()

    def on_call(call: str) -> None:
        if call == "take" and lagging.calls["take"] == until:
            reached.set()

    lagging.on_call = on_call
    return reached


def test_a_follower_that_needs_compacted_entries_gets_a_raft_snapshot_in_pieces(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, lagging = await let_one_lag(machines)
        machines.start(lagging)
        await wait_until(lambda: has_caught_up(lagging, leader))
        assert lagging.calls["take"] > 5
        assert lagging.calls["install"] == 1
        assert await content(lagging) == await content(leader)
        assert not incoming(lagging).exists()

    play(scenario)


def test_a_transfer_is_slow_during_writes_and_fast_without_them(play: Play) -> None:
    async def ten_pieces_s(machines: Machines, writers: int) -> float:
        leader, lagging = await let_one_lag(machines)

        async def write_on() -> None:
            for number in count():
                await leader.node.group.writes.propose(append("a", b"%d" % number))

        async with trio.open_nursery() as nursery:
            for _ in range(writers):
                nursery.start_soon(write_on)
            begun = after_pieces(lagging, 1)
            machines.start(lagging)
            await begun.wait()
            started = trio.current_time()
            await after_pieces(lagging, 10).wait()
            took_s = trio.current_time() - started
            await wait_until(lambda: has_caught_up(lagging, leader))
            nursery.cancel_scope.cancel()
        return took_s

    async def scenario(machines: Machines) -> None:
        alone_s = await ten_pieces_s(machines, writers=0)
        assert await ten_pieces_s(machines, writers=8) > 1.2 * alone_s

    play(scenario)


@pytest.mark.long
def test_after_a_broken_connection_the_transfer_continues_with_the_next_piece(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, lagging = await let_one_lag(machines)
        machines.start(lagging)
        breaks = 0
        while not lagging.calls["install"]:
            breaks += 1
            assert breaks < 30, "it does not come nearer to its end"
            with trio.move_on_after(30):
                await after_pieces(lagging, 1).wait()
            machines.part(leader, lagging)
            # Longer than the silence limit of a connection.
            await trio.sleep(8)
            machines.heal()
        await wait_until(lambda: has_caught_up(lagging, leader))
        assert leader.calls["open"] == 1, "one Raft snapshot, whatever happened to the connections"
        assert leader.calls["piece"] <= 2 * lagging.calls["take"]
        assert leader.calls["close"] == 1
        assert await content(lagging) == await content(leader)

    play(scenario)


def test_a_restarted_follower_continues_with_the_pieces_on_its_disk(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, lagging = await let_one_lag(machines)
        machines.start(lagging)
        for _ in range(2):
            await after_pieces(lagging, 3).wait()
            await lagging.kill()
            await trio.sleep(2)
            machines.start(lagging)
        await wait_until(lambda: has_caught_up(lagging, leader))
        assert leader.calls["open"] == 1
        pieces = len(await content(leader)) // _PIECE_BYTES
        assert leader.calls["piece"] < 2 * pieces
        assert await content(lagging) == await content(leader)

    play(scenario)


@pytest.mark.long
def test_a_transfer_to_a_vanished_follower_fails_and_another_begins_on_its_return(
    play: Play,
) -> None:
    async def scenario(machines: Machines) -> None:
        leader, lagging = await let_one_lag(machines)
        machines.start(lagging)
        await after_pieces(lagging, 2).wait()
        await lagging.kill()
        assert flow(leader, lagging) == "snapshot"
        await wait_until(
            lambda: flow(leader, lagging) != "snapshot", shipping.PATIENCE_S + _BOUND_S
        )
        assert leader.calls["close"] == 1, "a held Raft snapshot takes up disk space"
        machines.start(lagging)
        await wait_until(lambda: has_caught_up(lagging, leader))
        assert leader.calls["open"] == 2
        assert await content(lagging) == await content(leader)

    play(scenario)


def test_a_removed_follower_gets_no_more_pieces(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, lagging = await let_one_lag(machines)
        machines.start(lagging)
        await after_pieces(lagging, 2).wait()
        machines.part(leader, lagging)
        administration = leader.node.administration
        assert administration is not None
        await administration.perform(Remove(lagging.node_id))
        await wait_until(lambda: leader.calls["close"] == 1, shipping.RETRY_S + 20)
        machines.heal()
        await trio.sleep(5)
        assert leader.calls["open"] == 1

    play(scenario)


def test_a_deposed_leader_stops_sending_and_its_successor_starts_over(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, lagging = await let_one_lag(machines)
        third = next(m for m in machines.all if m not in (leader, lagging))
        machines.start(lagging)
        await after_pieces(lagging, 2).wait()
        leader.node.group.view.transfer(third.node_id)
        await wait_until(lambda: third.leads)
        await wait_until(lambda: has_caught_up(lagging, third))
        assert leader.calls["close"] == 1
        assert lagging.calls["install"] == 1
        assert await content(lagging) == await content(third)

    play(scenario)


def test_an_installation_longer_than_the_leaders_patience_is_not_disturbed(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, lagging = await let_one_lag(machines)
        machines.start(lagging)

        def on_call(call: str) -> None:
            if call == "finish":
                lagging.disk_s = 20.0
            elif call == "install":
                lagging.disk_s = 0.001

        lagging.on_call = on_call
        await wait_until(lambda: has_caught_up(lagging, leader), 200)
        assert lagging.calls["install"] == 1
        assert leader.calls["open"] == 1
        assert await content(lagging) == await content(leader)

    play(scenario)


@pytest.mark.long
def test_a_follower_does_other_work_during_a_long_installation(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        _, lagging = await let_one_lag(machines)
        begun = trio.Event()

        def on_call(call: str) -> None:
            if call == "install":
                lagging.disk_s = 3 * shipping.KEPT_S
                begun.set()

        lagging.on_call = on_call
        machines.start(lagging)
        await begun.wait()
        lagging.disk_s = 0.001
        # Nobody sends more pieces.
        for machine in machines.all:
            if machine is not lagging:
                await machine.kill()
        await trio.sleep(2 * shipping.KEPT_S)
        assert lagging.node.group.storage.is_installing
        await wait_until(lambda: not lagging.node.group.storage.is_installing, 2 * shipping.KEPT_S)
        assert b"%0500d" % (_RECORDS - 1) in await content(lagging)

    play(scenario)


def test_pieces_of_a_sender_that_never_returned_are_removed(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, lagging = await let_one_lag(machines)
        machines.start(lagging)
        await after_pieces(lagging, 2).wait()
        await lagging.kill()
        assert incoming(lagging).exists()
        await leader.kill()
        # Without a leader, no other transfer begins.
        third = next(m for m in machines.all if m not in (leader, lagging))
        await third.kill()
        machines.start(lagging)
        await trio.sleep(shipping.KEPT_S / 2)
        assert incoming(lagging).exists(), "the sender may yet come back"
        await wait_until(lambda: not incoming(lagging).exists(), shipping.KEPT_S + _BOUND_S)

    play(scenario)


def test_the_log_is_kept_for_a_follower_whose_raft_snapshot_takes_long(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would need another Raft snapshot as soon as it has this one, for ever."""
    monkeypatch.setattr("streamd.group.state_flusher.CHECKPOINT_BYTES", 8_000)

    async def scenario(machines: Machines) -> None:
        leader, lagging = await let_one_lag(machines)
        lagging.disk_s = 0.5
        machines.start(lagging)
        await after_pieces(lagging, 1).wait()
        began_at = leader.node.group.view.first_index
        while not lagging.calls["install"]:
            await leader.node.group.writes.propose(append("a", bytes(400)))
            await trio.sleep(0.1)
        lagging.disk_s = 0.001
        await wait_until(lambda: has_caught_up(lagging, leader))
        assert leader.calls["open"] == 1
        assert await content(lagging) == await content(leader)
        # Entries that nobody needs are compacted as before.
        for _ in range(60):
            await leader.node.group.writes.propose(append("a", bytes(400)))
        await wait_until(lambda: leader.node.group.view.first_index > began_at)

    play(scenario)


def test_limits_and_what_buckets_count_arrive_with_a_raft_snapshot(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await machines.leader()
        await leader.node.group.writes.propose(create("older"))
        await leader.node.group.writes.propose(append("older", b"older"))
        quota = Limits(max_bytes=5 + 500 * _RECORDS)
        await leader.node.group.writes.propose(SetLimits("bucket", "*", quota))
        leader, lagging = await let_one_lag(machines)
        machines.start(lagging)
        await wait_until(lambda: has_caught_up(lagging, leader))
        assert lagging.calls["install"] == 1
        state, others = lagging.node.group.state, leader.node.group.state
        assert state.limits.of_bucket("bucket") == quota
        assert state.header.counts
        assert state.buckets.get(b"bucket") == others.buckets.get(b"bucket")
        bucket = state.buckets.get(b"bucket")
        assert bucket is not None
        assert (bucket.size, bucket.counted) == (quota.max_bytes, 2)
        refused = await leader.node.group.writes.propose(append("a", b"x"))
        assert refused.result is Result.BUCKET_FULL
        await wait_until(lambda: has_caught_up(lagging, leader))
        assert state.limits.refusals == {"bucket-full": 1}

    play(scenario)


def test_a_node_of_a_release_without_quotas_gets_no_state_of_a_cluster_with_them(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(machines: Machines) -> None:
        quota = SetLimits("bucket", "*", Limits(max_streams=9))
        await (await machines.leader()).node.group.writes.propose(quota)
        leader, lagging = await let_one_lag(machines)
        refused = 0
        check = shipping.SnapshotSender._check_understands

        def counting(sender: shipping.SnapshotSender, peer_id: int) -> None:
            nonlocal refused
            try:
                check(sender, peer_id)
            except SnapshotUnavailable:
                refused += 1
                raise

        monkeypatch.setattr(shipping.SnapshotSender, "_check_understands", counting)
        with monkeypatch.context() as later:
            later.setattr(Cluster, "log_format_of", lambda *_: LIMITS_FORMAT - 1)
            machines.start(lagging)
            await wait_until(lambda: refused > 1)
            assert lagging.calls["take"] == 0
        await wait_until(lambda: has_caught_up(lagging, leader))
        assert lagging.calls["install"] == 1

    play(scenario)
