"""Writes that are under way, and waiting for transactions to come back on the stream."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import anyio

from streamd.state.events import StateError
from streamd.state.tables import Table

# How many transactions are remembered after they came.
MAX_SEEN = 10_000
START = "-1"


class DatabaseClosed(StateError):
    """The database does not follow the stream: it was closed, or the stream was."""


class Overtaken(StateError):
    """Whether the transaction was stored is unknown: a snapshot replaced messages before they were
    read, or another stream has the name."""


class _Write:
    """The events of one transaction that have not come back, and the rows that they show in.

    `end` is the offset after them, once the append was acknowledged. It `is_lost` if another stream
    has the name since.
    """

    __slots__ = ("end", "is_lost", "left", "rows")

    def __init__(self, left: int, rows: list[tuple[Table[Any], str]]) -> None:
        self.end: str | None = None
        self.is_lost = False
        self.left = left
        self.rows = rows


class _Wait:
    """Someone waits until a transaction comes, or until the rows are those before an offset."""

    __slots__ = ("error", "is_over", "offset", "txid")

    def __init__(self, txid: str | None, offset: str | None) -> None:
        self.txid = txid
        self.offset = offset
        self.error: Exception | None = None
        self.is_over = anyio.Event()


class Writes:
    """The transactions of this program, and those that anyone waits for."""

    def __init__(self) -> None:
        self._own: dict[str, _Write] = {}
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._waits: set[_Wait] = set()
        self._offset = START
        self._error: Exception | None = None

    def begin(self, txid: str, shown: list[tuple[Table[Any], str, Any]], events: int) -> _Write:
        """Show the values of a transaction until it settles. Raises `StateError`."""
        self.check()
        if txid in self._own:
            raise StateError(f"the transaction {txid!r} is under way")
        for table, key, value in shown:
            table.write(key, value, txid)
        write = self._own[txid] = _Write(events, [(table, key) for table, key, _ in shown])
        return write

    def fail(self, txid: str) -> None:
        """Take back what a transaction shows."""
        write = self._own.pop(txid, None)
        if write is not None:
            for table, key in write.rows:
                table.settle(key, txid)

    def came(self, txids: Mapping[str, int]) -> None:
        """The stream brought events of transactions.

        A transaction of this program settles with the last of its events: a batch may end between
        two of them, and its rows would show neither the write nor what follows from it.
        """
        for txid, events in txids.items():
            write = self._own.get(txid)
            if write is not None:
                write.left -= events
                if write.left > 0:
                    continue
            self._settle(txid)
        self._tell()

    def stored(self, write: _Write, end: str) -> None:
        """The stream has the events of a transaction before `end`. Raises `Overtaken`."""
        if write.is_lost:
            raise Overtaken("another stream has the name since the events were appended")
        write.end = end
        self.reached(self._offset)

    def reached(self, offset: str) -> None:
        """The rows are those of the stream before `offset`.

        A snapshot brings the effect of the transactions that it replaces, but not their txids.
        """
        self._offset = offset
        for txid, write in list(self._own.items()):
            if write.end is not None and write.end <= offset:
                self._settle(txid)
        self._tell()

    def _settle(self, txid: str) -> None:
        self.fail(txid)
        self._seen[txid] = None
        self._seen.move_to_end(txid)

    def _tell(self) -> None:
        for wait in self._waits:
            if self._is_in(wait.txid, wait.offset):
                wait.is_over.set()
        while len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)

    def _is_in(self, txid: str | None, offset: str | None) -> bool:
        return txid in self._seen or (offset is not None and offset <= self._offset)

    def overtaken(self, *, by_another_stream: bool = False) -> None:
        """Messages went that were not read. Offsets tell what was in them, unless of another
        stream; txids do not."""
        error = Overtaken("messages were replaced before they were read; wait for an offset")
        for wait in self._waits:
            if not wait.is_over.is_set() and (wait.offset is None or by_another_stream):
                wait.error = error
                wait.is_over.set()
        if by_another_stream:
            for txid, write in list(self._own.items()):
                write.is_lost = True
                self.fail(txid)

    async def wait_for(self, txid: str | None, offset: str | None) -> None:
        """Wait until a transaction came, or until the rows are those before an offset.

        At once if the txid is among the last that came. Raises `Overtaken`, `DatabaseClosed`, or
        the error that ended the database.
        """
        if self._is_in(txid, offset):
            return
        self.check()
        wait = _Wait(txid, offset)
        self._waits.add(wait)
        try:
            await wait.is_over.wait()
        finally:
            self._waits.discard(wait)
        if wait.error is not None:
            raise wait.error

    def check(self) -> None:
        """Raise the error that ended the database, if one did."""
        if self._error is not None:
            raise self._error

    def end(self, error: Exception) -> None:
        """Nothing comes any longer: all that wait get the error. The first error counts."""
        self._error = self._error or error
        for txid in list(self._own):
            self.fail(txid)
        for wait in self._waits:
            if not wait.is_over.is_set():
                wait.error = error
                wait.is_over.set()
