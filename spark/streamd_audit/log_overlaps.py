"""Segments that hold the same entries as others: every byte of an entry must be the same.

The chain alone would not show a difference: bytes can be added to an entry that was changed
until it has the CRC-32C of the original.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from struct import Struct

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from streamd_audit.context import Context, columns_of
from streamd_audit.errors import Damaged
from streamd_audit.findings import Finding, finding
from streamd_audit.frames import batches_of
from streamd_audit.listing import Overlap
from streamd_audit.names import SegmentName, parse
from streamd_audit.segments import Entry
from streamd_audit.sources.log import LogReader
from streamd_audit.sources.log_columns import LogEntry
from streamd_audit.sources.planning import Piece

DIGESTS_DDL = "`group` int, index long, object string, digest binary, problem string"
_OF_ENTRY = Struct(">QBI")

Problem = tuple[int, int | None, str, str]
"""Group, entry, object, and what is wrong."""


def digest_of_entry(entry: Entry) -> bytes:
    """SHA-256 of everything that a segment holds of an entry."""
    found = sha256(_OF_ENTRY.pack(entry.term, entry.kind, entry.chain))
    found.update(entry.payload)
    return found.digest()


class DigestReader(LogReader):
    """The digests of the entries that several segments have, and what is wrong with those."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, overlaps: Sequence[Overlap]
    ) -> None:
        super().__init__(options, schema)
        self._spans: dict[int, list[tuple[int, int]]] = {}
        for one in overlaps:
            self._spans.setdefault(one.group, []).append((one.first, one.last))

    @property
    def has_overlaps(self) -> bool:
        return True

    def wants(self, name: str, size: int) -> bool:
        found = parse(name)
        return isinstance(found, SegmentName) and any(
            first <= found.last and found.first <= last
            for first, last in self._spans.get(found.group, ())
        )

    def _with_commands(self, entry: Entry) -> LogEntry:
        found = super()._with_commands(entry)
        found.payload = digest_of_entry(entry)
        return found

    def _rows(
        self, piece: Piece, name: SegmentName, entries: list[LogEntry]
    ) -> Iterator[pa.RecordBatch]:
        spans = self._spans.get(name.group, ())
        yield from batches_of(
            DIGESTS_DDL,
            (
                (name.group, entry.index, piece.name, entry.payload, entry.problem)
                for entry in entries
                if entry.problem or any(one <= entry.index <= last for one, last in spans)
            ),
        )

    def _problem(self, piece: Piece, name: SegmentName, damaged: Damaged) -> pa.RecordBatch:
        told = self.told(damaged, piece.name)
        row = name.group, damaged.at, piece.name, None, told
        return next(batches_of(DIGESTS_DDL, [row]))


def overlapping(context: Context) -> tuple[list[Finding], list[Problem]]:
    """The first entry in which each overlapping segment differs from another, and what is wrong
    with the segments."""
    overlaps = context.listing.overlaps
    if not overlaps:
        return [], []
    reader = DigestReader(context.of_sources, columns_of(DIGESTS_DDL), overlaps)
    rows = context.read(reader, DIGESTS_DDL)
    problems = [
        (row["group"], row["index"], row["object"], row["problem"])
        for row in rows.where("problem is not null").collect()
    ]
    same = rows.where("digest is not null").groupBy("group", "index")
    counted = same.agg(
        f.count_distinct("digest").alias("digests"),
        f.sort_array(f.collect_set("object")).alias("objects"),
    )
    odd = counted.where("digests > 1").groupBy("group", f.col("objects")[1].alias("object"))
    first = odd.agg(f.min("index").alias("index")).select("group", "object", "index").collect()
    found = [disagreement(context.cluster, *row) for row in first]
    return found, problems


def disagreement(cluster: str, group: int, name: str, index: int) -> Finding:
    """A segment whose entry `index` is the first that other segments have otherwise."""
    return finding(
        "segments_disagree",
        cluster=cluster,
        group=group,
        index=index,
        object=name,
        expected="the entry that other segments have",
        found="another one",
    )
