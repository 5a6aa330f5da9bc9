"""Records as Arrow batches with the columns that a schema asks for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from streamd.spark.errors import BadRecord
from streamd.spark.options import BadOption
from streamd.spark.streams import Piece
from streamd.spark.values import JsonColumn
from streamd.streams.content import JSON_SEPARATOR, is_json
from streamd.streams.offsets import Position

STREAM, OFFSET, RECORD = "stream", "offset", "record"
_NAMES = (STREAM, OFFSET, RECORD)


class Columns:
    """Makes a batch of each piece. Raises `BadOption` for an impossible schema."""

    def __init__(self, schema: T.StructType, *, failfast: bool) -> None:
        for field in schema.fields:
            if field.name not in _NAMES:
                raise BadOption(
                    f"there is no column {field.name} in a stream: the schema may have "
                    "stream string, offset string, and record of any type"
                )
            if field.name != RECORD and not isinstance(field.dataType, T.StringType):
                raise BadOption(
                    f"column {field.name} is a string, not {field.dataType.simpleString()}"
                )
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._failfast = failfast
        self._json: JsonColumn | None = None
        self._record: T.DataType | None = None
        if RECORD in schema.names:
            self._record = schema[RECORD].dataType
            if not isinstance(self._record, T.BinaryType | T.StringType):
                self._json = JsonColumn(self._record, failfast=failfast)

    def batch(self, name: str, piece: Piece) -> pa.RecordBatch:
        """Raises `BadRecord`."""
        made = {STREAM: self._stream, OFFSET: self._offset, RECORD: self._records}
        arrays = [made[column](name, piece) for column in self._schema.names]
        if not arrays:
            return pa.RecordBatch.from_struct_array(
                pa.array([{}] * len(piece.lengths), pa.struct([]))
            )
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _stream(self, name: str, piece: Piece) -> pa.Array:
        return pa.repeat(name, len(piece.lengths))

    def _offset(self, name: str, piece: Piece) -> pa.Array:
        record, byte = piece.start
        lengths = piece.lengths.tolist()
        begins = enumerate(islice(accumulate(lengths, initial=byte), len(lengths)), record)
        return pa.array([f"{number:016d}_{at:016d}" for number, at in begins], pa.string())

    def _records(self, name: str, piece: Piece) -> pa.Array:
        json = is_json(piece.content_type)
        if self._json is not None:
            if not json:
                raise BadRecord(
                    f"{name} is {piece.content_type}, not JSON: read column record as binary or "
                    "string, with .schema('stream string, offset string, record binary')"
                )
            lengths = piece.lengths.tolist()
            return self._json.array(piece.data, lengths, _where(name, piece))
        offsets = np.zeros(len(piece.lengths) + 1, dtype=np.int32)
        np.cumsum(piece.lengths, out=offsets[1:])
        array = pa.Array.from_buffers(
            pa.binary(),
            len(piece.lengths),
            [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(piece.data)],
        )
        if json:
            array = pc.binary_slice(array, 0, -len(JSON_SEPARATOR))
        if isinstance(self._record, T.BinaryType):
            return array
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            return self._texts(array, _where(name, piece))

    def _texts(self, array: pa.Array, where: Callable[[int], str]) -> pa.Array:
        """Records of which some are not UTF-8. Raises `BadRecord`."""
        found: list[str | None] = []
        for number, record in enumerate(array.to_pylist()):
            try:
                found.append(record.decode())
            except UnicodeDecodeError:
                if self._failfast:
                    raise BadRecord(f"{where(number)} is not UTF-8: read it as binary") from None
                found.append(None)
        return pa.array(found, pa.string())


def _where(name: str, piece: Piece) -> Callable[[int], str]:
    def where(number: int) -> str:
        record, byte = piece.start
        at = Position(record + number, byte + int(piece.lengths[:number].sum()))
        return f"record {at.token().decode()} of {name}"

    return where
