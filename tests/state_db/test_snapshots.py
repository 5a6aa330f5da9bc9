"""Snapshots of state: published when the log is long, and what readers begin with."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import anyio
import httpx
import pytest

from streamd.client import AsyncClient, BadName, OffsetGone
from streamd.client.async_stream import AsyncSnapshots
from streamd.state import StateError
from streamd.state.consumer import Plan
from streamd.state.db import ForeignSnapshot, Overtaken, SQLite, compact
from streamd.state.db.snapshots import Compactor
from streamd.state.summary import Summary
from streamd.state.tables import Change
from tests.state.events import change, control
from tests.state_db.chat import DEADLINE_S, Chat, Stream, User, names, run, wait_until
from tests.state_db.copies import record_number

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
            db = Chat(client.stream(stream.name))
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
            feed = db.users.changes()
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


def lose_an_entity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a fault: a snapshot lacks an entity."""
    whole = Summary.snapshot

    def snapshot(self: Summary, offset: str) -> bytes:
        return json.dumps(json.loads(whole(self, offset))[:-2]).encode()

    monkeypatch.setattr(Summary, "snapshot", snapshot)


def test_a_snapshot_that_is_not_the_state_is_not_published(
    stream: Stream, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_an_entity(monkeypatch)
    stream.append(ANN, BOB)

    async def main() -> None:
        with pytest.raises(StateError, match="does not decode to its state"):
            await compacted(stream)
        async with stream.ready() as db:
            assert len(db.users) == 2

    run(backend, main)


def published_by_another(stream: Stream, monkeypatch: pytest.MonkeyPatch, *events: Any) -> None:
    """Let another process publish a snapshot just before the next one is."""
    publish = AsyncSnapshots.publish

    async def second(self: AsyncSnapshots, offset: str, *words: Any, **options: Any) -> None:
        await publish(self, offset, json.dumps(events), content_type="application/json")
        await publish(self, offset, *words, **options)

    monkeypatch.setattr(AsyncSnapshots, "publish", second)


def test_another_snapshot_of_the_same_state_stays(
    stream: Stream, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    published_by_another(stream, monkeypatch, BOB, ANN)
    stream.append(ANN, BOB)

    async def main() -> None:
        assert await compacted(stream) is None
        async with stream.ready() as db:
            assert names(db) == {"1": "Ann", "2": "Bob"}

    run(backend, main)


def test_another_state_at_the_same_offset_is_reported(
    stream: Stream, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    published_by_another(stream, monkeypatch, ANN)
    stream.append(ANN, BOB)

    async def main() -> None:
        with pytest.raises(ForeignSnapshot, match="of another state"):
            await compacted(stream)

    run(backend, main)


def test_a_compaction_that_begins_again_finds_its_snapshot(stream: Stream, backend: str) -> None:
    """As after a kill: the snapshot was stored, and its publisher never learned it."""
    stream.append(ANN, BOB)

    async def main() -> None:
        offset = await compacted(stream)
        assert await compacted(stream, longer_than=-1) == offset
        assert await compacted(stream) is None

    run(backend, main)


def test_a_snapshot_of_a_stream_that_was_replaced_is_not_published(
    stream: Stream, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offset may be one of the other stream, whose messages would be lost."""
    whole = Summary.snapshot

    def replaced(self: Summary, offset: str) -> bytes:
        stream.delete()
        stream.create()
        stream.append(BOB, ANN)
        return whole(self, offset)

    monkeypatch.setattr(Summary, "snapshot", replaced)
    stream.append(ANN, BOB)

    async def main() -> None:
        assert await compacted(stream) is None
        assert list(stream.messages()) == [BOB, ANN]

    run(backend, main)


class TestInTheBackground:
    @pytest.mark.long
    def test_replicas_publish_when_the_stream_gets_long(self, stream: Stream, backend: str) -> None:
        """Three of them publish no more than one alone would."""

        async def main() -> None:
            seen = []
            async with AsyncExitStack() as replicas:
                dbs = [
                    await replicas.enter_async_context(stream.ready(compact_every_events=50))
                    for _ in range(3)
                ]
                for number in range(60):
                    end = stream.append(
                        *(change("upsert", str(n), {"name": str(number)}) for n in range(10))
                    )
                    for db in dbs:
                        await wait_until(db, end)
                    seen.append(await snapshot_offset(stream))
                while (seen := [*seen, await snapshot_offset(stream)])[-1] is None:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            published = sorted({record_number(each) for each in seen if each is not None})
            assert published[0] > 50
            assert len(published) <= 600 // 50, "replicas share the work"
            async with stream.ready() as db:
                assert names(db) == {str(n): "59" for n in range(10)}

        run(backend, main)

    def test_a_failure_is_logged_and_ends_nothing(
        self,
        stream: Stream,
        backend: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        lose_an_entity(monkeypatch)

        async def main() -> None:
            async with stream.ready(compact_every_events=1) as db:
                stream.append(ANN, BOB)
                while not caplog.messages:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                await wait_until(db, stream.append(LAST))
                assert names(db) == {"1": "Ann"}

        with caplog.at_level(logging.WARNING, "streamd.state"):
            run(backend, main)
        assert "no snapshot was published" in caplog.messages[0]

    def test_the_turns_of_replicas_come_apart(self) -> None:
        """So one is first, and its snapshot is there when the turns of the others come."""
        stream = AsyncClient("http://127.0.0.1:1").stream("state/none")
        turns = []
        for seed in range(5):
            compactor, events = Compactor(stream, 10_000, Random(seed).uniform), 0
            while not compactor.is_due:
                compactor.saw(Plan(10))
                events += 10
            turns.append(events)
        assert len(set(turns)) == len(turns)
        assert min(turns) >= 10_000
        assert max(turns) <= 20_000

    def test_a_limit_below_one_is_refused(self, stream: Stream) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            Chat(AsyncClient("http://x").stream("a/b"), compact_every_events=0)

    def test_a_stream_that_cannot_have_snapshots_is_refused(self) -> None:
        with pytest.raises(BadName, match="not in a bucket"):
            Chat(AsyncClient("http://x").stream("/v1/stream/a"), compact_every_events=1)


async def snapshot_offset(stream: Stream) -> str | None:
    async with AsyncClient(stream.server_url) as client:
        return (await client.stream(stream.name).head()).snapshot_offset


class TestWaitingOverASnapshot:
    """A reader that is overtaken gets the effects of transactions, and never their txids."""

    async def overtake(self, stream: Stream, store: HeldStore) -> str:
        """Trim messages that a held reader has not read; returns the offset after them."""
        for _ in range(24):  # more than the buffers of a connection hold
            stream.append(change("upsert", "x", "y" * 1_000_000, type_="flag"))
        end = stream.append(change("insert", "1", {"name": "Ann"}, headers={"txid": "theirs"}))
        assert await compacted(stream) == end
        store.passes.set()
        return end

    def test_a_wait_for_an_offset_ends(self, stream: Stream, backend: str, tmp_path: Path) -> None:
        store = HeldStore(tmp_path / "state.db")

        async def main() -> None:
            async with stream.ready(store=store) as db:
                store.passes.clear()
                end = await self.overtake(stream, store)
                await db.wait_for("theirs", offset=end)
                assert names(db) == {"1": "Ann"}
                await db.wait_for(offset=end)
                with pytest.raises(StateError, match="a txid or an offset"):
                    await db.wait_for()

        run(backend, main)

    def test_a_wait_for_a_txid_alone_raises(
        self, stream: Stream, backend: str, tmp_path: Path
    ) -> None:
        store = HeldStore(tmp_path / "state.db")
        raised: list[bool] = []

        async def main() -> None:
            async with stream.ready(store=store) as db, anyio.create_task_group() as tasks:
                store.passes.clear()

                async def wait() -> None:
                    with pytest.raises(Overtaken, match="wait for an offset"):
                        await db.wait_for("theirs")
                    raised.append(True)

                tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                await self.overtake(stream, store)

        run(backend, main)
        assert raised == [True]

    def test_a_wait_for_an_offset_ends_when_a_batch_brings_it(
        self, stream: Stream, backend: str
    ) -> None:
        async def main() -> None:
            async with stream.ready() as writer, stream.ready() as reader:
                await writer.users.insert(User("1", "Ann"))
                await reader.wait_for(offset=writer.offset)
                assert names(reader) == {"1": "Ann"}

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
