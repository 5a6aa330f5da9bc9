"""``streamd_log``: the commands in the archived log, one row each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from streamd_audit.commands import decode_batch
from streamd_audit.errors import CHAIN, OTHER_CLUSTER, Damaged, ObjectMissing
from streamd_audit.framing import check_digest
from streamd_audit.names import LOG, SegmentName, group_folder, parse
from streamd_audit.segments import (
    COMMANDS,
    HEAD_BYTES,
    Entry,
    check_cluster,
    check_name,
    read_entries,
    read_head,
)
from streamd_audit.sources.log_columns import LogEntry, LogRows
from streamd_audit.sources.planning import Piece
from streamd_audit.sources.source import (
    BATCH_BYTES,
    BATCH_ROWS,
    BucketReader,
    BucketSource,
    columns,
)
from streamd_audit.store import Store

# Columns that are the same for all commands of an entry, and that filters may be about.
_OF_ENTRIES = ("index", "term", "log_ms")


class LogReader(BucketReader):
    FOLDER = LOG
    # As stored; the entries in it may be a multiple.
    TASK_BYTES = 16 * 1024 * 1024

    @property
    def has_overlaps(self) -> bool:
        return self.options.get("overlaps", "false").lower() == "true"

    def wants(self, name: str, size: int) -> bool:
        found = parse(name)
        return (
            isinstance(found, SegmentName)
            and self.filters.admits("group", found.group)
            and self.filters.meets("index", found.first, found.last)
        )

    def parts_of(self, name: str, size: int) -> int:
        return -(-size // self.task_bytes)

    def pieces(self, store: Store, after: str = "", after_index: int = 0) -> Iterator[Piece]:
        """Segments end to end, or with ``overlaps`` all of them: a merge leaves some that overlap
        for a while, and a deposed leader for ever."""
        group, covered = -1, after_index
        for name, size in self.listed(store, after):
            found = parse(self.below(name))
            assert isinstance(found, SegmentName)
            if self.has_overlaps:
                yield Piece(name, size)
                continue
            if found.group != group:
                covered = 0 if group >= 0 else after_index
                group = found.group
            if found.last > covered:
                yield Piece(name, size, after=covered)
                covered = found.last

    def batches(self, store: Store, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            yield from self._segment(store, piece)

    def _segment(self, store: Store, piece: Piece) -> Iterator[pa.RecordBatch]:
        name = parse(self.below(piece.name))
        if not isinstance(name, SegmentName):
            return
        try:
            if self._is_of_other_times(store, piece.name):
                return
            content = store.read(piece.name)
        except ObjectMissing:
            yield from self._merged_meanwhile(store, piece, name)
            return
        except Damaged as damaged:
            yield from self._head(piece, name, b"")
            yield self._problem(piece, name, damaged)
            return
        yield from self._head(piece, name, content)
        foreign = _foreign(content, self.cluster)
        if foreign is not None:
            if piece.part == 0:
                yield self._problem(piece, name, foreign)
            return
        first, last = _share(name, piece)
        gathered: list[LogEntry] = []
        rows = size = 0
        is_right = True
        is_filtered = any(column in self.filters for column in _OF_ENTRIES)
        try:
            for entry in read_entries(content, first_index=first, last_index=last):
                if is_filtered and not self._is_wanted(entry):
                    continue
                gathered.append(self._with_commands(entry))
                is_right = is_right and gathered[-1].problem is None
                rows += len(gathered[-1].commands) or 1
                size += len(entry.payload)
                if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                    yield from self._rows(piece, name, gathered)
                    gathered, rows, size = [], 0, 0
            yield from self._rows(piece, name, gathered)
            if is_right and piece.part == 0 and "problem" in self.columns:
                yield from self._wrong_with(content, piece, name)
            yield from self._end(piece, name, None)
        except Damaged as damaged:
            yield from self._rows(piece, name, gathered)
            yield from self._end(piece, name, damaged)
            # Each part finds what is wrong with the whole.
            if piece.part == 0 or (damaged.at is not None and damaged.at >= first):
                yield self._problem(piece, name, damaged)

    def _head(self, piece: Piece, name: SegmentName, content: bytes) -> Iterator[pa.RecordBatch]:
        """What to report about a segment before its entries."""
        return iter(())

    def _end(
        self, piece: Piece, name: SegmentName, damaged: Damaged | None
    ) -> Iterator[pa.RecordBatch]:
        """What to report about a segment after its entries, the last of which may be damaged."""
        return iter(())

    def _is_of_other_times(self, store: Store, name: str) -> bool:
        """Whether the head, which is small, shows that nothing in a segment is wanted."""
        if not any(column in self.filters for column in ("log_ms", "term")):
            return False
        try:
            head = read_head(store.read(name, 0, HEAD_BYTES))
        except Damaged:
            return False
        return not (
            self.filters.meets("log_ms", head.first_time_ms, head.last.time_ms)
            and self.filters.meets("term", head.first_term, head.last.term)
        )

    def _merged_meanwhile(
        self, store: Store, piece: Piece, name: SegmentName
    ) -> Iterator[pa.RecordBatch]:
        """The entries of a segment that disappeared since it was listed, from the segments that
        hold them now. None holds them if they are older than the retention."""
        folder = f"{self.cluster}/{group_folder(LOG, name.group)}"
        first, last = _share(name, piece)
        for page in store.list(folder):
            for other, size in page:
                found = parse(self.below(other))
                if not isinstance(found, SegmentName) or found.last < first or found.first > last:
                    continue
                if other == piece.name:
                    continue
                yield from self._segment(
                    store, Piece(other, size, after=max(piece.after, first - 1), until=last)
                )
                first = found.last + 1

    def _is_wanted(self, entry: Entry) -> bool:
        admits = self.filters.admits
        return (
            admits("index", entry.index)
            and admits("term", entry.term)
            and admits("log_ms", entry.time_ms)
        )

    def _wrong_with(
        self, content: bytes, piece: Piece, name: SegmentName
    ) -> Iterator[pa.RecordBatch]:
        """What is wrong with a segment as a whole, although every entry is right."""
        try:
            check_digest(piece.name, content)
            check_name(name, read_head(content))
        except Damaged as damaged:
            yield self._problem(piece, name, damaged)

    def _rows(
        self, piece: Piece, name: SegmentName, entries: list[LogEntry]
    ) -> Iterator[pa.RecordBatch]:
        rows = LogRows(entries, self.filters)
        if len(rows):
            own = {"cluster": self.cluster, "group": name.group, "object": piece.name}
            yield self.batch(len(rows), own, rows.column)

    def _problem(self, piece: Piece, name: SegmentName, damaged: Damaged) -> pa.RecordBatch:
        return self.problem_row(damaged, group=name.group, index=damaged.at, object=piece.name)

    def _with_commands(self, entry: Entry) -> LogEntry:
        found = LogEntry(entry.index, entry.term, entry.kind, entry.chain, entry.time_ms)
        if not entry.is_linked:
            damaged = Damaged(CHAIN, f"entry {entry.index} breaks the chain", entry.index)
            found.problem = self.told(damaged)
        if entry.kind != COMMANDS:
            found.payload = bytes(entry.payload)
            return found
        found.stamp_ms = entry.stamp_ms
        try:
            batch = decode_batch(entry.payload, entry.index)
        except Damaged as damaged:
            found.problem = found.problem or self.told(damaged)
            return found
        found.commands, found.packages = batch.commands, batch.packages
        return found


def _foreign(content: bytes, cluster: str) -> Damaged | None:
    """The damage if a segment belongs to another cluster: its entries are not part of this log."""
    try:
        check_cluster(content, cluster)
    except Damaged as damaged:
        return damaged if damaged.kind == OTHER_CLUSTER else None
    return None


class LogSource(BucketSource):
    """One row for each command of each entry; an entry without commands has one row."""

    NAME = "streamd_log"
    READER = LogReader
    MORE_OPTIONS = ("overlaps",)
    COLUMNS = columns(
        "cluster string, group int, index bigint, term bigint, entry_kind string, "
        "log_ms bigint, stamp_ms bigint, chain bigint, object string, position int, "
        "commands int, kind string, bucket string, stream string, stream_id bigint, "
        "records int, bytes bigint, lengths array<int>, payload binary, digests binary, "
        "producer struct<id:string,epoch:bigint,seq:bigint>, close boolean, seq string, "
        "package struct<node_id:bigint,session_id:bigint,sequence:bigint,lowest:bigint,"
        "count:bigint>, head binary, problem string"
    )


def _share(name: SegmentName, piece: Piece) -> tuple[int, int]:
    """The first and the last entry that a piece covers."""
    count = name.last + 1 - name.first
    first = name.first + count * piece.part // piece.parts
    last = name.first + count * (piece.part + 1) // piece.parts - 1
    if piece.until is not None:
        last = min(last, piece.until)
    return max(first, piece.after + 1), last
