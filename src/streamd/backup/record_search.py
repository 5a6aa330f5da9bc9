"""Finds in the archived log the command that appended a record.

The log is read from the entry that created the stream on, or, if the archive begins after that,
from the newest checkpoint in which the stream ends before the record. Only the segment that is
being searched is in memory.
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

from streamd.backup.archived_objects import ArchivedObjects
from streamd.objectstore.catalog import Catalog
from streamd.objectstore.errors import ObjectMissing
from streamd.objectstore.segments import read_entries
from streamd.process.threads import RunBlocking
from streamd.proofs.record_proofs import FoundEntry
from streamd.raft.messages import EntryKind
from streamd.storage.raft_snapshots import whole_rows
from streamd.streams.content import UNDECODABLE
from streamd.streams.model import Stream
from streamd.streams.offsets import Position
from streamd.streams.queries.tracing import FoundCommand, Trace

# How often segments are listed again while some of them are merged.
_MAX_LISTS = 5


class Unprovable(Exception):
    """The archived log does not show which command appended the record."""


class SoughtRecord(NamedTuple):
    """A record: its stream's key and present fields, where the record begins, and its bytes."""

    key: bytes
    stream: Stream
    at: Position
    data: bytes


class RecordFound(NamedTuple):
    """The entry and its command that appended a record."""

    entry: FoundEntry
    command: FoundCommand


class RecordSearch:
    """Searches one group's archived log up to entry `last_index`."""

    def __init__(
        self,
        objects: ArchivedObjects,
        sought: SoughtRecord,
        last_index: int,
        *,
        incarnation_base: int,
        run_blocking: RunBlocking,
    ) -> None:
        self._objects = objects
        self._sought = sought
        self._last_index = last_index
        self._incarnation_base = incarnation_base
        self._run_blocking = run_blocking

    async def find(self) -> RecordFound | None:
        """The record's command; None if it is not in the log up to the last entry.

        Raises `Unprovable` if the archive lacks what the search needs; `ColdError`.
        """
        catalog = await self._objects.log()
        number = await self._first_segment(catalog)
        if number == len(catalog.segments):
            return None
        head = await self._objects.head(catalog.segments[number])
        if head.first_index == 1 or head.previous.time_ms < self._sought.stream.created_ms:
            found, index = await self._search(self._trace(), catalog, head.first_index - 1)
        else:
            found, index = await self._search_from_checkpoint()
        if found is None:
            if index < self._last_index:
                raise Unprovable(f"the archive lacks entry {index + 1}")
            return None
        if (found.command.at, found.command.data) != (self._sought.at, self._sought.data):
            raise Unprovable(
                "the archived log leads to another record: a quota has refused appends, or the "
                "stream was forked inside of the record"
            )
        return found

    def _trace(self) -> Trace:
        sought = self._sought
        stream = copy(sought.stream)
        return Trace(sought.key, stream, sought.at.record, self._incarnation_base)

    async def _first_segment(self, catalog: Catalog) -> int:
        """The number of the first segment that reaches the time at which the stream was created,
        and of the segment after the last one if none does."""
        low, high = 0, len(catalog.segments)
        while low < high:
            middle = (low + high) // 2
            head = await self._objects.head(catalog.segments[middle])
            if head.last.time_ms < self._sought.stream.created_ms:
                low = middle + 1
            else:
                high = middle
        return low

    async def _search_from_checkpoint(self) -> tuple[RecordFound | None, int]:
        catalog = await self._objects.catalog()
        for stored in reversed(catalog.manifests):
            if stored.parsed.log_index > self._last_index:
                continue
            manifest = await self._objects.manifest(stored)
            trace, rest = self._trace(), bytearray()
            for number in range(len(manifest.pieces)):
                rest += await self._objects.rows(manifest, number)
                await self._run_blocking(_load, trace, rest)
            if trace.begins_before_record():
                return await self._search(trace, catalog, manifest.of.index)
        raise Unprovable(
            "the archive begins after the stream was created, and no checkpoint has the stream "
            "before the record"
        )

    async def _search(
        self, trace: Trace, catalog: Catalog, after: int
    ) -> tuple[RecordFound | None, int]:
        """What a trace finds after an entry, and the last entry that it has applied."""
        lists = 0
        while after < self._last_index:
            path = catalog.path(after, self._last_index)
            if not path:
                break
            try:
                content = await self._objects.segment(path[0])
            except ObjectMissing:
                if lists == _MAX_LISTS:
                    raise
                lists += 1
                catalog = await self._objects.log()  # Merged since they were listed.
                continue
            found = await self._run_blocking(_found, trace, content, after, self._last_index)
            after = path[0].parsed.last_index
            if found is not None:
                return found, found.entry.index
        return None, after


def _load(trace: Trace, rest: bytearray) -> None:
    """Give a trace the whole rows at the beginning of `rest`, and keep what follows them."""
    rows = list(whole_rows(rest))
    trace.load((row, value) for row, value, _ in rows)
    if rows:
        del rest[: rows[-1][2]]


def _found(trace: Trace, content: bytes, after: int, last_index: int) -> RecordFound | None:
    """What a trace finds in a segment's entries after one, up to another."""
    for entry, position in read_entries(content):
        if not after < entry.index <= last_index or entry.kind != EntryKind.COMMANDS:
            continue
        try:
            command = trace.apply(entry.index, entry.term, position.time_ms, entry.payload)
        except UNDECODABLE as error:
            raise Unprovable(
                f"entry {entry.index} has a command that this release does not know: {error}"
            ) from error
        if command is not None:
            return RecordFound(FoundEntry(entry.index, entry.term, entry.payload), command)
    return None
