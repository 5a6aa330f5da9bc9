"""Change feeds: what the stream does to a collection, as it happens."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import anyio

from streamd.state.events import StateError
from streamd.state.tables import Change, Table

T = TypeVar("T")

MAX_WAITING = 10_000


class FeedOverflow(StateError):
    """The reader of a change feed was too slow, and changes after these are lost to it."""


class Feed(AsyncIterator[Change[T]]):
    """The changes of a collection since the feed was made, each once, in the stream's order.

    A feed holds up to `max_waiting` changes that its reader has not taken. With one more it ends:
    the reader gets those, and then `FeedOverflow`. It should then look at the rows and begin
    another feed. A feed that nobody reads any longer ends the same way, or by `end`.
    """

    def __init__(
        self, table: Table[T], max_waiting: int, on_end: Callable[[Feed[T]], None]
    ) -> None:
        self._table = table
        self._on_end = on_end
        self._max_waiting = max_waiting
        self._waiting: deque[Change[T]] = deque()
        self._news = anyio.Event()
        self._ended = False
        self._error: Exception | None = None
        table.observers.append(self._put)

    def __aiter__(self) -> Feed[T]:
        return self

    async def __anext__(self) -> Change[T]:
        while not self._waiting:
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            if self._news.is_set():
                self._news = anyio.Event()
            await self._news.wait()
        return self._waiting.popleft()

    def _put(self, change: Change[T]) -> None:
        if len(self._waiting) >= self._max_waiting:
            self.end(FeedOverflow(f"more than {self._max_waiting} changes were waiting"))
        else:
            self._waiting.append(change)
            self._news.set()

    def end(self, error: Exception | None = None) -> None:
        """Take in no more changes. The reader gets those that wait, and then the error."""
        if not self._ended:
            self._ended, self._error = True, error
            self._table.observers.remove(self._put)
            self._on_end(self)
            self._news.set()


class Feeds:
    """The feeds of a database, which end with it."""

    def __init__(self) -> None:
        self._feeds: set[Feed[Any]] = set()
        self._ended = False
        self._error: Exception | None = None

    def begin(self, table: Table[T], max_waiting: int) -> Feed[T]:
        """A feed of a collection; it is at its end if the database is."""
        feed = Feed(table, max_waiting, self._feeds.discard)
        if self._ended:
            feed.end(self._error)
        else:
            self._feeds.add(feed)
        return feed

    def end(self, error: Exception | None) -> None:
        """End all feeds, with an error if that ended the database. The first end counts."""
        if not self._ended:
            self._ended, self._error = True, error
            for feed in tuple(self._feeds):
                feed.end(error)
