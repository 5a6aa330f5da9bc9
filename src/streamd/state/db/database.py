"""`StreamDB`: collections that a stream keeps up to date in the background."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
from msgspec import UNSET

from streamd.client import AsyncStream, Chunk, InvalidRequest, OffsetGone, StreamReplaced
from streamd.state.consumer import Consumer, Plan, Policies
from streamd.state.db.collections import Collection
from streamd.state.db.feeds import Feeds
from streamd.state.db.lanes import Lanes
from streamd.state.db.snapshots import Compactor, incarnation_of, read_snapshot
from streamd.state.db.sqlite import Copied, SQLite, StoreCorrupt
from streamd.state.db.writes import DatabaseClosed, Writes
from streamd.state.definition import CollectionDefinition, StateSchema
from streamd.state.events import (
    ChangeEvent,
    StateError,
    StateEvent,
    decode_event,
    encode_event,
    json_text,
)
from streamd.state.tables import ABSENT
from streamd.streams.content import JSON, InvalidJson, is_json

T = TypeVar("T")

_START = "-1"
# Larger batches are decoded in a thread, so that the loop runs meanwhile.
_SMALL_BYTES = 64 * 1024
_log = logging.getLogger("streamd.state")


class StreamDB(StateSchema):
    """The state of a stream: typed collections that follow it, in memory or in SQLite as well.

    A subclass lists the collections. As a context manager it follows the stream until the block
    ends:

        class Chat(StreamDB):
            users = collection(User, type="user", key="id")

        async with AsyncClient(url) as client:
            async with Chat(client.stream("chats/1")) as db:
                await db.ready()
                print(db.users["1"])

    Type checkers know that `db.users` is a `Collection[User]`. With a `store`, rows of an earlier
    run are there at once, and the stream is read from where that run ended. It works on asyncio and
    Trio, and belongs to one event loop. With `compact_every_events` it publishes a snapshot for
    other readers whenever the stream has got about so many messages longer, **which trims the
    stream**: see `compact`. Replicas that all do so share the work.

    An error that ends it, such as of a policy, of the store, or a stream that is deleted, ends the
    block too and is raised from it.
    """

    def __init__(
        self,
        stream: AsyncStream,
        *,
        store: SQLite | None = None,
        policies: Policies | None = None,
        compact_every_events: int | None = None,
    ) -> None:
        self._stream = stream
        self._store = store
        self._consumer = Consumer(type(self), policies or Policies())
        self._offset = _START
        self._incarnation = ""
        self._compactor: Compactor | None = None
        if compact_every_events is not None:
            self._compactor = Compactor(stream, compact_every_events)
        self._writes = Writes()
        self._lanes = Lanes(stream)
        self._feeds = Feeds()
        self._collections = {
            table.definition: Collection(table, self.write, self._feeds)
            for table in self._consumer.tables.values()
        }
        self._is_open = False
        self._ready = anyio.Event()
        self._is_ready = False
        self._error: Exception | None = None
        self._reading = anyio.Lock()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._following: anyio.CancelScope | None = None
        self._compacting: anyio.CancelScope | None = None

    # -- rows --

    def _rows_of(self, definition: CollectionDefinition[T]) -> Collection[T]:
        return self._collections[definition]

    @property
    def offset(self) -> str:
        """Where the messages begin that are not in the rows."""
        return self._offset

    # -- life --

    async def __aenter__(self) -> Self:
        if self._tasks is not None:
            raise StateError("a database is entered once")
        self._writes.check()
        try:
            await self._open()
        except BaseException:
            await finish(self._close_store)
            raise
        self._following = anyio.CancelScope()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._run)
        if self._compactor is not None:
            self._compacting = anyio.CancelScope()
            self._tasks.start_soon(self._compact, self._compactor, self._compacting)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        assert self._tasks is not None, "it was entered"
        try:
            await self.close()
        except BaseException as interrupted:  # natively: the file is closed all the same
            await self._tasks.__aexit__(type(interrupted), interrupted, interrupted.__traceback__)
            raise
        if isinstance(error, Exception):
            # The task group would wrap the error, so it does not get it.
            await self._tasks.__aexit__(None, None, None)
            return False
        ended = bool(await self._tasks.__aexit__(kind, error, traceback))
        if self._error is not None:
            raise self._error
        return ended

    async def ready(self) -> None:
        """Wait until the rows include everything up to the stream's end at the time of the call.

        Raises `DatabaseClosed`, or the error that ended the database.
        """
        await self._ready.wait()
        if not self._is_ready or self._error is not None:
            self._writes.check()

    async def preload(self) -> None:
        """Read the stream to its present end, and no further: for programs that need it once.

        Not within `async with`, where the stream is followed anyway. May be repeated; then `close`.
        Raises what ends a database.
        """
        if self._tasks is not None:
            raise StateError("the database follows its stream; await ready() instead")
        async with self._reading:
            self._writes.check()
            with anyio.CancelScope() as self._following:
                await self._open()
                await self._follow(to_end=True)
            self._writes.check()

    async def close(self) -> None:
        """Stop following, end the feeds, and close the store. The rows stay unchanged.

        Leaving `async with` closes, too.
        """
        self._end(DatabaseClosed("the database was closed"))
        if self._following is not None:
            self._following.cancel()
        await finish(self._close_store)

    async def _close_store(self) -> None:
        async with self._reading:
            if self._store is not None:
                await anyio.to_thread.run_sync(self._store.close)
                self._is_open = False

    def _end(self, error: Exception) -> None:
        """Record that following the stream has ended; keep the first error."""
        self._writes.end(error)
        self._feeds.end(None if isinstance(error, DatabaseClosed) else error)
        self._ready.set()
        if self._compacting is not None:
            self._compacting.cancel()

    # -- following --

    async def _open(self) -> None:
        if not self._is_open and self._store is not None:
            await finish(partial(self._open_store, self._store))

    async def _open_store(self, store: SQLite) -> None:
        kinds = sorted(each.type for each in self.collections.values())
        schema = msgspec.json.encode([self.version, kinds]).decode()
        copied = await anyio.to_thread.run_sync(self._load, store, schema)
        self._offset, self._incarnation = copied.next_offset, copied.incarnation
        self._consumer.in_snapshot = copied.in_snapshot
        self._is_open = True

    def _load(self, store: SQLite, schema: str) -> Copied:
        """Fill the tables from the store, which blocks; nobody sees them yet."""
        copied = store.open(self._stream.name, schema)
        try:
            for rows in store.rows():
                self._warn(self._consumer.load(rows))
        except BaseException as error:
            store.close()
            self._consumer.clear()
            if isinstance(error, InvalidJson):
                raise StoreCorrupt(f"a row of {self._stream.name} is not JSON: {error}") from error
            raise
        return copied

    async def _run(self) -> None:
        assert self._tasks is not None, "it was entered"
        assert self._following is not None, "it was entered"
        try:
            with self._following:
                async with self._reading:
                    await self._follow()
                self._end(DatabaseClosed("the stream is closed"))
        except Exception as error:
            self._error = error
            self._end(error)
            self._tasks.cancel_scope.cancel()

    async def _compact(self, compactor: Compactor, scope: anyio.CancelScope) -> None:
        with scope:
            await compactor.run(self._ready)

    async def _follow(self, *, to_end: bool = False) -> None:
        await self._check_incarnation()
        while True:
            read = self._stream.read if to_end else self._stream.follow
            is_checked = False
            try:
                async with read(self._offset) as chunks:
                    async for chunk in chunks:
                        # A read shows one stream only: that of its first chunk, whose offset may
                        # be of one that was deleted since the last check.
                        if not is_checked and await self._check_incarnation():
                            break
                        is_checked = True
                        await self._take(chunk)
                    else:
                        return
            except OffsetGone:
                await self._begin_with_snapshot()
            except (StreamReplaced, InvalidRequest):
                # The offset is of a stream that was deleted, or the server's fault.
                if not await self._check_incarnation():
                    raise

    async def _begin_with_snapshot(self) -> None:
        """Start over with the stream's snapshot: messages that are needed were trimmed."""
        snapshot = await read_snapshot(self._stream)
        if await self._check_incarnation():
            return  # The snapshot may be of either stream.
        plan = await self._planned(snapshot.data)
        plan.clears = plan.restarts = True
        await self._apply(plan, snapshot.offset, self._incarnation)

    async def _check_incarnation(self) -> bool:
        """Start over if the stream was deleted and created again; returns whether it was."""
        info = await self._stream.head()
        if not is_json(info.content_type):
            raise StateError(
                f"{self._stream.name} is a stream of {info.content_type}; state needs {JSON}"
            )
        incarnation = incarnation_of(info)
        is_another = self._incarnation not in ("", incarnation)
        if is_another:
            await self._apply(Plan(clears=True, restarts=True), _START, incarnation)
        self._incarnation = incarnation
        return is_another

    async def _take(self, chunk: Chunk) -> None:
        if not chunk.empty:
            plan = await self._planned(chunk.data)
            await self._apply(plan, chunk.next_offset, self._incarnation)
        if chunk.up_to_date:
            self._is_ready = True
            self._ready.set()

    async def _planned(self, array: bytes) -> Plan:
        try:
            if self._store is None and len(array) < _SMALL_BYTES:
                return self._consumer.plan(array)
            return await anyio.to_thread.run_sync(self._consumer.plan, array)
        except InvalidJson as error:
            name = self._stream.name
            raise StateError(f"what the server sent of {name} is not JSON: {error}") from error

    async def _apply(self, plan: Plan, next_offset: str, incarnation: str) -> None:
        """Keep a plan, and then show it: nobody sees what a crash could take back."""
        if self._store is None:
            self._show(plan, next_offset, incarnation)
        else:
            await finish(partial(self._keep, self._store, plan, next_offset, incarnation))

    async def _keep(self, store: SQLite, plan: Plan, next_offset: str, incarnation: str) -> None:
        await anyio.to_thread.run_sync(store.commit, plan, next_offset, incarnation)
        self._show(plan, next_offset, incarnation)

    def _show(self, plan: Plan, next_offset: str, incarnation: str) -> None:
        self._consumer.apply(plan)
        self._offset = next_offset
        if self._compactor is not None:
            self._compactor.saw(plan)
        self._writes.came(plan.txids)
        self._writes.reached(next_offset)
        if plan.restarts:
            self._writes.overtaken(by_another_stream=incarnation != self._incarnation)
        self._warn(plan)

    def _warn(self, plan: Plan) -> None:
        for warning in plan.warnings:
            _log.warning("%s: %s", self._stream.name, warning)

    # -- writing --

    async def write(self, *events: ChangeEvent) -> str:
        """Append events as one transaction, and wait until the stream brings it back.

        Reads show its effect at once, and no longer if the append fails. Returns the txid. The
        stream takes the events once, although a lost answer makes the client repeat the request for
        its `retry_for_s`. If that ends in `Unreachable` or `Unavailable`, if the call is cancelled
        or the process dies, they may be on the stream or not. Where that matters, give the first
        event a txid: a transaction so named is taken once whichever process writes it again, and
        the first one counts. The stream remembers each such name.

        Raises `InvalidEvent`, `InvalidValue`, `DatabaseClosed`, `Overtaken` if the stream was
        created again meanwhile, what an append raises, or the error that ended the database.
        """
        if not events:
            raise StateError("there is nothing to write")
        if self._tasks is None:
            raise DatabaseClosed("the database does not follow its stream: use `async with`")
        name = events[0].headers.txid
        txid = name or uuid4().hex
        texts = [encode_event(_in_transaction(event, txid)) for event in events]
        # Decoded as by readers, because an event that they cannot read would never be confirmed.
        sent = [decode_event(text) for text in texts]
        shown = [row for event in sent for row in self._shown(event)]
        write = self._writes.begin(txid, shown, len(sent))
        try:
            if name is None:
                appended = await self._lanes.append(texts)
            else:
                appended = await self._lanes.append_as(name, texts)
        except BaseException:
            self._writes.fail(txid)
            raise
        self._writes.stored(write, appended.next_offset)
        await self._writes.wait_for(txid, appended.next_offset)
        return txid

    def _shown(self, event: StateEvent) -> list[tuple[Any, str, Any]]:
        assert isinstance(event, ChangeEvent), "it has an operation"
        table = self._consumer.table_of(event.type)
        if table is None:
            return []
        if event.headers.operation == "delete":
            return [(table, event.key, ABSENT)]
        if event.value is UNSET:
            return []
        value = table.definition.decode(event.key, json_text(event.value))
        return [(table, event.key, value)]

    async def wait_for(self, txid: str | None = None, *, offset: str | None = None) -> None:
        """Wait until events with this txid came from the stream, or all messages before an offset.

        Any writer knows both: the offset is the `next_offset` that an append answers, or the
        `offset` of a `StreamDB` after a write. Only the offset is sure to come: a snapshot
        replaces messages and keeps no txids. With both the first counts. Returns at once for the
        last 10,000 txids that came. Raises `Overtaken` if a snapshot replaced unread messages
        while a txid alone was awaited, `DatabaseClosed`, or the error that ended the database.
        """
        if txid is None and offset is None:
            raise StateError("wait for a txid or an offset")
        await self._writes.wait_for(txid, offset)


def _in_transaction(event: ChangeEvent, txid: str) -> ChangeEvent:
    headers = msgspec.structs.replace(event.headers, txid=txid)
    return msgspec.structs.replace(event, headers=headers)


async def finish(work: Callable[[], Awaitable[None]]) -> None:
    """Do the work to its end; if the caller is cancelled meanwhile, that comes after it.

    A shield alone does not do it: asyncio's `Task.cancel` passes through those of anyio. It would
    end the wait for a thread, and the caller would go on while the thread still writes. So the
    work has a task of its own, which nobody outside can cancel.
    """
    failures: list[Exception] = []

    async def shielded() -> None:
        with anyio.CancelScope(shield=True):
            try:
                await work()
            except Exception as failure:
                failures.append(failure)

    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shielded)
    if failures:
        raise failures[0]
