"""The parts of the tree over the log in segments that others cover, which are not read with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from streamd_audit.context import Context, columns_of
from streamd_audit.errors import Damaged, ObjectMissing
from streamd_audit.frames import batches_of
from streamd_audit.log_trees import PartMaker
from streamd_audit.names import SegmentName, parse
from streamd_audit.replay import scan
from streamd_audit.segments import read_entries
from streamd_audit.sources.log import LogReader
from streamd_audit.sources.planning import Piece
from streamd_audit.store import Store
from streamd_audit.tree_claims import tree_places


class CoveredReader(LogReader):
    """Reads these segments, and makes a row `scan.TREE` of each."""

    def __init__(
        self,
        options: Mapping[str, str],
        schema: StructType,
        places: Collection[int],
        names: Collection[str],
    ) -> None:
        super().__init__({**options, "overlaps": "true"}, schema)
        self._places, self._names = frozenset(places), frozenset(names)

    def wants(self, name: str, size: int) -> bool:
        return f"{self.cluster}/{name}" in self._names and super().wants(name, size)

    def parts_of(self, name: str, size: int) -> int:
        return 1

    def batches(self, store: Store, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            name = parse(self.below(piece.name))
            assert isinstance(name, SegmentName)
            # What cannot be read of a segment, other jobs tell of.
            with suppress(ObjectMissing, Damaged):
                content = store.read(piece.name)
                part = PartMaker(piece.name, name, content, self._places)
                yield from batches_of(scan.SCANNED_DDL, [_row_of(part, name, piece, content)])


def covered_parts(context: Context) -> DataFrame | None:
    """Rows of `scan.SCANNED_DDL` about the segments that begin with entries of earlier ones; None
    if there are none."""
    names = {overlap.object for overlap in context.listing.overlaps}
    if not names:
        return None
    options, ddl = context.of_sources, scan.SCANNED_DDL
    reader = CoveredReader(options, columns_of(ddl), tree_places(context), names)
    return context.read(reader, ddl)


def _row_of(part: PartMaker, name: SegmentName, piece: Piece, content: bytes) -> scan.Row:
    wrong = None
    try:
        for entry in read_entries(content):
            part.add(entry)
    except Damaged as damaged:
        wrong = damaged
    return scan.tree_row(name, piece, part.finish(wrong))
