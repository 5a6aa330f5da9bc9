"""``format("streamd_materialized")``: streams of the State Protocol as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from streamd.spark import options as given
from streamd.spark.catalog import asked, columns_of
from streamd.spark.errors import BadRecord, StreamMissing, Trimmed
from streamd.spark.options import BadOption, Options
from streamd.spark.planning import Part, packed
from streamd.spark.reading import COMMON, NOW, edge_of, ranges, request_of, sample, verified
from streamd.spark.states import Entity, Table
from streamd.spark.streams import Piece, Range, Rules, Streams, read
from streamd.spark.values import JsonColumn, infer, parse
from streamd.streams.content import is_json
from streamd.streams.offsets import START
from streamd_audit.one_line import one_line

OPTIONS = (*COMMON, "type", "ending_offset")
_TEXTS = ("stream", "type", "key", "offset")
_VALUE = "value"


@one_line
class MaterializedSource(DataSource):
    """One row for each type and key with a value."""

    @classmethod
    def name(cls) -> str:
        return "streamd_materialized"

    def schema(self) -> T.StructType:
        """The table's columns, inferred from the stream. Raises `BadOption`."""
        return columns_of(self.options, self.name(), _inferred)

    def reader(self, schema: T.StructType) -> DataSourceReader:
        return MaterializedReader(asked(self.options, schema), schema)


def _inferred(options: Options) -> T.StructType:
    given.check_names(options, OPTIONS, "format('streamd_materialized')")
    request = request_of(options)
    streams = request.place.open()
    kind = given.text(options, "type")
    values = [
        event["value"]
        for event in sample(streams, request.which.described(streams))
        if isinstance(event, dict) and "value" in event and kind in (None, event.get("type"))
    ]
    if not values:
        raise BadOption(
            "there is no value to infer a schema from: give one, such as "
            ".schema('type string, key string, value struct<name: string>')"
        )
    texts = [T.StructField(name, T.StringType()) for name in _TEXTS]
    return T.StructType([*texts[:3], T.StructField(_VALUE, infer(values)), texts[3]])


@one_line
class MaterializedReader(DataSourceReader):
    """Each task reads some streams, each from its beginning."""

    def __init__(self, options: Options, schema: T.StructType) -> None:
        given.check_names(options, OPTIONS, "spark.read.format('streamd_materialized')")
        self._request = request_of(options)
        self._kind = given.text(options, "type")
        self._ending = edge_of(options, "ending_offset", (NOW,), self._request.which)
        self._columns = _Columns(schema, failfast=self._request.failfast)

    def partitions(self) -> Sequence[InputPartition]:
        streams = self._request.place.open()
        found = []
        for each in self._request.which.described(streams):
            if not is_json(each.content_type):
                raise BadRecord(f"{each.name} is {each.content_type}, and a table's stream is JSON")
            end = self._ending.offsets.get(each.name)
            if end is not None:
                each = each._replace(tail=verified(streams, each.name, end, "ending_offset"))
            found.append((each, START))
        return packed(streams, ranges(found), self._request.partition_bytes) or [Part(0, [])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The tables of a partition's streams. Raises `BadRecord`, `Trimmed`, `StreamMissing`."""
        assert isinstance(partition, Part)
        streams = self._request.place.open(partition.number, met=True)
        for wanted in partition.ranges:
            with Table(wanted.name, self._kind, failfast=self._request.failfast) as table:
                try:
                    self._fill(table, streams, wanted)
                except StreamMissing:
                    if not self._request.rules.skip_deleted:
                        raise
                    continue
                for entities in table.entities():
                    yield self._columns.batch(wanted.name, entities)

    def _fill(self, table: Table, streams: Streams, wanted: Range) -> None:
        try:
            for piece in read(streams, wanted, Rules()):
                table.apply(piece)
        except Trimmed as trimmed:
            if not self._request.rules.skip_trimmed:
                raise
            # What was applied of it is in the snapshot as well, or has been undone since.
            table.clear()
            snapshot = streams.snapshot(wanted.name)
            if snapshot.at.record > wanted.end:
                raise Trimmed(wanted.name, trimmed.earliest) from None
            table.apply(_events_of(wanted.name, snapshot.content_type, snapshot.content))
            rest = streams.located(wanted._replace(start=snapshot.at.record))
            self._fill(table, streams, rest)


def _events_of(name: str, content_type: str, content: bytes) -> Piece:
    """A snapshot that is a JSON array of events, as records. Raises `BadRecord`."""
    try:
        if not is_json(content_type):
            raise ValueError(content_type)
        events = [bytes(raw) for raw in msgspec.json.decode(content, type=list[msgspec.Raw])]
    except ValueError:
        raise BadRecord(
            f"the snapshot of {name} is not a JSON array of events: its table cannot begin with it"
        ) from None
    return Piece.of(content_type, START, events)


class _Columns:
    """Makes a batch of rows of a table, in the columns of a schema."""

    def __init__(self, schema: T.StructType, *, failfast: bool) -> None:
        self._value: JsonColumn | None = None
        for field in schema.fields:
            if field.name == _VALUE and not isinstance(field.dataType, T.StringType):
                self._value = JsonColumn(field.dataType, failfast=failfast)
            elif field.name not in (*_TEXTS, _VALUE):
                raise BadOption(
                    f"there is no column {field.name} in a table: the schema may have stream, "
                    "type, key and offset, all string, and value of any type"
                )
            elif not isinstance(field.dataType, T.StringType):
                raise BadOption(
                    f"column {field.name} is a string, not {field.dataType.simpleString()}"
                )
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def batch(self, name: str, entities: list[Entity]) -> pa.RecordBatch:
        """Raises `BadRecord`."""
        made = {
            "stream": lambda: pa.repeat(name, len(entities)),
            "type": lambda: pa.array([each.kind for each in entities], pa.string()),
            "key": lambda: pa.array([each.key for each in entities], pa.string()),
            "offset": lambda: pa.array([_token(each) for each in entities], pa.string()),
            _VALUE: lambda: self._values(name, entities),
        }
        arrays = [made[column]() for column in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _values(self, name: str, entities: list[Entity]) -> pa.Array:
        if self._value is None:
            return pa.array([_text(each.value) for each in entities], pa.string())
        data = b"".join(each.value + b"," for each in entities)
        lengths = [len(each.value) + 1 for each in entities]
        return self._value.array(
            data, lengths, lambda number: f"record {_token(entities[number])} of {name}"
        )


def _text(value: bytes) -> str | None:
    """The text for a string column: a string's value, or the JSON text of any other value."""
    if value.startswith(b'"') or value == b"null":
        found: str | None = parse(value)
        return found
    return value.decode()


def _token(entity: Entity) -> str:
    return entity.at.token().decode()
