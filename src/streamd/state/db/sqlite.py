"""Rows in a SQLite database, with the offset of the stream that they belong to.

One transaction takes the rows of a batch and the offset after it, so a process that is killed at
any moment finds a state that the stream really had, and continues from its offset: no change is
lost, none is applied twice. WAL mode with `synchronous=NORMAL` survives a kill without an fsync for
each transaction; a power cut may take back the last transactions as a whole, and the stream has
them.

Each commit moves the copy on from the offset that this process last saw. If another process has
moved it meanwhile, nothing is written and `StoreConflict` is raised.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from os.path import abspath, dirname, isdir
from threading import RLock
from typing import NamedTuple

from streamd.state.consumer import Plan, Row
from streamd.state.events import StateError

_START = "-1"
_APPLICATION_ID = 0x53544442  # "STDB"
_FORMAT = 1
_ROWS_AT_ONCE = 5_000
_CACHE_KIB = 16 * 1024

_TABLES = f"""
CREATE TABLE copy (
  id INTEGER PRIMARY KEY CHECK (id = 0),
  stream TEXT NOT NULL,      -- its name
  incarnation TEXT NOT NULL, -- which of the streams that had this name; '' if unknown
  schema TEXT NOT NULL,      -- the types of entities that are kept, and the schema's version
  next_offset TEXT NOT NULL, -- where the messages begin that are not in the rows
  events INTEGER NOT NULL,   -- how many messages of the stream are in the rows
  in_snapshot INTEGER NOT NULL
);
CREATE TABLE rows (
  type TEXT NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL, -- JSON, as it was sent
  PRIMARY KEY (type, key)
) WITHOUT ROWID;
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_FORMAT};
"""


class StoreError(StateError):
    """The database cannot be used, or a statement failed."""


class StoreConflict(StoreError):
    """Another process writes to this copy of the stream."""


class StoreFull(StoreError):
    """The disk is full. What was committed stays, and the stream has the rest."""


class StoreNotFound(StoreError):
    """The file's directory does not exist."""


class StoreReadOnly(StoreError):
    """The file or its directory cannot be written."""


class StoreCorrupt(StoreError):
    """The file is damaged. Without it the copy is made again from the stream."""


# By SQLite's result codes (sqlite.org/rescode.html).
_KINDS: dict[int, type[StoreError]] = {
    3: StoreReadOnly,  # SQLITE_PERM
    5: StoreConflict,  # SQLITE_BUSY: after 30 s
    8: StoreReadOnly,  # SQLITE_READONLY
    11: StoreCorrupt,  # SQLITE_CORRUPT
    13: StoreFull,  # SQLITE_FULL
    14: StoreReadOnly,  # SQLITE_CANTOPEN
    26: StoreCorrupt,  # SQLITE_NOTADB
}


class Copied(NamedTuple):
    """How far a copy of a stream goes; without rows, `next_offset` is "-1"."""

    next_offset: str = _START
    events: int = 0
    in_snapshot: bool = False
    incarnation: str = ""


class SQLite:
    """A durable copy of a stream's state in a file, for one `StreamDB`.

    Its methods block, and wait for each other: a `StreamDB` calls them in worker threads. Other
    programs may read the file: the table `rows` has the type, the key and the JSON value of each
    entity.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = fspath(path)
        self._connection: sqlite3.Connection | None = None
        self._copied = Copied()
        self._lock = RLock()

    def open(self, stream: str, schema: str) -> Copied:
        """Open or create the copy; it starts over if it was kept for another schema.

        Raises `StoreError` if the file is something else or holds another stream.
        """
        with self._lock:
            self.close()
            directory = dirname(abspath(self._path))
            if not isdir(directory):
                raise StoreNotFound(f"{self._path}: the directory {directory} does not exist")
            with _errors(self._path):
                self._connection = sqlite3.connect(
                    self._path, isolation_level=None, check_same_thread=False, timeout=30
                )
            try:
                self._copied = self._opened(stream, schema)
            except BaseException:
                self.close()
                raise
            return self._copied

    def _opened(self, stream: str, schema: str) -> Copied:
        with _errors(self._path):
            self._check_file()
            self._execute("PRAGMA journal_mode = WAL")
            self._execute("PRAGMA synchronous = NORMAL")
            self._execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        with self._transaction():
            if self._number("user_version") == 0:
                for statement in _TABLES.split(";\n"):
                    self._execute(statement)
            found = self._execute(
                "SELECT stream, schema, next_offset, events, in_snapshot, incarnation FROM copy"
            ).fetchone()
            if found is None:
                self._execute(
                    "INSERT INTO copy VALUES (0, ?, '', ?, ?, 0, 0)", stream, schema, _START
                )
                return Copied()
            if found[0] != stream:
                raise StoreError(f"{self._path} holds the stream {found[0]}, not {stream}")
            if found[1] != schema:
                self._execute("DELETE FROM rows")
                self._execute(
                    "UPDATE copy SET schema = ?, next_offset = ?, events = 0, in_snapshot = 0",
                    schema,
                    _START,
                )
                return Copied(incarnation=found[5])
            return Copied(found[2], found[3], bool(found[4]), found[5])

    def _check_file(self) -> None:
        """Refuse a database of another program, or of a later release."""
        format_ = self._number("user_version")
        is_ours = self._number("application_id") == _APPLICATION_ID
        is_empty = self._execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
        if not is_ours and not is_empty:
            raise StoreError(f"{self._path} is a database of another program")
        if format_ > _FORMAT:
            raise StoreError(f"{self._path} has format {format_}; this release knows {_FORMAT}")

    def rows(self) -> Iterator[list[Row]]:
        """All rows, some thousands at a time. Raises `StoreError`."""
        with self._lock, _errors(self._path):
            cursor = self._execute("SELECT type, key, CAST(value AS BLOB) FROM rows")
        while True:
            # Not across the yield: a generator may end in another thread, or never.
            with self._lock, _errors(self._path):
                found = cursor.fetchmany(_ROWS_AT_ONCE)
            if not found:
                return
            yield [Row(*row) for row in found]

    def commit(self, plan: Plan, next_offset: str, incarnation: str = "") -> None:
        """Keep what a batch does, with the offset after it. Raises `StoreError`."""
        with self._lock:
            self._commit(plan, next_offset, incarnation)

    def _commit(self, plan: Plan, next_offset: str, incarnation: str) -> None:
        before = self._copied
        last = {(step.table.type, step.key): step.text for step in plan.steps}
        removed = [place for place, text in last.items() if text is None]
        # In the order of the tree, which touches each page once.
        written = sorted((*place, text) for place, text in last.items() if text is not None)
        events = plan.events if plan.restarts else before.events + plan.events
        after = Copied(next_offset, events, plan.in_snapshot, incarnation)
        with self._transaction():
            moved = self._execute(
                "UPDATE copy SET next_offset = ?, events = ?, in_snapshot = ?, incarnation = ?"
                " WHERE next_offset = ? AND events = ?",
                *after,
                before.next_offset,
                before.events,
            )
            if moved.rowcount != 1:
                raise StoreConflict(f"another process writes to {self._path}")
            if plan.clears:
                self._execute("DELETE FROM rows")
            self._many("DELETE FROM rows WHERE type = ? AND key = ?", removed)
            self._many("REPLACE INTO rows VALUES (?, ?, CAST(? AS TEXT))", written)
        self._copied = after

    def close(self) -> None:
        """Close the file; harmless if it is closed."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _errors(self._path):
            self._execute("BEGIN IMMEDIATE")
            try:
                yield
                self._execute("COMMIT")
            except BaseException:
                if self._connection is not None and self._connection.in_transaction:
                    self._execute("ROLLBACK")
                raise

    def _number(self, pragma: str) -> int:
        return int(self._execute(f"PRAGMA {pragma}").fetchone()[0])

    def _execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        if self._connection is None:
            raise StoreError(f"{self._path} is closed")
        return self._connection.execute(statement, values)

    def _many(self, statement: str, values: Sequence[tuple[object, ...]]) -> None:
        assert self._connection is not None, "a transaction has begun"
        self._connection.executemany(statement, values)


@contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        kind = _KINDS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, StoreError)
        raise kind(f"{path}: {error}") from error
