"""A collection of a `StreamDB`: its rows, changes, and writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

from streamd.state.db.feeds import MAX_WAITING, Feed, Feeds
from streamd.state.events import ChangeEvent
from streamd.state.tables import Table

T = TypeVar("T")

Write = Callable[[ChangeEvent], Awaitable[str]]


class Collection(Mapping[str, T]):
    """The rows of a collection by key, as a mapping that follows the stream.

    Rows are read-only: to change one, write it. `insert`, `update`, `upsert` and `delete` show
    their effect at once and return when the stream confirmed it, with the txid; see
    `StreamDB.write` for what they raise.
    """

    def __init__(self, table: Table[T], write: Write, feeds: Feeds) -> None:
        self._table = table
        self._write = write
        self._feeds = feeds

    def __getitem__(self, key: str) -> T:
        return self._table[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        return repr(self._table)

    def where(self, predicate: Callable[[T], bool] | None = None, /, **fields: Any) -> list[T]:
        """The rows whose fields equal these and that satisfy the predicate, in no particular order.

        Fields with an index find their rows without looking at the others.
        """
        return self._table.where(predicate, **fields)

    def changes(self, *, max_waiting: int = MAX_WAITING) -> Feed[T]:
        """What the stream does to the collection from now on.

        Writes of this program are among the changes once the stream confirms them. Between this
        call and the next `await` nothing happens to the rows, so they can be read first.
        """
        return self._feeds.begin(self._table, max_waiting)

    async def insert(self, value: T, *, key: str | None = None) -> str:
        """Add a row."""
        return await self._write(self._table.definition.insert(value, key=key))

    async def update(self, value: T, *, key: str | None = None) -> str:
        """Replace a row."""
        return await self._write(self._table.definition.update(value, key=key))

    async def upsert(self, value: T, *, key: str | None = None) -> str:
        """Add or replace a row."""
        return await self._write(self._table.definition.upsert(value, key=key))

    async def delete(self, key: str) -> str:
        """Remove a row."""
        return await self._write(self._table.definition.delete(key))
