"""Writes show at once, and end as the stream says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from itertools import chain, cycle

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio

from streamd.client import AsyncClient, StreamClosed
from streamd.state import InvalidEvent, InvalidValue, StateError
from streamd.state.db import DatabaseClosed
from streamd.state.db.lanes import Lanes
from streamd.state.db.writes import Writes
from streamd.state.tables import Table
from tests.state.events import change
from tests.state_db.chat import Chat, Stream, User, names, run
from tests.support.cutting_proxy import CuttingProxy
from tests.support.server_process import ServerProcess

ANN, BOB = change("insert", "1", {"name": "Ann"}), change("insert", "2", {"name": "Bob"})


def test_a_write_shows_at_once_and_returns_when_the_stream_has_it(
    stream: Stream, backend: str
) -> None:
    async def main() -> None:
        async with stream.ready() as db:
            users = db.users
            feed, before = users.changes(), db.offset
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(users.insert, User("1", "Ann"))
                while "1" not in users:
                    await anyio.lowlevel.checkpoint()
                assert db.offset == before
            assert db.offset > before
            txid = await users.update(User("1", "Eve"))
            await users.upsert(User("2", "Bob"))
            await users.delete("2")
            assert names(db) == {"1": "Eve"}
            heard = [await anext(feed) for _ in range(4)]
            assert [each.operation for each in heard] == [
                "insert", "update", "insert", "delete",
            ]  # fmt: skip
            assert heard[1].txid == txid

    run(backend, main)


def test_events_written_together_are_one_transaction(stream: Stream, backend: str) -> None:
    async def main() -> None:
        async with stream.ready() as db:
            txid = await db.write(
                Chat.users.insert(User("1", "Ann"), txid="mine"),
                Chat.flags.insert(True, key="new"),
            )
            assert txid == "mine"
            assert (names(db), dict(db.flags)) == ({"1": "Ann"}, {"new": True})
            assert [each["headers"]["txid"] for each in stream.messages()] == ["mine"] * 2
            await db.wait_for("mine")
            with pytest.raises(StateError, match="nothing to write"):
                await db.write()

    run(backend, main)


def test_a_refused_write_is_taken_back(stream: Stream, backend: str) -> None:
    stream.append(ANN)

    async def main() -> None:
        async with stream.ready() as db, anyio.create_task_group() as tasks:
            shown: list[str] = []

            async def watch() -> None:
                while db.users["1"].name == "Ann":
                    await anyio.lowlevel.checkpoint()
                shown.append(db.users["1"].name)

            tasks.start_soon(watch)
            await anyio.lowlevel.checkpoint()
            with pytest.raises(InvalidValue):
                await db.users.update({"id": "1", "name": 5})  # type: ignore[arg-type]
            stream.close()
            with pytest.raises((StreamClosed, DatabaseClosed)):
                await db.users.update(User("1", "Eve"))
            assert shown == ["Eve"]
            assert names(db) == {"1": "Ann"}

    run(backend, main)


def test_anyone_can_wait_for_a_transaction(stream: Stream, backend: str) -> None:
    async def main() -> None:
        async with stream.ready() as db, anyio.create_task_group() as tasks:
            tasks.start_soon(db.wait_for, "theirs")
            tasks.start_soon(db.wait_for, "theirs")
            with anyio.move_on_after(0) as scope:
                await db.wait_for("theirs")
            assert scope.cancelled_caught
            stream.append(change("insert", "1", {}, type_="other", headers={"txid": "theirs"}))

    run(backend, main)


def test_a_transaction_under_way_cannot_be_begun_again(stream: Stream, backend: str) -> None:
    async def main() -> None:
        async with stream.ready() as db:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(db.write, Chat.users.insert(User("1"), txid="mine"))
                while "1" not in db.users:
                    await anyio.lowlevel.checkpoint()
                with pytest.raises(StateError, match="'mine' is under way"):
                    await db.write(Chat.users.insert(User("2"), txid="mine"))
            assert list(db.users) == ["1"]

    run(backend, main)


def test_a_write_that_no_reader_could_apply_is_refused(stream: Stream, backend: str) -> None:
    async def main() -> None:
        async with stream.ready() as db:
            with pytest.raises(InvalidEvent):
                await db.flags.insert(True, key="\ud83d")
            assert dict(db.flags) == {}
        assert list(stream.messages()) == []

    run(backend, main)


def test_the_rows_of_a_transaction_settle_together() -> None:
    """The stream may bring its events in two batches."""
    writes, users = Writes(), Table(Chat.users)
    writes.begin("t", [(users, "1", User("1", "a")), (users, "2", User("2", "b"))], 2)
    users.put("1", User("1", "a"))
    writes.came({"t": 1})
    assert [user.name for user in users.values()] == ["a", "b"]
    users.put("2", User("2", "b"))
    users.put("1", User("1", "later"))
    writes.came({"t": 1})
    assert [user.name for user in users.values()] == ["later", "b"]


def test_waits_end_with_the_database(stream: Stream, backend: str) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            ended = []

            async def wait(db: Chat) -> None:
                with pytest.raises(DatabaseClosed):
                    await db.wait_for("never")
                ended.append(True)

            async with stream.ready() as db:
                tasks.start_soon(wait, db)
                await anyio.wait_all_tasks_blocked()
            with pytest.raises(DatabaseClosed):
                await db.write(Chat.users.delete("1"))
        assert ended

    run(backend, main)


def test_writes_are_stored_once_over_kills_of_the_server(
    server: ServerProcess, stream: Stream, backend: str
) -> None:
    async def write(db: Chat, writer: int, written: list[str], done: anyio.Event) -> None:
        while not written or not done.is_set():
            name = f"{writer}-{len(written)}"
            written.append(name)
            await db.users.upsert(User(str(writer), name))

    async def main() -> None:
        done, written = anyio.Event(), [list[str]() for _ in range(8)]
        async with stream.ready() as db:
            async with anyio.create_task_group() as tasks:
                for writer, names_ in enumerate(written):
                    tasks.start_soon(write, db, writer, names_, done)
                for _ in range(2):
                    at = db.offset
                    while db.offset == at:
                        await anyio.lowlevel.checkpoint()
                    await anyio.to_thread.run_sync(server.kill)
                    server.start()
                    await anyio.to_thread.run_sync(server.wait_ready)
                done.set()
            stored = [event["value"]["name"] for event in stream.messages()]
            assert sorted(stored) == sorted(chain(*written))
            assert names(db) == {str(n): each[-1] for n, each in enumerate(written)}

    run(backend, main)


def test_a_write_whose_answer_is_lost_is_stored_once(
    server: ServerProcess, stream: Stream, backend: str
) -> None:
    budgets = cycle([600, 1500, 900, 3000])

    async def main() -> None:
        with CuttingProxy(server.port, lambda: next(budgets)) as proxy:
            async with (
                AsyncClient(proxy.url, retry_for_s=60) as client,
                Chat(client.stream(stream.name)) as db,
            ):
                await db.ready()
                for number in range(20):
                    await db.users.upsert(User("1", str(number)))
            assert proxy.cuts > 3
        assert [each["value"]["name"] for each in stream.messages()] == [*map(str, range(20))]

    run(backend, main)


def test_a_transaction_that_is_named_is_taken_once(stream: Stream, backend: str) -> None:
    """As by a process that died before it knew, and writes it again."""

    async def main() -> None:
        for txid in ("order-7", "bestellung-ü", "x" * 1000):
            for _ in range(3):
                async with stream.ready() as db:
                    written = await db.write(Chat.flags.insert(True, key=txid, txid=txid))
                    assert written == txid
                    assert db.flags[txid] is True
        assert len(list(stream.messages())) == 3

    run(backend, main)


def test_a_write_to_a_stream_that_was_created_again_is_stored(stream: Stream, backend: str) -> None:
    async def main() -> None:
        async with AsyncClient(stream.server_url) as client:
            lanes = Lanes(client.stream(stream.name))
            for _ in range(2):
                await lanes.append([b"1"])
            stream.delete()
            stream.create()
            for _ in range(2):
                await lanes.append([b"2"])
            assert list(stream.messages()) == [2, 2]

    run(backend, main)


def test_a_write_that_was_abandoned_takes_no_later_one_with_it(
    server: ServerProcess, stream: Stream, backend: str
) -> None:
    """Its request may arrive after all: a later write must not pass for its repetition."""

    async def main() -> None:
        async with stream.ready() as db:
            for number in range(20):
                with anyio.move_on_after(0.001 * (number % 5)):
                    await db.users.upsert(User("1", str(number)))
                await db.users.upsert(User("2", str(number)))
            stored = [each["value"]["name"] for each in stream.messages() if each["key"] == "2"]
            assert stored == [*map(str, range(20))]

    run(backend, main)


def test_waits_end_at_the_time_limits_of_the_event_loop(
    server: ServerProcess, stream: Stream, backend: str
) -> None:
    """`asyncio.timeout` and `trio.fail_after` are the way to limit any wait."""

    async def limited(db: Chat, *waits: Awaitable[object]) -> None:
        for wait in waits:
            if backend == "trio":
                with pytest.raises(trio.TooSlowError), trio.fail_after(0.05):
                    await wait
            else:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await wait

    async def main() -> None:
        async with stream.ready() as db:
            await limited(db, db.wait_for("never"), db.wait_for(offset="9"))
            await anyio.to_thread.run_sync(server.kill)
            try:
                await limited(db, db.users.insert(User("1", "Ann")))
                assert names(db) == {}
            finally:
                server.start()
                await anyio.to_thread.run_sync(server.wait_ready)
        with CuttingProxy(server.port, lambda: 1) as proxy:
            async with (
                AsyncClient(proxy.url, retry_for_s=60) as client,
                Chat(client.stream(stream.name)) as db,
            ):
                await limited(db, db.ready())

    run(backend, main)
