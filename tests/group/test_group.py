"""The group's turns: batching, backpressure, cancellation, storing, recovery."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from streamd.group import group, state_flusher, sweeping
from streamd.group.group import Group
from streamd.group.proposals import Settled, Unavailable, outcome_in
from streamd.node.node import Node
from streamd.streams import keys
from streamd.streams.chunks import Window
from streamd.streams.commands import Delete, Result
from streamd.streams.offsets import START
from tests.support.directories import copy_in_use
from tests.support.nodes import (
    Clock,
    Witness,
    append,
    append_to,
    create,
    key,
    read_all,
    running_node,
    wait_until,
)


async def _append_together(node: Node, name: str, count: int, size: int = 20) -> None:
    async def one(number: int) -> None:
        outcome = await append_to(node, name, b"%0*d" % (size, number))
        assert outcome.result is Result.APPENDED

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(one, number)


# -- batching -------------------------------------------------------------------------------------


async def test_appends_that_wait_together_share_log_entries(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
        before = node.group.view.last_index
        await _append_together(node, "a", 500)
        assert node.group.view.last_index - before <= 3
        content = await read_all(node, "a")
    assert len(content) == 500 * 20
    assert {int(content[i : i + 20]) for i in range(0, len(content), 20)} == set(range(500))


async def test_one_entry_holds_a_bounded_number_of_commands_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "MAX_BATCH_COMMANDS", 10)
    monkeypatch.setattr(group, "MAX_BATCH_BYTES", 1000)
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
        before = node.group.view.last_index
        await _append_together(node, "a", 40, size=20)
        assert node.group.view.last_index - before >= 4
        before = node.group.view.last_index
        await _append_together(node, "a", 10, size=400)
        assert node.group.view.last_index - before >= 5
        before = node.group.view.last_index
        await append_to(node, "a", b"x" * 5000)
        assert node.group.view.last_index - before == 1, "a large one goes alone, but goes"


async def test_a_watcher_hears_of_commands_before_anyone_hears_of_their_outcomes(
    tmp_path: Path,
) -> None:
    """Kept answers end by it: one that outlived the answer to a write would be out of date."""
    heard: list[str] = []
    async with running_node(tmp_path) as node:
        node.group.watch(
            lambda commands: heard.append(f"applied {len(commands)}"),
            lambda: heard.append("turned") if heard else None,
        )

        def tell(_: Sequence[Settled]) -> None:
            heard.append("told")

        node.group.writes.submit([create("a")], 0, tell)
        node.group.writes.submit([create("b")], 0, tell)
        await wait_until(lambda: "turned" in heard)
    assert heard[:4] == ["applied 2", "told", "told", "turned"]


# -- turns ----------------------------------------------------------------------------------------


class Turns:
    """Counts the turns of a group, at times without ticks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: trio.testing.MockClock) -> None:
        self.count = 0
        self._clock = clock
        clock.rate = 10.0  # until the node leads
        real = Group._turn

        def turn(group: Group, nursery: trio.Nursery) -> None:
            self.count += 1
            real(group, nursery)

        monkeypatch.setattr(Group, "_turn", turn)

    @asynccontextmanager
    async def without_ticks(self) -> AsyncIterator[None]:
        self._clock.rate = 0.0
        await trio.testing.wait_all_tasks_blocked()
        self.count = 0
        yield
        self._clock.rate = 10.0


async def test_many_wakes_before_a_turn_cause_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    turns = Turns(monkeypatch, mock_clock)
    async with running_node(tmp_path) as node, turns.without_ticks():
        for _ in range(3):
            node.group.storage.snapshot_ended(2, None)
        assert turns.count == 0
        await trio.testing.wait_all_tasks_blocked()
        assert turns.count == 1


async def test_a_message_of_a_peer_is_acted_on_at_once_unless_a_turn_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    turns = Turns(monkeypatch, mock_clock)
    async with running_node(tmp_path) as node, turns.without_ticks():
        node.group.step([])
        assert turns.count == 1
        node.group.storage.snapshot_ended(2, None)
        node.group.step([])
        assert turns.count == 1
        await trio.testing.wait_all_tasks_blocked()
        assert turns.count == 2


async def test_writes_gathered_in_a_block_are_one_entry_and_wait_for_no_pass_of_the_loop(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
        before = node.group.view.last_index
        outcomes: list[Settled] = []
        with node.group.writes.gathering:
            for _ in range(3):
                node.group.writes.submit([append("a", b"x")], 1, outcomes.extend)
            assert node.group.view.last_index == before
        assert node.group.view.last_index == before + 1
        await wait_until(lambda: len(outcomes) == 3)
        assert [outcome_in(one).tail.record for one in outcomes] == [1, 2, 3]


async def test_a_write_to_rows_in_memory_reads_nothing_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
        read: list[list[bytes]] = []
        monkeypatch.setattr(node.stores.state, "get_many", read.append)
        await append_to(node, "a", b"x")
        assert read == []


async def test_a_read_waits_until_all_that_is_committed_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at a restart, which commits the whole log in the turn before it is applied."""
    async with running_node(tmp_path) as node, trio.open_nursery() as nursery:
        await node.group.writes.propose(create("a"))
        real, is_held = node.group._turn, False

        def turn(nursery: trio.Nursery) -> None:
            nonlocal is_held
            if not is_held:
                real(nursery)
                is_held = node.group._writer.is_storing

        monkeypatch.setattr(node.group._loop, "_take", turn)
        nursery.start_soon(append_to, node, "a", b"x")
        await wait_until(lambda: node.group.view.commit_index > node.group.view.applied_index)
        committed, seen = node.group.view.commit_index, []

        async def read() -> None:
            await node.group.reads.catch_up()
            seen.append(node.group.view.applied_index)

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        monkeypatch.setattr(node.group._loop, "_take", real)
        await wait_until(lambda: bool(seen))
        assert seen[0] >= committed


# -- backpressure and cancellation ----------------------------------------------------------------


async def test_writes_beyond_the_queue_limit_are_refused_without_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "MAX_PENDING_COMMANDS", 10)
    refused = 0

    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))

        async def one() -> None:
            nonlocal refused
            try:
                await append_to(node, "a", b"x")
            except Unavailable:
                refused += 1

        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(one)
        assert refused == 20
        assert len(await read_all(node, "a")) == 10


async def test_a_cancelled_caller_does_not_disturb_others(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
        for number in range(50):
            with trio.move_on_after(0):
                await append_to(node, "a", b"<given up>")
            await append_to(node, "a", b"<%d>" % number)
        content = await read_all(node, "a")
    assert content.replace(b"<given up>", b"") == b"".join(b"<%d>" % n for n in range(50))


# -- telling live readers -------------------------------------------------------------------------


async def test_writers_are_answered_before_live_readers_hear(tmp_path: Path) -> None:
    witness = Witness()
    async with running_node(tmp_path, listener=witness) as node:
        await node.group.writes.propose(create("a"))
        await append_to(node, "a", b"news")
        assert not witness.told
        await wait_until(lambda: len(witness.told) == 1)
        (change,) = witness.told[0].values()
        assert change.parts == [b"news"]


async def test_changes_are_not_kept_without_a_listener(tmp_path: Path) -> None:
    witness = Witness()
    witness.present = False
    async with running_node(tmp_path, listener=witness) as node:
        await node.group.writes.propose(create("a"))
        await append_to(node, "a", b"news")
        assert not node.group.machine.changes
        witness.present = True
        await append_to(node, "a", b"more")
        await wait_until(lambda: bool(witness.told))
        (change,) = witness.told[0].values()
        assert change.parts == [b"more"]


# -- time -----------------------------------------------------------------------------------------


async def test_log_time_never_goes_back_when_the_clock_does(tmp_path: Path) -> None:
    clock = Clock(5_000_000)
    async with running_node(tmp_path, clock=clock) as node:
        await node.group.writes.propose(create("a"))
        clock.now_ms = 1_000_000
        await append_to(node, "a", b"x")
        stream = await node.reads.stream(key("a"))
        assert stream is not None
        # Until the clock has caught up, log time goes on more slowly.
        assert 5_000_000 <= stream.last_write_ms <= node.group.now_ms() < 5_060_000


async def test_an_expired_stream_is_removed_without_a_request(tmp_path: Path) -> None:
    clock = Clock()
    async with running_node(tmp_path, clock=clock) as node:
        await node.group.writes.propose(create("short", ttl_ms=10_000))
        await node.group.writes.propose(create("long", ttl_ms=1_000_000))
        await node.group.storage.flush()
        clock.now_ms += 10_000
        await wait_until(lambda: node.group.state.header.streams == 1)
        assert await node.reads.stream(key("short")) is None
        assert await node.reads.stream(key("long")) is not None


async def test_streams_that_expire_together_are_all_removed_in_one_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    many = 4 * sweeping.SWEEP_BATCH
    async with running_node(tmp_path, clock=clock) as node:
        async with trio.open_nursery() as nursery:
            for number in range(many):
                nursery.start_soon(node.group.writes.propose, create(f"s{number}", ttl_ms=10_000))
        await node.group.storage.flush()
        clock.now_ms += 10_000
        await wait_until(lambda: node.group.state.header.streams < many)
        monkeypatch.setattr(sweeping, "SWEEP_INTERVAL_S", 3600.0)
        await wait_until(lambda: node.group.state.header.streams == 0)


async def test_a_read_renews_the_window_through_the_log(tmp_path: Path) -> None:
    clock = Clock()
    async with running_node(tmp_path, clock=clock) as node:
        await node.group.writes.propose(create("a", ttl_ms=10_000))
        stream = await node.reads.stream(key("a"))
        assert stream is not None
        clock.now_ms += 8_000
        node.group.writes.touches.note(key("a"), stream.stream_id)
        read_at = clock.now_ms
        assert node.group.writes.touches.latest_ms(key("a"), stream.stream_id) == read_at
        await wait_until(lambda: stream.touched_ms == read_at)
        clock.now_ms += 8_000
        assert (await append_to(node, "a", b"x")).result is Result.APPENDED


# -- storing and recovery -------------------------------------------------------------------------


async def test_state_not_stored_before_a_crash_is_replayed_from_the_log(tmp_path: Path) -> None:
    live, image = tmp_path / "live", tmp_path / "image"
    async with running_node(live) as node:
        await node.group.writes.propose(create("a"))
        await append_to(node, "a", b"stored,")
        await node.group.storage.flush()
        await append_to(node, "a", b"only in the log")
        await node.group.writes.propose(create("b"))
        copy_in_use(live, image)
    async with running_node(image) as again:
        assert await read_all(again, "a") == b"stored,only in the log"
        assert await again.reads.stream(key("b")) is not None


async def test_a_compacted_log_is_enough_to_restart_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_flusher, "CHECKPOINT_BYTES", 10_000)
    monkeypatch.setattr(state_flusher, "FLUSH_INTERVAL_S", 0.01)
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
        written = 0
        with trio.fail_after(20):
            while node.stores.log.first_index < 10:
                await append_to(node, "a", b"x" * 1000)
                written += 1000
        assert node.stores.log.first_index <= node.group.view.applied_index
    async with running_node(tmp_path) as again:
        assert len(await read_all(again, "a")) == written
        await append_to(again, "a", b"more")
        assert (await read_all(again, "a")).endswith(b"xmore")


async def test_one_read_spans_stored_and_unstored_records(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("s"))
        await append_to(node, "s", b"one ")
    async with running_node(tmp_path) as node:
        await append_to(node, "s", b"two")
        stream = await node.reads.stream(key("s"))
        assert stream is not None
        found = await node.reads.read(stream, Window(START, 7))
        assert (b"".join(found.parts), found.end) == (b"one two", stream.tail)


async def test_restarts_neither_repeat_nor_lose_commands(tmp_path: Path) -> None:
    expected = b""
    for number in range(5):
        async with running_node(tmp_path) as node:
            if number == 0:
                await node.group.writes.propose(create("a"))
            assert await read_all(node, "a", max_bytes=7) == expected
            for part in (b"<%d>" % number, b"<%d again>" % number):
                await append_to(node, "a", part)
                expected += part


@pytest.mark.parametrize("max_bytes", [1, 5, 11, 25, 1000])
async def test_a_read_ends_before_a_record_that_does_not_fit_in_any_chunk(
    max_bytes: int, tmp_path: Path
) -> None:
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
        for chunk in range(3):
            for record in range(3):
                await append_to(node, "a", b"<%d %d %s>" % (chunk, record, b"." * record))
            await node.group.storage.flush()
        from_memory = await read_all(node, "a", max_bytes)
    async with running_node(tmp_path) as again:
        assert await read_all(again, "a", max_bytes) == from_memory
    assert from_memory.count(b">") == 9


async def test_the_rows_of_a_deleted_stream_are_reclaimed(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("gone"))
        await node.group.writes.propose(create("kept"))
        for _ in range(3):
            await append_to(node, "gone", b"x" * 1000)
            await append_to(node, "kept", b"y" * 1000)
            await node.group.storage.flush()
        gone = await node.reads.stream(key("gone"))
        assert gone is not None
        await node.group.writes.propose(Delete(key("gone")))

        def rows(stream_id: int) -> int:
            start, stop = keys.id_range(keys.CHUNK, stream_id)
            return len(node.stores.state.scan(start, stop, limit=100))

        assert rows(gone.stream_id)
        await wait_until(lambda: rows(gone.stream_id) == 0)
        assert await read_all(node, "kept") == b"y" * 3000


async def test_commands_of_one_entry_see_each_other(tmp_path: Path) -> None:
    results: list[Result] = []
    async with running_node(tmp_path) as node:

        async def ask(command: object) -> None:
            outcome = await node.group.writes.propose(command)  # type: ignore[arg-type]
            results.append(outcome.result)

        for command in (create("a"), append("a", b"1"), Delete(key("a")), append("a", b"2")):
            await ask(command)
    assert results == [Result.CREATED, Result.APPENDED, Result.DELETED, Result.NOT_FOUND]
