"""A copy in SQLite: continued after a restart, and right after a kill at any moment."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest

from streamd.client import AsyncClient
from streamd.state import collection
from streamd.state.db import (
    SQLite,
    StoreConflict,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreNotFound,
    StoreReadOnly,
    compact,
)
from streamd.state.db.sqlite import Copied
from tests.state.events import change, control
from tests.state_db.chat import Chat, Stream, User, names, run, wait_until
from tests.state_db.copies import assert_true, kept

ROOT = Path(__file__).parents[2]


class LaterChat(Chat):
    version = 2


class ChatWithNotes(Chat):
    notes = collection(type="note")


ANN, BOB = change("insert", "1", {"name": "Ann"}), change("insert", "2", {"name": "Bob"})


def test_rows_and_offset_survive_a_restart(stream: Stream, backend: str, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    first = stream.append(ANN, change("insert", "new", [1.50, "ü"], type_="flag"))

    async def main() -> None:
        async with stream.ready(store=SQLite(path)) as db:
            assert (names(db), db.offset) == ({"1": "Ann"}, first)
        second = stream.append(BOB, change("delete", "1"))
        async with stream.following(store=SQLite(path)) as db:
            assert (names(db), db.offset, db.flags["new"]) == ({"1": "Ann"}, first, [1.5, "ü"])
            feed = db.users.changes()
            await wait_until(db, second)
            assert names(db) == {"2": "Bob"}
            heard = [(await anext(feed)).operation for _ in range(2)]
            assert heard == ["insert", "delete"]
            assert await db.users.insert(User("3", "Cy"))
        assert kept(path).events == 5

    run(backend, main)


def test_a_change_is_seen_after_it_is_kept(stream: Stream, backend: str, tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    async def main() -> None:
        async with stream.ready(store=SQLite(path)) as db:
            feed = db.users.changes()
            for number in range(20):
                stream.append(change("upsert", "1", {"name": str(number)}))
                assert (await anext(feed)).value == User("1", str(number))
                assert kept(path).rows["user", "1"] == {"name": str(number)}

    run(backend, main)


def test_values_are_kept_as_they_were_sent(stream: Stream, backend: str, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    digits, odd = "123456789012345678901234567890.10", '["\\ud83d","\\u0000"]'
    event = '{"type":"flag","key":"a\\u0000%s","value":%s,"headers":{"operation":"insert"}}'

    async def main() -> None:
        stream.append(f"[{event % ('1', digits)},{event % ('2', odd)}]".encode())
        for _ in range(2):
            async with stream.ready(store=SQLite(path)) as db:
                assert dict(db.flags) == {"a\x001": float(digits), "a\x002": ["\ud83d", "\0"]}
        with closing(sqlite3.connect(path)) as file:
            values = [row[0] for row in file.execute("SELECT value FROM rows ORDER BY key")]
            assert values[0] == digits
            assert json.loads(values[1]) == json.loads(odd)

    run(backend, main)


def test_a_reset_and_a_snapshot_are_kept(stream: Stream, backend: str, tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    async def main() -> None:
        stream.append(ANN)
        async with stream.ready(store=SQLite(path)) as db:
            await wait_until(db, stream.append(control("reset"), control("snapshot-start"), BOB))
        assert kept(path).rows == {("user", "2"): {"name": "Bob"}}
        stream.append(control("snapshot-end"))
        async with stream.ready(store=SQLite(path)) as db:
            assert names(db) == {"2": "Bob"}

    run(backend, main)


def test_two_databases_on_one_file_cannot_both_write(
    stream: Stream, backend: str, tmp_path: Path
) -> None:
    path = tmp_path / "state.db"

    async def block() -> None:
        async with (
            stream.ready(store=SQLite(path)) as first,
            AsyncClient(stream.server_url) as client,
        ):
            second = Chat(client.stream(stream.name), store=SQLite(path))
            await second.preload()
            await wait_until(first, stream.append(ANN))
            try:
                await second.preload()
            finally:
                await second.close()

    async def main() -> None:
        with pytest.raises(StoreConflict):
            await block()
        assert_true(path, [ANN])

    run(backend, main)


@contextmanager
def refused(match: str) -> Iterator[None]:
    with pytest.raises(StoreError, match=match):
        yield


class LimitedStore(SQLite):
    """A store on a connection with a limit."""

    def __init__(self, path: Path, limit: str) -> None:
        super().__init__(path)
        self._limit = limit

    def _opened(self, stream: str, schema: str) -> Copied:
        copied = super()._opened(stream, schema)
        self._execute(self._limit)
        return copied


class TestDisks:
    @pytest.mark.parametrize(
        ("limit", "error"),
        [
            ("PRAGMA max_page_count = 10", StoreFull),
            ("PRAGMA query_only = ON", StoreReadOnly),
        ],
    )
    def test_a_disk_that_takes_no_more_loses_nothing(
        self,
        stream: Stream,
        backend: str,
        tmp_path: Path,
        limit: str,
        error: type[StoreError],
    ) -> None:
        path = tmp_path / "state.db"
        events = [ANN]
        stream.append(ANN)

        async def block() -> None:
            async with stream.ready(store=LimitedStore(path, limit)) as db:
                assert names(db) == {"1": "Ann"}
                for number in range(10):
                    events.append(change("insert", f"long-{number}", {"name": "x" * 20_000}))
                    stream.append(events[-1])
                await anyio.sleep_forever()

        async def main() -> None:
            async with stream.ready(store=SQLite(path)):
                pass
            with pytest.raises(error):
                await block()
            assert_true(path, events)
            async with stream.ready(store=SQLite(path)) as db:
                assert len(db.users) == 11
            assert assert_true(path, events).events == 11

        run(backend, main)

    def test_a_directory_that_is_missing_is_named(
        self, stream: Stream, backend: str, tmp_path: Path
    ) -> None:
        async def main() -> None:
            with pytest.raises(StoreNotFound, match="none does not exist"):
                async with stream.ready(store=SQLite(tmp_path / "none" / "state.db")):
                    pass

        run(backend, main)

    @pytest.mark.parametrize("damage", ["pages", pytest.param("value", marks=pytest.mark.long)])
    def test_a_damaged_file_is_refused_and_made_again_without_it(
        self, stream: Stream, backend: str, tmp_path: Path, damage: str
    ) -> None:
        """A row that is dropped in silence would be lost: the offset is after its change."""
        path = tmp_path / "state.db"
        for number in range(50):
            stream.append(change("insert", str(number), {"name": "x" * 1000}))

        async def main() -> None:
            async with stream.ready(store=SQLite(path)):
                pass
            if damage == "pages":
                whole = path.read_bytes()
                path.write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))
            else:
                with closing(sqlite3.connect(path)) as file, file:
                    file.execute("UPDATE rows SET value = substr(value, 1, 30) WHERE key = '7'")
            for _ in range(2):
                with pytest.raises(StoreCorrupt):
                    async with stream.ready(store=SQLite(path)):
                        pass
            path.unlink()
            async with stream.ready(store=SQLite(path)) as db:
                assert len(db.users) == 50

        run(backend, main)


class TestFiles:
    def test_a_file_of_another_program_is_left_alone(
        self, stream: Stream, backend: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "theirs.db"
        with closing(sqlite3.connect(path)) as file:
            file.execute("CREATE TABLE rows (mine)")
        before = path.read_bytes()

        async def main() -> None:
            with refused("a database of another program"):
                async with stream.ready(store=SQLite(path)):
                    pass
            assert path.read_bytes() == before

        run(backend, main)

    def test_a_file_that_is_no_database_is_refused(
        self, stream: Stream, backend: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("not a database" * 100)

        async def main() -> None:
            with refused("not a database"):
                async with stream.ready(store=SQLite(path)):
                    pass

        run(backend, main)

    def test_a_later_format_is_refused(self, stream: Stream, backend: str, tmp_path: Path) -> None:
        path = tmp_path / "state.db"

        async def main() -> None:
            async with stream.ready(store=SQLite(path)):
                pass
            with closing(sqlite3.connect(path)) as file:
                file.execute("PRAGMA user_version = 2")
            with refused("has format 2; this release knows 1"):
                async with stream.ready(store=SQLite(path)):
                    pass

        run(backend, main)

    def test_a_copy_of_another_stream_is_refused(
        self, stream: Stream, backend: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "state.db"
        other = Stream(stream.server_url, f"{stream.name}-other")

        async def main() -> None:
            async with other.ready(store=SQLite(path)):
                pass
            with refused(f"holds the stream {other.name}"):
                async with stream.ready(store=SQLite(path)):
                    pass

        run(backend, main)

    def test_a_statement_that_fails_ends_the_database(
        self, stream: Stream, backend: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "state.db"

        async def block() -> None:
            async with stream.ready(store=SQLite(path)) as db:
                with closing(sqlite3.connect(path)) as file:
                    file.execute("DROP TABLE rows")
                await db.users.insert(User("1", "Ann"))

        async def main() -> None:
            with refused("no such table"):
                await block()

        run(backend, main)

    def test_a_database_can_be_entered_after_its_file_was_repaired(
        self, stream: Stream, backend: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "state.db"
        path.write_text("not a database" * 100)
        stream.append(ANN)

        async def main() -> None:
            async with AsyncClient(stream.server_url) as client:
                db = Chat(client.stream(stream.name), store=SQLite(path))
                with refused("not a database"):
                    await db.preload()
                path.unlink()
                async with db:
                    await db.ready()
                    assert names(db) == {"1": "Ann"}
            assert kept(path).events == 1

        run(backend, main)


class TestStartingOver:
    @pytest.mark.parametrize("other", [LaterChat, ChatWithNotes])
    def test_another_schema_rebuilds_the_copy(
        self, stream: Stream, backend: str, tmp_path: Path, other: type[Chat]
    ) -> None:
        """Otherwise a new collection would lack the rows that earlier messages made."""
        path = tmp_path / "state.db"
        stream.append(ANN, change("insert", "1", "hello", type_="note"))

        async def main() -> None:
            async with stream.ready(store=SQLite(path)):
                pass
            async with AsyncClient(stream.server_url) as client:
                db = other(client.stream(stream.name), store=SQLite(path))
                await db.preload()
                assert names(db) == {"1": "Ann"}
                if isinstance(db, ChatWithNotes):
                    assert dict(db.notes) == {"1": "hello"}
                await db.close()
            assert kept(path).events == 2

        run(backend, main)

    def test_another_schema_of_a_stream_that_was_trimmed_begins_with_the_snapshot(
        self, stream: Stream, backend: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "state.db"

        async def main() -> None:
            stream.append(ANN)
            async with stream.ready(store=SQLite(path)):
                pass
            stream.append(BOB)
            async with AsyncClient(stream.server_url) as client:
                assert await compact(client.stream(stream.name), longer_than=0)
                db = LaterChat(client.stream(stream.name), store=SQLite(path))
                await db.preload()
                assert names(db) == {"1": "Ann", "2": "Bob"}
                await db.close()

        run(backend, main)

    def test_a_stream_that_was_created_again_rebuilds_the_copy(
        self, stream: Stream, backend: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "state.db"

        async def main() -> None:
            stream.append(ANN, ANN)
            async with stream.ready(store=SQLite(path)):
                pass
            stream.delete()
            stream.create()
            stream.append(change("insert", "1", {"name": "Eve"}), BOB, BOB)
            async with stream.ready(store=SQLite(path)) as db:
                assert names(db) == {"1": "Eve", "2": "Bob"}
            assert kept(path).events == 3

        run(backend, main)
