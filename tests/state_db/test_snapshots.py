"""Snapshots of state: published when the log is long, and what readers begin with."""

from __future__ import annotations

import threading
from pathlib import Path

import anyio
import httpx
import pytest

from streamd.client import AsyncClient, OffsetGone
from streamd.state import StateError
from streamd.state.consumer import Plan
from streamd.state.db import ForeignSnapshot, SQLite, StreamDB, compact
from streamd.state.tables import Change
from tests.state.events import change, control
from tests.state_db.chat import DEADLINE_S, Chat, Stream, User, names, run, wait_until

ANN, BOB = change("insert", "1", {"name": "Ann"}), change("insert", "2", {"name": "Bob"})
OTHER = change("insert", "1", [1.50], type_="other")
FIRST, LAST = change("update", "1", {"name": "Eve"}), change("delete", "2")


async def compacted(stream: Stream, longer_than: int = 0) -> str | None:
    async with AsyncClient(stream.server_url) as client:
        return await compact(client.stream(stream.name), longer_than=longer_than)


def test_a_database_begins_with_the_snapshot(stream: Stream, backend: str) -> None:
    stream.append(ANN, BOB, OTHER, control("snapshot-start"))

    async def main() -> None:
        offset = await compacted(stream)
        assert offset is not None
        stream.append(FIRST)
        async with stream.ready() as db:
            assert names(db) == {"1": "Eve", "2": "Bob"}
            await wait_until(db, stream.append(LAST))
            assert names(db) == {"1": "Eve"}
            assert await db.users.insert(User("3", "Cy"))
        async with AsyncClient(stream.server_url) as client:
            with pytest.raises(OffsetGone):
                await anext(client.stream(stream.name).read())
            db = StreamDB(Chat, client.stream(stream.name))
            await db.preload()
            assert names(db) == {"1": "Eve", "3": "Cy"}
            await db.close()

    run(backend, main)


def test_snapshots_build_on_each_other_and_keep_types_of_no_schema(
    stream: Stream, backend: str
) -> None:
    async def main() -> None:
        for number in range(3):
            stream.append(OTHER, change("upsert", str(number), {"name": f"n{number}"}))
            assert await compacted(stream)
        async with AsyncClient(stream.server_url) as client:
            snapshot = await client.stream(stream.name).snapshot.read()
        assert snapshot.data.count(b'"other"') == 1
        assert snapshot.content_type == "application/json"
        async with stream.ready() as db:
            assert names(db) == {"0": "n0", "1": "n1", "2": "n2"}

    run(backend, main)


def test_a_short_log_is_left_alone(stream: Stream, backend: str) -> None:
    stream.append(ANN, BOB)

    async def main() -> None:
        assert await compacted(stream, longer_than=2) is None
        assert await compacted(stream, longer_than=1) is not None
        stream.append(LAST)
        assert await compacted(stream, longer_than=1) is None

    run(backend, main)


def test_of_two_that_publish_the_later_snapshot_stays(stream: Stream, backend: str) -> None:
    stream.append(ANN, BOB)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                stream.append(FIRST)
                tasks.start_soon(compacted, stream)
        async with stream.ready() as db:
            assert names(db) == {"1": "Eve", "2": "Bob"}

    run(backend, main)


def test_a_snapshot_that_no_client_could_read_is_not_published(
    stream: Stream, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would trim the messages that every reader then needs."""
    monkeypatch.setattr("streamd.state.db.snapshots.MAX_ANSWER_BYTES", 100)
    stream.append(ANN, BOB)

    async def main() -> None:
        with pytest.raises(StateError, match="bytes of JSON"):
            await compacted(stream)
        async with stream.ready() as db:
            assert len(db.users) == 2

    run(backend, main)


def test_a_copy_that_lags_the_trim_starts_over(
    stream: Stream, backend: str, tmp_path: Path
) -> None:
    async def main() -> None:
        stream.append(ANN, BOB)
        async with stream.ready(store=SQLite(tmp_path / "state.db")):
            pass
        stream.append(LAST)
        assert await compacted(stream)
        stream.append(FIRST)
        async with stream.following(store=SQLite(tmp_path / "state.db")) as db:
            assert names(db) == {"1": "Ann", "2": "Bob"}
            feed = db[Chat.users].changes()
            await db.ready()
            assert names(db) == {"1": "Eve"}
            heard = [await anext(feed) for _ in range(3)]
            ann, eve = User("1", "Ann"), User("1", "Eve")
            assert heard == [
                Change("reset", ""), Change("insert", "1", ann), Change("update", "1", eve, ann),
            ]  # fmt: skip
        async with stream.following(store=SQLite(tmp_path / "state.db")) as db:
            assert names(db) == {"1": "Eve"}

    run(backend, main)


@pytest.mark.parametrize(
    ("content_type", "data"),
    [("text/plain", "Ann, Bob"), ("application/json", '["Ann"]'), ("application/json", "{}")],
)
def test_a_snapshot_of_something_else_is_not_replaced(
    stream: Stream, backend: str, content_type: str, data: str
) -> None:
    offset = stream.append(ANN, BOB)
    answer = httpx.put(
        f"{stream.server_url}/{stream.name}/snapshot/{offset}",
        content=data,
        headers={"Content-Type": content_type},
    )
    assert answer.status_code == 204
    stream.append(LAST)

    async def main() -> None:
        with pytest.raises(ForeignSnapshot):
            await compacted(stream)

    run(backend, main)


class HeldStore(SQLite):
    """A store whose commits wait until the test lets them pass."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.passes = threading.Event()
        self.passes.set()

    def commit(self, plan: Plan, next_offset: str, incarnation: str = "") -> None:
        assert self.passes.wait(DEADLINE_S)
        super().commit(plan, next_offset, incarnation)


def test_a_write_returns_when_a_snapshot_has_replaced_it(
    stream: Stream, backend: str, tmp_path: Path
) -> None:
    """Its reader is overtaken: it gets the effect with the snapshot, and never the txid."""
    store = HeldStore(tmp_path / "state.db")
    returned: list[str] = []

    async def main() -> None:
        async with stream.ready(store=store) as db, anyio.create_task_group() as tasks:
            store.passes.clear()
            for _ in range(24):  # more than the buffers of a connection hold
                end = stream.append(change("upsert", "x", "y" * 1_000_000, type_="flag"))

            async def write() -> None:
                returned.append(await db.users.insert(User("1", "Ann")))

            tasks.start_soon(write)
            while await tail(stream) == end:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            assert await compacted(stream)
            store.passes.set()
            await wait_until(db, await tail(stream))
            assert names(db) == {"1": "Ann"}
            assert await db.users.update(User("1", "Eve"))
        assert len(returned) == 1

    run(backend, main)


async def tail(stream: Stream) -> str:
    async with AsyncClient(stream.server_url) as client:
        return (await client.stream(stream.name).head()).next_offset
