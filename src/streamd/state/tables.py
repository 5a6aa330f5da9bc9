"""The rows of a collection: by key, by secondary index, and with writes that are under way.

A row is what the stream says, unless writes of this program for its key wait to come back on the
stream. Then reads see the last of these (the row is optimistic), and `_base` holds what the stream
says meanwhile. When a write settles, because its txid arrived or because it failed, the row shows
the write before it, or the base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from streamd.state.definition import CollectionDefinition

T = TypeVar("T")


# Stands for the value of a key without a row.
ABSENT: Any = object()
_UNHASHABLE = object()


class Change(NamedTuple, Generic[T]):
    """What the stream did to a collection.

    An update of nothing is an insert, and an insert of a row that exists an update. `reset` means
    that all rows went; it has no key.
    """

    operation: Literal["insert", "update", "delete", "reset"]
    key: str
    value: T | None = None
    old: T | None = None
    txid: str | None = None


class Table(Mapping[str, T]):
    """The rows of one collection, by key. Rows are read-only: to change one, write an event."""

    def __init__(self, definition: CollectionDefinition[T]) -> None:
        self.definition = definition
        self.type = definition.type
        self.observers: list[Callable[[Change[T]], None]] = []
        self._rows: dict[str, T] = {}
        self._base: dict[str, T] = {}
        self._writes: dict[str, dict[str, T]] = {}
        self._indexes: dict[str, dict[Any, dict[str, None]]] = {
            field: {} for field in definition.indexes
        }

    # -- reading --

    def __getitem__(self, key: str) -> T:
        return self._rows[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {self.definition.type!r}>"

    def where(self, predicate: Callable[[T], bool] | None = None, /, **fields: Any) -> list[T]:
        """The rows whose fields equal these and that satisfy the predicate, in no particular order.

        Where a field is indexed, only its rows are looked at; otherwise all are.
        """
        return [
            row
            for row in self._candidates(fields)
            if all(_field(row, name) == value for name, value in fields.items())
            and (predicate is None or predicate(row))
        ]

    def _candidates(self, fields: Mapping[str, Any]) -> Iterable[T]:
        found = [
            self._indexes[name].get(_bucket({name: value}, name), {})
            for name, value in fields.items()
            if name in self._indexes
        ]
        if not found:
            return self._rows.values()
        return [self._rows[key] for key in min(found, key=len)]

    # -- what the stream says --

    def put(self, key: str, value: T, txid: str | None = None) -> None:
        """The stream gives a row its value, or takes it away with `ABSENT`."""
        if key in self._base:
            old = self._base[key]
            self._base[key] = value
        else:
            old = self._show(key, value)
        if self.observers and (old is not ABSENT or value is not ABSENT):
            self._tell(_change(key, old, value, txid))

    def clear(self) -> None:
        """The stream says that there are no rows; writes under way still show."""
        self._base = dict.fromkeys(self._base, ABSENT)
        for key in [key for key in self._rows if key not in self._base]:
            self._show(key, ABSENT)
        self._tell(Change("reset", ""))

    def _tell(self, change: Change[T]) -> None:
        for observer in tuple(self.observers):
            observer(change)

    # -- writes under way --

    def write(self, key: str, value: T, txid: str) -> None:
        """Show a value, or `ABSENT`, until `settle`."""
        old = self._show(key, value)
        self._base.setdefault(key, old)
        # The last write of a transaction shows, and takes its place among the others.
        writes = self._writes.setdefault(key, {})
        writes.pop(txid, None)
        writes[txid] = value

    def settle(self, key: str, txid: str) -> None:
        """A write came back on the stream, or failed."""
        writes = self._writes.get(key, {})
        writes.pop(txid, None)
        if writes:
            self._show(key, next(reversed(writes.values())))
        elif key in self._base:
            self._writes.pop(key, None)
            self._show(key, self._base.pop(key))

    # -- rows and indexes --

    def _show(self, key: str, value: T) -> T:
        """Let reads see a value; returns the one they saw."""
        old: T = self._rows.get(key, ABSENT)
        for field, index in self._indexes.items():
            before, after = _bucket(old, field), _bucket(value, field)
            if before is not after:
                if before is not ABSENT:
                    _remove(index, before, key)
                if after is not ABSENT:
                    index.setdefault(after, {})[key] = None
        if value is not ABSENT:
            self._rows[key] = value
        elif old is not ABSENT:
            del self._rows[key]
        return old


def _field(row: Any, name: str) -> Any:
    if isinstance(row, dict):
        return row.get(name, ABSENT)
    return getattr(row, name, ABSENT)


def _bucket(row: Any, field: str) -> Any:
    """Where an index keeps a row: all unhashable values share one place."""
    if row is ABSENT:
        return ABSENT
    # As `_field`, without a call: this runs twice for each event and index.
    value = row.get(field, ABSENT) if isinstance(row, dict) else getattr(row, field, ABSENT)
    try:
        hash(value)
    except TypeError:
        return _UNHASHABLE
    return value


def _remove(index: dict[Any, dict[str, None]], bucket: Any, key: str) -> None:
    keys = index.get(bucket)
    if keys is not None:
        keys.pop(key, None)
        if not keys:
            del index[bucket]


def _change(key: str, old: Any, value: Any, txid: str | None) -> Change[Any]:
    if value is ABSENT:
        return Change("delete", key, None, old, txid)
    if old is ABSENT:
        return Change("insert", key, value, None, txid)
    return Change("update", key, value, old, txid)
