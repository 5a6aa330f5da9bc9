"""JSON as Spark's types: strict and fast where it fits, and by rule where it does not.

A batch of messages is decoded at once into what Arrow takes for the schema. Only if one of them
does not fit is each examined by itself, and what does not fit is null, as in mode permissive of
Spark's own JSON reader; mode failfast ends the query instead.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from datetime import date, datetime, timezone
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from functools import partial
from typing import Annotated, Any, TypedDict

import msgspec
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from streamd.spark.errors import BadRecord
from streamd.spark.options import BadOption
from streamd.streams.content import UNDECODABLE

Values = list[Any]

_BITS: dict[type[T.DataType], int] = {
    T.ByteType: 8,
    T.ShortType: 16,
    T.IntegerType: 32,
    T.LongType: 64,
}
# What Arrow raises for values of another type, too large, or not Unicode.
_UNFIT = (pa.ArrowException, ValueError, TypeError, OverflowError)


class Misfit(Exception):
    """A value does not fit its type; the message says which and where."""


class JsonColumn:
    """Makes Arrow arrays of one Spark type from JSON texts."""

    def __init__(self, spark_type: T.DataType, *, failfast: bool) -> None:
        self._type = spark_type
        self.arrow_type = to_arrow_type(spark_type, timezone="UTC")
        self._failfast = failfast
        self._decoder = msgspec.json.Decoder(list[_decoded_as(spark_type, "record")])  # type: ignore[misc]

    def __reduce__(self) -> tuple[Callable[..., JsonColumn], tuple[Any, ...]]:
        # A decoder cannot be sent to a task.
        return partial(JsonColumn, failfast=self._failfast), (self._type,)

    def array(self, data: bytes, lengths: Sequence[int], where: Callable[[int], str]) -> pa.Array:
        """The messages of `data`, each with its comma; `where` names a message in errors.

        Raises `BadRecord`.
        """
        try:
            values = self._decoder.decode(b"[%b]" % data[:-1])
            if len(values) == len(lengths):
                return pa.array(values, self.arrow_type)
        except (*UNDECODABLE, *_UNFIT):
            pass
        return pa.array(self._one_by_one(data, lengths, where), self.arrow_type)

    def _one_by_one(
        self, data: bytes, lengths: Sequence[int], where: Callable[[int], str]
    ) -> Values:
        found: Values = []
        start = 0
        for number, length in enumerate(lengths):
            message = data[start : start + length - 1]
            start += length
            try:
                found.append(fit(parse(message), self._type, "record", lenient=not self._failfast))
            except (Misfit, ValueError, RecursionError) as error:
                if self._failfast:
                    raise BadRecord(f"{where(number)}: {error}") from None
                found.append(None)
        return found


def parse(message: bytes) -> Any:
    """One JSON value, also one that only `json` accepts, such as half a surrogate pair.

    Raises `ValueError`, `RecursionError`.
    """
    try:
        return msgspec.json.decode(message)
    except UNDECODABLE:
        return _unicode(json.loads(message))


def _unicode(value: Any) -> Any:
    """A value with a question mark in place of each half of a surrogate pair."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_unicode(each) for each in value]
    if isinstance(value, dict):
        return {_unicode(key): _unicode(each) for key, each in value.items()}
    return value


def _decoded_as(spark_type: T.DataType, path: str) -> Any:
    """The type as which a value, or null, is decoded. Raises `BadOption` if there is none."""
    if isinstance(spark_type, T.StructType):
        fields = {
            field.name: _decoded_as(field.dataType, f"{path}.{field.name}")
            for field in spark_type.fields
        }
        return TypedDict("Fields", fields, total=False) | None  # type: ignore[operator]
    if isinstance(spark_type, T.ArrayType):
        return list[_decoded_as(spark_type.elementType, f"{path}[]")] | None  # type: ignore[misc]
    if isinstance(spark_type, T.MapType):
        if not isinstance(spark_type.keyType, T.StringType):
            raise BadOption(f"{path} is a map whose keys are not strings, as in JSON they are")
        return dict[str, _decoded_as(spark_type.valueType, f"{path}{{}}")] | None  # type: ignore[misc]
    if type(spark_type) in _BITS:
        half = 1 << (_BITS[type(spark_type)] - 1)
        return Annotated[int, msgspec.Meta(ge=-half, le=half - 1)] | None
    leaf = _LEAVES.get(type(spark_type))
    if leaf is None:
        raise BadOption(
            f"{path} is {spark_type.simpleString()}, which is not made from JSON: read it as string"
        )
    return leaf | None


_LEAVES: dict[type[T.DataType], Any] = {
    T.StringType: str,
    T.VarcharType: str,
    T.CharType: str,
    T.BooleanType: bool,
    T.FloatType: float,
    T.DoubleType: float,
    T.BinaryType: bytes,
    T.DateType: date,
    T.TimestampType: datetime,
    T.TimestampNTZType: datetime,
    T.DecimalType: Decimal,
    T.NullType: None,
}


def fit(value: Any, spark_type: T.DataType, path: str, *, lenient: bool) -> Any:
    """A parsed value as Arrow takes it; one that does not fit is None, or raises `Misfit`."""
    if value is None:
        return None
    if isinstance(spark_type, T.StructType) and isinstance(value, dict):
        return {
            field.name: fit(
                value.get(field.name), field.dataType, f"{path}.{field.name}", lenient=lenient
            )
            for field in spark_type.fields
        }
    if isinstance(spark_type, T.ArrayType) and isinstance(value, list):
        element = spark_type.elementType
        return [fit(each, element, f"{path}[]", lenient=lenient) for each in value]
    if isinstance(spark_type, T.MapType) and isinstance(value, dict):
        inner = spark_type.valueType
        return [
            (key, fit(each, inner, f"{path}.{key}", lenient=lenient)) for key, each in value.items()
        ]
    try:
        return _leaf(value, spark_type)
    except (msgspec.ValidationError, InvalidOperation, *_UNFIT):
        if lenient:
            return None
        raise Misfit(
            f"{path} is {_kind(value)}, and {spark_type.simpleString()} in the schema"
        ) from None


def _leaf(value: Any, spark_type: T.DataType) -> Any:
    """Raises when the value does not fit."""
    if isinstance(spark_type, T.StringType | T.VarcharType | T.CharType):
        return value if isinstance(value, str) else json.dumps(value)
    if isinstance(spark_type, T.BinaryType) and isinstance(value, str):
        return b64decode(value, validate=True)
    if isinstance(spark_type, T.DecimalType):
        found = msgspec.convert(str(value) if isinstance(value, float) else value, Decimal)
        found = found.quantize(Decimal(1).scaleb(-spark_type.scale), ROUND_HALF_UP)
    else:
        found = msgspec.convert(value, _decoded_as(spark_type, ""))
    if isinstance(found, datetime) and found.tzinfo is not None:
        found = found.astimezone(timezone.utc)  # noqa: UP017
    pa.scalar(found, to_arrow_type(spark_type, timezone="UTC"))
    return found


def _kind(value: Any) -> str:
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return kinds.get(type(value)) or ("an array" if isinstance(value, list) else "an object")


# -- schemas of existing values -----------------------------------------------------------------


def infer(values: Sequence[Any]) -> T.DataType:
    """The type that holds all the values: fields in the order of their appearance; string, and so
    the JSON text, if they are of several kinds."""
    found: T.DataType = T.NullType()
    for value in values:
        found = _merged(found, _type_of(value))
    return _without_nulls(found)


def _type_of(value: Any) -> T.DataType:
    match value:
        case None:
            return T.NullType()
        case bool():
            return T.BooleanType()
        case int():
            return T.LongType() if -(1 << 63) <= value < 1 << 63 else T.DoubleType()
        case float():
            return T.DoubleType()
        case str():
            return T.StringType()
        case list():
            element: T.DataType = T.NullType()
            for each in value:
                element = _merged(element, _type_of(each))
            return T.ArrayType(element)
        case _:
            return T.StructType(
                [T.StructField(name, _type_of(each)) for name, each in value.items()]
            )


def _merged(one: T.DataType, other: T.DataType) -> T.DataType:
    if one == other or isinstance(other, T.NullType):
        return one
    if isinstance(one, T.NullType):
        return other
    if isinstance(one, T.ArrayType) and isinstance(other, T.ArrayType):
        return T.ArrayType(_merged(one.elementType, other.elementType))
    if isinstance(one, T.StructType) and isinstance(other, T.StructType):
        fields = {field.name: field.dataType for field in one.fields}
        for field in other.fields:
            fields[field.name] = _merged(fields.get(field.name, T.NullType()), field.dataType)
        return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])
    if {type(one), type(other)} == {T.LongType, T.DoubleType}:
        return T.DoubleType()
    return T.StringType()


def _without_nulls(found: T.DataType) -> T.DataType:
    """The type of what was only ever null is string; so is an object without fields, which Spark
    lacks."""
    if isinstance(found, T.ArrayType):
        return T.ArrayType(_without_nulls(found.elementType))
    if isinstance(found, T.StructType) and found.fields:
        return T.StructType(
            [T.StructField(field.name, _without_nulls(field.dataType)) for field in found.fields]
        )
    return T.StringType() if isinstance(found, T.NullType | T.StructType) else found
