"""Collections follow a stream on a real server, on asyncio and on Trio."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from streamd.client import AsyncClient, StreamNotFound
from streamd.state import Policies, StateError, StateSchema, StreamReset, collection
from streamd.state.db import DatabaseClosed, Feed, FeedOverflow, SQLite, StreamDB
from streamd.state.tables import Change
from tests.state.events import change, control
from tests.state_db.chat import Chat, Stream, User, names, run, wait_until
from tests.support.server_process import ServerProcess

ANN, BOB = change("insert", "1", {"name": "Ann"}), change("insert", "2", {"name": "Bob"})


def test_rows_are_those_of_the_stream_and_follow_it(stream: Stream, backend: str) -> None:
    stream.append(ANN, change("insert", "new", True, type_="flag"))

    async def main() -> None:
        async with stream.ready() as db:
            assert db.users["1"] == User("1", "Ann")
            assert dict(db.flags) == {"new": True}
            assert (len(db.users), list(db.users), repr(db.users)) == (
                1, ["1"], "<1 rows of 'user'>",
            )  # fmt: skip
            await wait_until(db, stream.append(BOB, change("delete", "1")))
            assert names(db) == {"2": "Bob"}

    run(backend, main)


def test_collections_are_attributes_of_a_database(stream: Stream, backend: str) -> None:
    async def main() -> None:
        async with stream.ready() as db:
            assert db.users is db.users
            with pytest.raises(AttributeError, match="no attribute 'userz'"):
                _ = db.userz  # type: ignore[attr-defined]

    run(backend, main)


class Presence(StateSchema):
    seen = collection(type="seen")


class Both(Presence, Chat):
    pass


def test_a_database_has_the_collections_of_all_its_bases(stream: Stream, backend: str) -> None:
    stream.append(ANN, change("insert", "1", "today", type_="seen"))

    async def main() -> None:
        async with AsyncClient(stream.server_url) as client:
            db = Both(client.stream(stream.name))
            await db.preload()
            assert (names(db), dict(db.seen)) == ({"1": "Ann"}, {"1": "today"})
            await db.close()

    run(backend, main)


def test_rows_are_found_by_index_and_predicate(stream: Stream, backend: str) -> None:
    stream.append(
        *(change("insert", str(n), {"team": "red" if n % 2 else "blue"}) for n in range(6))
    )

    async def main() -> None:
        async with stream.ready() as db:
            found = db.users.where(lambda user: user.id > "1", team="red")
            assert [user.id for user in found] == ["3", "5"]

    run(backend, main)


class TestChanges:
    @pytest.mark.long
    def test_a_feed_has_each_change_once_in_order(self, stream: Stream, backend: str) -> None:
        stream.append(ANN)

        async def main() -> None:
            async with stream.ready() as db:
                feed = db.users.changes()
                for number in range(100):
                    stream.append(change("update", "1", {"name": str(number)}))
                heard = [(await anext(feed)).value for _ in range(100)]
                assert heard == [User("1", str(number)) for number in range(100)]

        run(backend, main)

    def test_a_feed_ends_with_the_database(self, stream: Stream, backend: str) -> None:
        async def main() -> None:
            async with stream.ready() as db:
                feed = db.users.changes()
                await wait_until(db, stream.append(ANN))
            assert [each.key async for each in feed] == ["1"]

        run(backend, main)

    def test_a_feed_ends_with_the_stream(self, stream: Stream, backend: str) -> None:
        async def main() -> None:
            async with stream.ready() as db:
                feed = db.users.changes()
                stream.append(ANN)
                stream.close()
                assert [each.key async for each in feed] == ["1"]
                assert names(db) == {"1": "Ann"}
                with pytest.raises(DatabaseClosed, match="the stream is closed"):
                    await db.users.delete("1")

        run(backend, main)

    def test_a_slow_reader_gets_what_waited_and_then_an_error(
        self, stream: Stream, backend: str
    ) -> None:
        async def main() -> None:
            async with stream.ready() as db:
                slow, other = db.users.changes(max_waiting=2), db.users.changes()
                await wait_until(db, stream.append(ANN, BOB, change("delete", "1")))
                assert [(await anext(slow)).key for _ in range(2)] == ["1", "2"]
                for _ in range(2):
                    with pytest.raises(FeedOverflow, match="more than 2 changes"):
                        await anext(slow)
                assert [(await anext(other)).operation for _ in range(3)] == [
                    "insert", "insert", "delete",
                ]  # fmt: skip

        run(backend, main)

    def test_a_feed_that_ended_takes_in_nothing(self, stream: Stream, backend: str) -> None:
        async def main() -> None:
            async with stream.ready() as db:
                feed = db.users.changes()
                feed.end()
                feed.end()
                await wait_until(db, stream.append(ANN))
                assert [each async for each in feed] == []

        run(backend, main)

    def test_a_reset_is_a_change(self, stream: Stream, backend: str) -> None:
        stream.append(ANN)

        async def main() -> None:
            async with stream.ready() as db:
                feed = db.users.changes()
                await wait_until(db, stream.append(control("reset"), BOB))
                heard = [await anext(feed) for _ in range(2)]
                assert heard == [Change("reset", ""), Change("insert", "2", User("2", "Bob"))]
                assert names(db) == {"2": "Bob"}

        run(backend, main)


class TestErrors:
    def test_a_refused_batch_ends_the_block_and_its_feeds(
        self, stream: Stream, backend: str
    ) -> None:
        stream.append(ANN)
        feeds: list[Feed[Any]] = []

        async def block() -> None:
            async with stream.ready(policies=Policies(reset="error")) as db:
                feeds.append(db.users.changes())
                stream.append(control("reset"))
                await anyio.sleep_forever()

        async def main() -> None:
            with pytest.raises(StreamReset):
                await block()
            with pytest.raises(StreamReset):
                await anext(feeds[0])

        run(backend, main)

    def test_an_error_reaches_those_that_wait(self, stream: Stream, backend: str) -> None:
        stream.append(control("reset"))
        waited: list[type[Exception]] = []

        async def wait(waiting: Callable[[], Awaitable[None]]) -> None:
            with anyio.CancelScope(shield=True):
                try:
                    await waiting()
                except StreamReset as error:
                    waited.append(type(error))

        async def block() -> None:
            async with (
                stream.following(policies=Policies(reset="error")) as db,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(wait, db.ready)
                tasks.start_soon(wait, lambda: db.wait_for("never"))

        async def main() -> None:
            with pytest.raises(StreamReset):
                await block()
            assert waited == [StreamReset] * 2

        run(backend, main)

    def test_a_stream_that_does_not_exist_is_an_error(self, stream: Stream, backend: str) -> None:
        stream.delete()

        async def main() -> None:
            with pytest.raises(StreamNotFound):
                async with stream.ready():
                    pass

        run(backend, main)

    def test_an_error_of_the_block_is_raised_as_it_is(self, stream: Stream, backend: str) -> None:
        async def main() -> None:
            with pytest.raises(ZeroDivisionError):
                async with stream.ready():
                    _ = 1 / 0

        run(backend, main)

    def test_warnings_are_logged_with_the_stream(
        self, stream: Stream, backend: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        stream.append(control("snapshot-end"), ANN)

        async def main() -> None:
            async with stream.ready() as db:
                assert names(db) == {"1": "Ann"}

        with caplog.at_level(logging.WARNING, "streamd.state"):
            run(backend, main)
        assert caplog.messages == [f"{stream.name}: snapshot-end without snapshot-start"]


def test_a_program_can_read_the_state_once(stream: Stream, backend: str) -> None:
    stream.append(ANN)

    async def main() -> None:
        async with AsyncClient(stream.server_url) as client:
            db = Chat(client.stream(stream.name))
            await db.preload()
            assert names(db) == {"1": "Ann"}
            stream.append(BOB)
            await db.preload()
            assert names(db) == {"1": "Ann", "2": "Bob"}
            with pytest.raises(DatabaseClosed):
                await db.users.delete("1")
            await db.close()
        async with stream.ready() as db:
            with pytest.raises(StateError, match="await ready"):
                await db.preload()

    run(backend, main)


def test_a_restart_of_the_server_repeats_nothing(
    server: ServerProcess, stream: Stream, backend: str
) -> None:
    async def main() -> None:
        async with stream.ready() as db:
            feed = db.users.changes()
            for number in range(4):
                stream.append(change("update", "1", {"name": str(number)}))
                heard = await anext(feed)
                assert heard.value == User("1", str(number))
                server.kill()
                server.start()
                server.wait_ready()

    run(backend, main)


def test_a_stream_that_is_not_json_is_refused(stream: Stream, backend: str) -> None:
    async def main() -> None:
        async with AsyncClient(stream.server_url) as client:
            other = client.stream(f"{stream.name}-text")
            await other.create("text/plain")
            with pytest.raises(StateError, match="is a stream of text/plain; state needs"):
                async with Chat(other) as db:
                    await db.ready()

    run(backend, main)


@pytest.mark.long
def test_large_values_arrive(stream: Stream, backend: str, tmp_path: Path) -> None:
    async def main() -> None:
        for store in (None, SQLite(tmp_path / "state.db")):
            async with stream.ready(store=store) as db:
                for length in (1_000_000, 8_000_000):
                    await db.users.upsert(User("1", "ü" * length))
                    assert db.users["1"].name == "ü" * length

    run(backend, main)


class Garbage(BaseHTTPRequestHandler):
    """A server whose answers say that they are JSON."""

    body = b""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(self.body)))
        self.send_header("Stream-Next-Offset", "1")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (its name)
        pass


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[1,", b'["\xff"]', b"[" * 100_000])
def test_garbage_is_an_error_and_changes_nothing(backend: str, tmp_path: Path, body: bytes) -> None:
    garbage = ThreadingHTTPServer(("127.0.0.1", 0), type("This", (Garbage,), {"body": body}))
    serving = threading.Thread(target=garbage.serve_forever)
    serving.start()

    async def main() -> None:
        url = f"http://127.0.0.1:{garbage.server_port}"
        for store in (None, SQLite(tmp_path / "state.db")):
            async with AsyncClient(url) as client:
                db = Chat(client.stream("state/garbage"), store=store)
                with pytest.raises(StateError, match="is not JSON"):
                    await db.preload()
                assert (db.offset, names(db)) == ("-1", {})
                await db.close()

    try:
        run(backend, main)
    finally:
        garbage.shutdown()
        serving.join()
        garbage.server_close()


class TestClosing:
    def test_a_closed_database_keeps_its_rows_and_takes_no_part(
        self, stream: Stream, backend: str, tmp_path: Path
    ) -> None:
        stream.append(ANN)

        async def main() -> None:
            async with stream.ready(store=SQLite(tmp_path / "state.db")) as db:
                await db.close()
                await db.close()
                offset = stream.append(BOB)
                assert db.offset < offset
                assert names(db) == {"1": "Ann"}
                assert [each async for each in db.users.changes()] == []
                for refused in (db.users.delete("1"), db.wait_for("t"), db.preload()):
                    with pytest.raises(StateError):
                        await refused
            with pytest.raises(StateError, match="entered once"):
                await db.__aenter__()

        run(backend, main)

    def test_waits_for_ready_end(self, stream: Stream, backend: str) -> None:
        async def main() -> None:
            async with stream.following() as db:
                await db.close()
                with pytest.raises(DatabaseClosed):
                    await db.ready()

        run(backend, main)

    def test_a_database_that_was_read_once_is_closed_for_good(
        self, stream: Stream, backend: str
    ) -> None:
        async def main() -> None:
            async with AsyncClient(stream.server_url) as client:
                db = Chat(client.stream(stream.name))
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(db.preload)
                    tasks.start_soon(db.preload)
                await db.close()
                for refused in (db.preload(), db.__aenter__()):
                    with pytest.raises(DatabaseClosed):
                        await refused

        run(backend, main)

    def test_a_database_can_be_made_before_its_event_loop(
        self, stream: Stream, backend: str
    ) -> None:
        client = AsyncClient(stream.server_url)
        db = Chat(client.stream(stream.name))

        async def main() -> None:
            async with client, db:
                await db.ready()

        run(backend, main)


def test_many_events_arrive(stream: Stream, backend: str) -> None:
    """More than one chunk, which are decoded in a thread."""
    for number in range(4):
        stream.append(
            *(change("upsert", str(key), {"name": f"{number}{'x' * 400}"}) for key in range(1000))
        )

    async def main() -> None:
        async with stream.ready() as db:
            assert len(db.users) == 1000
            assert {name[0] for name in names(db).values()} == {"3"}

    run(backend, main)


@pytest.mark.parametrize(
    "name", [name for name in vars(StreamDB) if not name.startswith("_")] + ["version"]
)
def test_a_collection_cannot_hide_what_a_database_has(name: str) -> None:
    with pytest.raises(ValueError, match=f"reserved name '{name}'"):
        type("Hidden", (StreamDB,), {name: collection(type="user")})
    mixed = (type("Base", (StateSchema,), {"offset": collection(type="user")}), StreamDB)
    with pytest.raises(ValueError, match="reserved name 'offset'"):
        type("Hidden", mixed, {})


def test_all_readers_of_a_feed_hear_its_end(stream: Stream, backend: str) -> None:
    async def main() -> None:
        async with stream.ready() as db:
            feed = db.users.changes()

            async def read() -> None:
                assert [change async for change in feed] == []

            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(read)
                await anyio.wait_all_tasks_blocked()
                feed.end()

    run(backend, main)
