"""``streamd_state``: the rows of a state in the cold store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from streamd_audit.checkpoints import (
    Manifest,
    check_manifest_name,
    check_piece_name,
    read_manifest,
    read_piece,
    read_piece_head,
)
from streamd_audit.errors import (
    CONTRADICTION,
    OTHER_CLUSTER,
    Damaged,
    ObjectMissing,
)
from streamd_audit.framing import Buffer, check_digest
from streamd_audit.names import SNAPSHOTS, ManifestName, PieceName, parse
from streamd_audit.rows import KINDS, Row, read_row, split_rows
from streamd_audit.sources.log_columns import binary, split_key
from streamd_audit.sources.planning import Piece
from streamd_audit.sources.source import (
    BATCH_BYTES,
    BATCH_ROWS,
    BadOption,
    BucketReader,
    BucketSource,
    columns,
)
from streamd_audit.store import Store

_RAW = frozenset(("cluster", "group", "index", "object", "kind", "key", "value", "problem"))


class StateRow(msgspec.Struct, gc=False):
    """A row as it is in a piece, and decoded if that is requested."""

    piece: str
    kind: str
    key: bytes
    value: Buffer
    row: Row | None = None
    problem: str | None = None


class StateReader(BucketReader):
    FOLDER = SNAPSHOTS
    # A task for each manifest: the objects that it names are larger.
    TASK_BYTES = 1

    def pieces(self, store: Store, after: str = "", after_index: int = 0) -> Iterator[Piece]:
        """For each group the manifest of the newest wanted state, or with ``every`` all of them."""
        every = self.options.get("every", "false").lower() == "true"
        newest: Piece | None = None
        group = -1
        for name, size in self.listed(store, after):
            found = parse(self.below(name))
            assert isinstance(found, ManifestName)
            if newest is not None and (every or found.group != group):
                yield newest
            newest, group = Piece(name, size), found.group
        if newest is not None:
            yield newest

    def wants(self, name: str, size: int) -> bool:
        found = parse(name)
        return (
            isinstance(found, ManifestName)
            and self.filters.admits("group", found.group)
            and (self._until is None or found.index <= self._until)
        )

    def batches(self, store: Store, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            name = parse(self.below(piece.name))
            if not isinstance(name, ManifestName) or not self.filters.admits("index", name.index):
                continue
            try:
                content = store.read(piece.name)
                check_digest(piece.name, content)
                manifest = read_manifest(content)
                check_manifest_name(name, manifest)
                if manifest.of.cluster != self.cluster:
                    raise Damaged(OTHER_CLUSTER, f"the manifest is of {manifest.of.cluster}")
                self.check(content, manifest)
            except (Damaged, ObjectMissing) as error:
                yield self._problem(name, piece.name, error)
                continue
            yield from self._state(store, name, manifest)

    def check(self, content: Buffer, manifest: Manifest) -> None:
        """Further checks of a manifest; a reader of rows skips what it does not know."""

    @property
    def _until(self) -> int | None:
        given = self.options.get("index")
        if given is None:
            return None
        if not given.isdecimal():
            raise BadOption(f"the option 'index' is {given!r}, not the index of a log entry")
        return int(given)

    def _state(
        self, store: Store, name: ManifestName, manifest: Manifest
    ) -> Iterator[pa.RecordBatch]:
        gathered: list[StateRow] = []
        size = number = 0
        while number < len(manifest.pieces):
            rows = _Pieces(store, self.cluster, manifest, number)
            try:
                for key, value in split_rows(rows):
                    row = self._row(rows.name, key, value)
                    if row is None:
                        continue
                    gathered.append(row)
                    size += len(value)
                    if len(gathered) >= BATCH_ROWS or size >= BATCH_BYTES:
                        yield self._batch(name, gathered)
                        gathered, size = [], 0
            except (Damaged, ObjectMissing) as error:
                yield self._problem(name, rows.name, error)
            # After a piece that cannot be read, rows begin with the next one.
            number = rows.number
        if gathered:
            yield self._batch(name, gathered)

    def _row(self, piece: str, key: bytes, value: Buffer) -> StateRow | None:
        """A row, decoded if necessary; None if the filters exclude it."""
        kind = KINDS.get(chr(key[0]), "unknown") if key else "unknown"
        if not self.filters.admits("kind", kind):
            return None
        found = StateRow(piece, kind, key, value)
        if not self.columns.issubset(_RAW):
            try:
                found.row = read_row(key, value)
            except Damaged as damaged:
                found.problem = self.told(damaged, piece)
        return found

    def _batch(self, name: ManifestName, rows: list[StateRow]) -> pa.RecordBatch:
        own = {"cluster": self.cluster, "group": name.group, "index": name.index}
        return self.batch(len(rows), own, lambda column: _column(rows, column))

    def _problem(
        self, name: ManifestName, object_name: str, error: Damaged | ObjectMissing
    ) -> pa.RecordBatch:
        if isinstance(error, ObjectMissing):
            error = Damaged("missing", "the object is not there")
        return self.problem_row(error, group=name.group, index=name.index, object=object_name)


class _Pieces:
    """The rows in a manifest's pieces, from a number on; `name` is the piece read last, `number`
    that of the next one."""

    def __init__(self, store: Store, cluster: str, manifest: Manifest, number: int) -> None:
        self._store = store
        self._cluster = cluster
        self._manifest = manifest
        self.number = number
        self.name = ""

    def __iter__(self) -> Iterator[bytes]:
        while self.number < len(self._manifest.pieces):
            ref = self._manifest.pieces[self.number]
            below = self._manifest.piece_name(self.number)
            self.name = f"{self._cluster}/{below}"
            self.number += 1
            content = self._store.read(self.name)
            rows = read_piece(content)
            check_digest(self.name, content)
            name = parse(below)
            assert isinstance(name, PieceName)
            check_piece_name(name, read_piece_head(content))
            if (len(content), len(rows)) != (ref.size, ref.rows_bytes):
                raise Damaged(
                    CONTRADICTION,
                    f"a piece has {len(content)} bytes with {len(rows)} of rows, the manifest says "
                    f"{ref.size} with {ref.rows_bytes}",
                )
            yield rows


class StateSource(BucketSource):
    """One row for each row of the newest state of each group; with ``index``, of the newest state
    not after that entry; with ``every``, of all states."""

    NAME = "streamd_state"
    READER = StateReader
    MORE_OPTIONS = ("index", "every")
    COLUMNS = columns(
        "cluster string, group int, index bigint, object string, kind string, key binary, "
        "value binary, bucket string, stream string, stream_id bigint, blob_id bigint, "
        "producer_id string, records bigint, bytes bigint, closed boolean, deleted boolean, "
        "content_type string, created_ms bigint, last_write_ms bigint, ttl_ms bigint, "
        "expires_at_ms bigint, epoch bigint, seq bigint, start_record bigint, "
        "start_byte bigint, end_record bigint, end_byte bigint, pack_term bigint, "
        "pack_number bigint, offset bigint, length bigint, crc bigint, records_digest binary, "
        "pack string, size bigint, live bigint, problem string"
    )


def _column(rows: Sequence[StateRow], column: str) -> Any:
    match column:
        case "object":
            return [row.piece for row in rows]
        case "value":
            return binary([row.value for row in rows])
        case "kind" | "key" | "problem":
            return [getattr(row, column) for row in rows]
    of = _DECODED[column]
    return [
        value(row.row) if row.row is not None and (value := of.get(row.kind)) is not None else None
        for row in rows
    ]


def _number(at: int) -> Callable[[Row], int]:
    return lambda row: row.numbers[at]


def _field(name: str) -> Callable[[Row], Any]:
    return lambda row: getattr(row.value, name)


def _bucket_in(row: Row) -> str | None:
    return split_key(row.rest)[0]


def _name_in(row: Row) -> str | None:
    return split_key(row.rest)[1]


def _text(row: Row) -> str:
    return row.rest.decode("utf-8", "replace")


# Of each column what it is in the rows of which kind.
_DECODED: dict[str, dict[str, Callable[[Row], Any]]] = {
    "bucket": {"bucket": _text, "stream": _bucket_in, "expiry": _bucket_in, "hot": _bucket_in},
    "stream": {"stream": _name_in, "expiry": _name_in, "hot": _name_in},
    "stream_id": {
        "stream": _field("stream_id"),
        "upload": _field("stream_id"),
        **{
            kind: _number(0)
            for kind in ("chunk", "producer", "garbage", "trim", "slice", "dropped")
        },
    },
    "blob_id": {kind: _number(0) for kind in ("part", "blob", "upload")},
    "producer_id": {"producer": _text},
    "records": {
        "stream": _field("records"),
        "blob": _field("records"),
        "producer": _field("record"),
    },
    "bytes": {
        "stream": _field("size"),
        "blob": _field("size"),
        "producer": _field("byte"),
        "upload": _field("size"),
    },
    "closed": {"stream": _field("closed")},
    "deleted": {"stream": _field("deleted")},
    "content_type": {"stream": _field("content_type")},
    "created_ms": {"stream": _field("created_ms"), "bucket": _field("created_ms")},
    "last_write_ms": {"stream": _field("last_write_ms")},
    "ttl_ms": {"stream": _field("ttl_ms")},
    "expires_at_ms": {"stream": _field("expires_at_ms")},
    "epoch": {"producer": _field("epoch")},
    "seq": {"producer": _field("seq")},
    "start_record": {"slice": _field("start_record"), "chunk": _field("start_record")},
    "start_byte": {"slice": _field("start_byte"), "chunk": _field("start_byte")},
    "end_record": {kind: _number(1) for kind in ("slice", "chunk", "trim")},
    "end_byte": {"slice": _field("end_byte"), "chunk": _field("end_byte")},
    "pack_term": {"slice": _field("term"), "pack": _number(0)},
    "pack_number": {"slice": _field("number"), "pack": _number(1)},
    "offset": {"slice": _field("offset")},
    "length": {"slice": _field("length")},
    "crc": {"slice": _field("crc")},
    "records_digest": {"slice": _field("digest")},
    "pack": {"pack": _field("name")},
    "size": {"pack": _field("size")},
    "live": {"pack": _field("live")},
}
