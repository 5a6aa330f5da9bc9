"""Writes show at once, and end as the stream says."""

from __future__ import annotations

from contextlib import suppress

import anyio
import anyio.lowlevel
import pytest

from streamd.client import (
    OutcomeUnknown,
    StreamClosed,
    Unreachable,
)
from streamd.state import (
    InvalidEvent,
    InvalidValue,
    MaterializedState,
    StateError,
)
from streamd.state.db import DatabaseClosed, StreamDB
from streamd.state.db.writes import Writes
from streamd.state.tables import Table
from tests.state.events import change, decoded
from tests.state_db.chat import Chat, Stream, User, names, run, wait_until
from tests.support.server_process import ServerProcess

ANN, BOB = change("insert", "1", {"name": "Ann"}), change("insert", "2", {"name": "Bob"})


def test_a_write_shows_at_once_and_returns_when_the_stream_has_it(
    stream: Stream, backend: str
) -> None:
    async def main() -> None:
        async with stream.ready() as db:
            users = db[Chat.users]
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
                await db.users.update({"id": "1", "name": 5})
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

            async def wait(db: StreamDB) -> None:
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


def test_writes_of_unknown_outcome_leave_what_the_stream_says(
    server: ServerProcess, stream: Stream, backend: str
) -> None:
    """The server is killed under writes: each is confirmed, or raises and is taken back."""

    async def write(db: StreamDB, writer: int, done: anyio.Event) -> None:
        number = 0
        while number == 0 or not done.is_set():
            with suppress(OutcomeUnknown, Unreachable):
                await db.users.upsert(User(str(writer), f"{number}"))
                number += 1

    async def main() -> None:
        done = anyio.Event()
        async with stream.ready() as db:
            async with anyio.create_task_group() as tasks:
                for writer in range(8):
                    tasks.start_soon(write, db, writer, done)
                for _ in range(2):
                    at = db.offset
                    while db.offset == at:
                        await anyio.lowlevel.checkpoint()
                    await anyio.to_thread.run_sync(server.kill)
                    server.start()
                    await anyio.to_thread.run_sync(server.wait_ready)
                done.set()
            await wait_until(db, stream.append(change("delete", "last")))
            state = MaterializedState()
            state.apply_batch([decoded(event) for event in stream.messages()])
            assert {key: value["name"] for key, value in state.get_type("user").items()} == (
                names(db)
            )
            assert set(names(db)) == {str(writer) for writer in range(8)}

    run(backend, main)
