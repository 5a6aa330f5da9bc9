"""Cancelling a call in the middle of a commit: the file and the rows stay in step."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trio

from streamd.client import AsyncClient
from streamd.state.consumer import Plan
from streamd.state.db import SQLite, StoreError
from streamd.state.db.sqlite import Copied
from tests.state.events import change
from tests.state_db.chat import DEADLINE_S, Chat, Stream, names, run, wait_until
from tests.state_db.copies import assert_true

ANN, BOB = change("insert", "1", {"name": "Ann"}), change("insert", "2", {"name": "Bob"})


class HeldStore(SQLite):
    """A store that stops within a commit until the test lets it pass."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.entered = threading.Event()
        self.passes = threading.Event()

    def _many(self, statement: str, values: Any) -> None:
        self.entered.set()
        assert self.passes.wait(DEADLINE_S)
        super()._many(statement, values)


@contextmanager
def held(path: Path) -> Iterator[HeldStore]:
    """A store whose thread ends with the test."""
    store = HeldStore(path)
    try:
        yield store
    finally:
        store.passes.set()


async def cancelled_in(store: HeldStore, call: Callable[[], Awaitable[object]]) -> None:
    """Begin a call, cancel it natively within its commit, and let the commit end."""
    if asyncio_runs():
        task = asyncio.ensure_future(call())
        assert await anyio.to_thread.run_sync(store.entered.wait, DEADLINE_S)
        for _ in range(3):  # as an impatient supervisor does
            task.cancel()
            await anyio.lowlevel.checkpoint()
        threading.Timer(0.01, store.passes.set).start()
        with suppress(asyncio.CancelledError):
            await task
        return
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def cancel() -> None:
                with trio.CancelScope(shield=True):
                    assert await trio.to_thread.run_sync(store.entered.wait, DEADLINE_S)
                scope.cancel()
                threading.Timer(0.01, store.passes.set).start()

            nursery.start_soon(cancel)
            await call()


def asyncio_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def test_a_preload_that_is_cancelled_in_a_commit_can_be_repeated(
    stream: Stream, backend: str, tmp_path: Path
) -> None:
    path = tmp_path / "state.db"
    stream.append(ANN)

    async def main() -> None:
        with held(path) as store:
            async with AsyncClient(stream.server_url) as client:
                db = Chat(client.stream(stream.name), store=store)
                await cancelled_in(store, db.preload)
                assert db.offset == assert_true(path, [ANN]).next_offset
                assert names(db) == {"1": "Ann"}
                stream.append(BOB)
                await db.preload()
                await db.close()
        assert assert_true(path, [ANN, BOB]).events == 2

    run(backend, main)


def test_close_waits_for_the_commit_of_a_cancelled_preload(
    stream: Stream, backend: str, tmp_path: Path
) -> None:
    path = tmp_path / "state.db"
    stream.append(ANN)

    async def main() -> None:
        with held(path) as store:
            async with AsyncClient(stream.server_url) as client:
                db = Chat(client.stream(stream.name), store=store)

                async def preload_and_close() -> None:
                    try:
                        await db.preload()
                    finally:
                        await db.close()

                await cancelled_in(store, preload_and_close)
            assert assert_true(path, [ANN]).events == 1
            with pytest.raises(Exception, match="is closed"):
                store.commit(Plan(), "0")

    run(backend, main)


def test_a_close_that_is_cancelled_closes_the_file_all_the_same(
    stream: Stream, backend: str, tmp_path: Path
) -> None:
    path = tmp_path / "state.db"

    async def main() -> None:
        with held(path) as store:
            async with stream.ready(store=store) as db:
                stream.append(ANN)
                assert await anyio.to_thread.run_sync(store.entered.wait, DEADLINE_S)
                await cancelled_in(store, db.close)
                assert names(db) == {"1": "Ann"}
            assert assert_true(path, [ANN]).events == 1

    run(backend, main)


def test_a_block_that_is_cancelled_in_a_commit_leaves_the_copy_right(
    stream: Stream, backend: str, tmp_path: Path
) -> None:
    path = tmp_path / "state.db"
    stream.append(ANN)

    async def main() -> None:
        with held(path) as store:

            async def follow() -> None:
                async with stream.following(store=store):
                    await anyio.sleep_forever()

            await cancelled_in(store, follow)
            assert assert_true(path, [ANN]).events == 1
        async with stream.following(store=SQLite(path)) as db:
            assert names(db) == {"1": "Ann"}
            await wait_until(db, stream.append(BOB))
        assert assert_true(path, [ANN, BOB]).events == 2

    run(backend, main)


class HeldOpening(HeldStore):
    """A store that stops while it opens, and nowhere else."""

    def open(self, stream: str, schema: str) -> Copied:
        self.entered.set()
        assert self.passes.wait(DEADLINE_S)
        return super().open(stream, schema)


def test_a_block_that_is_cancelled_as_it_begins_leaves_no_file_open(
    stream: Stream, backend: str, tmp_path: Path
) -> None:
    path = tmp_path / "state.db"
    stream.append(ANN)

    async def main() -> None:
        store = HeldOpening(path)

        async def follow() -> None:
            async with stream.following(store=store):
                await anyio.sleep_forever()

        await cancelled_in(store, follow)
        with pytest.raises(StoreError, match="is closed"):
            store.commit(Plan(), "0")

    run(backend, main)


def test_a_store_that_is_closed_from_another_thread_ends_its_commit_first(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with held(path) as store:
        store.open("chat", "")
        threads = [
            threading.Thread(target=store.commit, args=(Plan(), "1")),
            threading.Thread(target=store.close),
        ]
        threads[0].start()
        assert store.entered.wait(DEADLINE_S)
        threads[1].start()
        threads[1].join(0.05)
        assert threads[1].is_alive()
        store.passes.set()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert SQLite(path).open("chat", "").next_offset == "1"
