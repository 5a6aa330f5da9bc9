"""The State Protocol: the state that a stream of change events leads to, in a table on a task's
disk.

Insert and update set the value of a type and key, delete removes it; control event `reset` empties
the table (sections 5.2 and 5.3, which leave that to us). Other control events change nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from streamd.spark.errors import BadRecord
from streamd.spark.streams import Piece
from streamd.spark.values import parse
from streamd.streams.content import UNDECODABLE
from streamd.streams.offsets import Position

_SET, _DELETE, _RESET = ("insert", "update"), "delete", "reset"
_CACHE_KIB = 32 * 1024
_ROWS_AT_ONCE = 1000

Key = tuple[str, str]
# A value as JSON and the position of the event that set it; None for a deleted one.
Held = tuple[bytes, int, int] | None


class Entity(NamedTuple):
    """A row of the table: a value as JSON, and the offset of the event that set it."""

    kind: str
    key: str
    value: bytes
    at: Position


class _Headers(msgspec.Struct):
    operation: str | None = None
    control: str | None = None


class _Event(msgspec.Struct):
    headers: _Headers
    type: str | None = None
    key: str | None = None
    value: msgspec.Raw = msgspec.Raw(b"")


_EVENT = msgspec.json.Decoder(_Event)
_EVENTS = msgspec.json.Decoder(list[_Event])


class Table:
    """The state of one stream. `kind` is the only type that is kept, if it is given."""

    def __init__(self, name: str, kind: str | None, *, failfast: bool) -> None:
        self._name = name
        self._kind = kind
        self._failfast = failfast
        # In a file that SQLite removes; only the cache's share of it is in memory.
        self._rows = sqlite3.connect("", isolation_level=None)
        self._rows.execute("PRAGMA journal_mode = OFF")
        self._rows.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._rows.execute(
            "CREATE TABLE state (type TEXT, key TEXT, value BLOB, record INTEGER, byte INTEGER, "
            "PRIMARY KEY (type, key)) WITHOUT ROWID"
        )

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()

    def clear(self) -> None:
        self._rows.execute("DELETE FROM state")

    def apply(self, piece: Piece) -> None:
        """Apply events in their order. Raises `BadRecord`."""
        changes: dict[Key, Held] = {}
        record, byte = piece.start
        for length, event in zip(piece.lengths.tolist(), self._events(piece), strict=True):
            if not self._apply(event, Position(record, byte), changes) and self._failfast:
                raise BadRecord(
                    f"record {Position(record, byte).token().decode()} of {self._name} is not an "
                    "event of the State Protocol"
                )
            record, byte = record + 1, byte + length
        self._store(changes)

    def _apply(self, event: _Event | None, at: Position, changes: dict[Key, Held]) -> bool:
        """Returns whether it was an event."""
        if event is None:
            return False
        if event.headers.control is not None:
            if event.headers.control == _RESET:
                changes.clear()
                self.clear()
            return True
        operation = event.headers.operation
        if event.type is None or event.key is None:
            return False
        if operation not in (*_SET, _DELETE) or (operation in _SET and not event.value):
            return False
        if self._kind in (None, event.type):
            held = None if operation == _DELETE else (bytes(event.value), *at)
            changes[event.type, event.key] = held
        return True

    def _events(self, piece: Piece) -> list[_Event] | list[_Event | None]:
        try:
            events = _EVENTS.decode(b"[%b]" % piece.data[:-1])
            if len(events) == len(piece.lengths):
                return events
        except UNDECODABLE:
            pass
        found: list[_Event | None] = []
        start = 0
        for length in piece.lengths.tolist():
            found.append(_event(piece.data[start : start + length - 1]))
            start += length
        return found

    def _store(self, changes: dict[Key, Held]) -> None:
        self._rows.execute("BEGIN")
        self._rows.executemany(
            "INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?, ?)",
            ((*key, *held) for key, held in changes.items() if held is not None),
        )
        self._rows.executemany(
            "DELETE FROM state WHERE type = ? AND key = ?",
            (key for key, held in changes.items() if held is None),
        )
        self._rows.execute("COMMIT")

    def entities(self) -> Iterator[list[Entity]]:
        """All rows by type and key, some at a time."""
        rows = self._rows.execute("SELECT * FROM state ORDER BY type, key")
        while found := rows.fetchmany(_ROWS_AT_ONCE):
            yield [
                Entity(kind, key, value, Position(record, byte))
                for kind, key, value, record, byte in found
            ]


def _event(message: bytes) -> _Event | None:
    """One event, also if it is JSON only by another program's standard; None for anything else."""
    try:
        return _EVENT.decode(message)
    except UNDECODABLE:
        pass
    try:
        found: Any = parse(message)
        value = found.pop("value", None) if "value" in found else msgspec.UNSET
        event = msgspec.convert(found, _Event)
    except (ValueError, RecursionError, AttributeError, TypeError):
        return None
    if value is not msgspec.UNSET:
        event.value = msgspec.Raw(msgspec.json.encode(value))
    return event
