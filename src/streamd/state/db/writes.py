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


class DatabaseClosed(StateError):
    """The database does not follow the stream: it was closed, or the stream was."""


class _Write:
    """The events of one transaction that have not come back, and the rows that they show in.

    `end` is the offset after them, once the append was acknowledged.
    """

    __slots__ = ("end", "left", "rows")

    def __init__(self, left: int, rows: list[tuple[Table[Any], str]]) -> None:
        self.end: str | None = None
        self.left = left
        self.rows = rows


class Writes:
    """The transactions of this program, and those that anyone waits for."""

    def __init__(self) -> None:
        self._own: dict[str, _Write] = {}
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, list[anyio.Event]] = {}
        self._error: Exception | None = None

    def begin(self, txid: str, shown: list[tuple[Table[Any], str, Any]], events: int) -> None:
        """Show the values of a transaction until it settles. Raises `StateError`."""
        self.check()
        if txid in self._own:
            raise StateError(f"the transaction {txid!r} is under way")
        for table, key, value in shown:
            table.write(key, value, txid)
        self._own[txid] = _Write(events, [(table, key) for table, key, _ in shown])

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

    def stored(self, txid: str, end: str) -> None:
        """The stream has the events of a transaction before the offset `end`."""
        write = self._own.get(txid)
        if write is not None:
            write.end = end

    def reached(self, offset: str) -> None:
        """The rows are those of the stream before `offset`.

        A snapshot brings the effect of the transactions that it replaces, but not their txids.
        """
        for txid, write in list(self._own.items()):
            if write.end is not None and write.end <= offset:
                self._settle(txid)

    def _settle(self, txid: str) -> None:
        self.fail(txid)
        self._seen[txid] = None
        self._seen.move_to_end(txid)
        if len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)
        for event in self._waiting.pop(txid, ()):
            event.set()

    async def wait_for(self, txid: str) -> None:
        """Wait until a transaction came; at once if it is among the last that did.

        Raises `DatabaseClosed`, or the error that ended the database.
        """
        if txid in self._seen:
            return
        self.check()
        event = anyio.Event()
        self._waiting.setdefault(txid, []).append(event)
        try:
            await event.wait()
        finally:
            waiting = self._waiting.get(txid)
            if waiting is not None:
                waiting.remove(event)
                if not waiting:
                    del self._waiting[txid]
        if txid not in self._seen:
            self.check()

    def check(self) -> None:
        """Raise the error that ended the database, if one did."""
        if self._error is not None:
            raise self._error

    def end(self, error: Exception) -> None:
        """Nothing comes any longer: all that wait get the error. The first error counts."""
        self._error = self._error or error
        for txid in list(self._own):
            self.fail(txid)
        for events in self._waiting.values():
            for event in events:
                event.set()
