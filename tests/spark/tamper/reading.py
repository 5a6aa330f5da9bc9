"""What the audit's twin reads: rows of the audit's own sources, each object's once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from streamd_audit import states
from streamd_audit.checkpoints import read_manifest
from streamd_audit.errors import Damaged, ObjectMissing
from streamd_audit.frames import columns_of
from streamd_audit.listing import Overlap
from streamd_audit.log_overlaps import DIGESTS_DDL, DigestReader
from streamd_audit.names import SegmentName, parse
from streamd_audit.replay import scan, stored
from streamd_audit.sources.manifests import ManifestsSource
from streamd_audit.sources.packs import PacksSource
from streamd_audit.sources.planning import Piece
from streamd_audit.sources.source import BucketReader, BucketSource
from streamd_audit.sources.state import StateSource
from streamd_audit.store import Store
from streamd_audit.tree_parts import CoveredReader

T = TypeVar("T")
Row = tuple[Any, ...]
Said = dict[str, Any]

_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "long": LongType(),
    "bigint": LongType(),
    "binary": BinaryType(),
}


def schema_of(ddl: str) -> StructType:
    """As `StructType.fromDDL`, which needs a JVM."""
    found = StructType()
    for name, kind in columns_of(ddl).items():
        found.add(name, _TYPES[kind])
    return found


class Memory:
    """What was found out before, by everything that it depends on."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` returned when it was called for this key."""
        if key not in self._known:
            self._known[key] = make()
        found: T = self._known[key]
        return found


class Reading:
    """Reads one store of a cluster."""

    def __init__(self, store: Store, cluster: str, memory: Memory) -> None:
        self._store = store
        self._cluster = cluster
        self._memory = memory
        self._options = {"store": "memory", "cluster": cluster}

    def content(self, name: str) -> bytes | None:
        """An object's bytes; None if it cannot be read."""
        try:
            return self._store.read(name)
        except (ObjectMissing, Damaged):
            return None

    def manifests(self) -> list[Said]:
        return self._rows(ManifestsSource, states._COLUMNS)

    def packs(self) -> list[Said]:
        return self._rows(PacksSource, "object string, size long")

    def state_rows(self) -> list[Said]:
        """The rows of all states, and what is wrong with their objects."""
        return self._rows(stored.StrictStates, stored._STATES_DDL, every="true")

    def scanned(
        self, places: set[int], since: Mapping[int, int], tree_places: set[int]
    ) -> list[Row]:
        """The log, of groups after entries of `since`, and its trees, as rows of
        `scan.SCANNED_DDL`."""
        schema = schema_of(scan.SCANNED_DDL)
        asked = tuple(sorted(places))
        found: list[Row] = []
        for piece in scan.Scan(self._options, schema, asked, since).pieces(self._store):
            of_tree = _inside(piece, tree_places)
            key = "scan", piece, asked, of_tree, tuple(since.items()), self.content(piece.name)

            def read(piece: Piece = piece, of_tree: frozenset[int] = of_tree) -> list[Row]:
                one = scan.Scan(self._options, schema, asked, since, of_tree)
                return list(_tuples(one, self._store, piece))

            found += self._memory.once(key, read)
        return found

    def covered(self, overlaps: Sequence[Overlap], tree_places: set[int]) -> list[Row]:
        """The trees of segments that others cover, as rows of `scan.SCANNED_DDL`."""
        names = {one.object for one in overlaps}
        schema = schema_of(scan.SCANNED_DDL)
        reader = CoveredReader(self._options, schema, tree_places, names)
        pieces = list(reader.pieces(self._store)) if names else []
        return [row for piece in pieces for row in _tuples(reader, self._store, piece)]

    def digests(self, overlaps: Sequence[Overlap]) -> list[Row]:
        """The entries that several segments have, as rows of `log_overlaps.DIGESTS_DDL`."""
        schema = schema_of(DIGESTS_DDL)
        reader = DigestReader(self._options, schema, overlaps)
        pieces = list(reader.pieces(self._store))
        return [row for piece in pieces for row in _tuples(reader, self._store, piece)]

    def _rows(self, kind: type[BucketSource], ddl: str, **more: str) -> list[Said]:
        """The rows of a source."""
        reader = kind({**self._options, **more}).reader(schema_of(ddl))
        assert isinstance(reader, BucketReader)
        names = list(columns_of(ddl))
        found: list[Said] = []
        for piece in reader.pieces(self._store):

            def read(piece: Piece = piece) -> list[Said]:
                rows = _tuples(reader, self._store, piece)
                return [dict(zip(names, row, strict=True)) for row in rows]

            found += self._memory.once((kind, ddl, piece, self._depends(kind, piece)), read)
        return found

    def _depends(self, kind: type[BucketSource], piece: Piece) -> Any:
        """The bytes that the rows about an object depend on."""
        content = self.content(piece.name)
        if not issubclass(kind, StateSource) or content is None:
            return content
        pieces = self._memory.once(("pieces", content), lambda: _pieces_in(content))
        return content, *(self.content(f"{self._cluster}/{name}") for name in pieces)


def _inside(piece: Piece, places: set[int]) -> frozenset[int]:
    """The places that are entries of a segment, by its name."""
    named = parse(piece.name.partition("/")[2])
    assert isinstance(named, SegmentName)
    return frozenset(one for one in places if named.first <= one <= named.last)


def _tuples(reader: BucketReader, store: Store, piece: Piece) -> Iterator[Row]:
    for batch in reader.batches(store, [piece]):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _pieces_in(manifest: bytes) -> list[str]:
    """The names of the pieces that a manifest names, if it can be read."""
    try:
        found = read_manifest(manifest)
    except Damaged:
        return []
    return [found.piece_name(number) for number in range(len(found.pieces))]
