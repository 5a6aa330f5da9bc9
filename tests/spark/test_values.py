"""JSON as Spark's types, as Arrow has them."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types as T

from streamd.spark.errors import BadRecord
from streamd.spark.values import JsonColumn, infer

pytestmark = pytest.mark.long

INNER = T.StructType([T.StructField("deep", T.ArrayType(T.StructType().add("x", "integer")))])
ALL = (
    T.StructType()
    .add("flag", T.BooleanType())
    .add("tiny", T.ByteType())
    .add("whole", T.LongType())
    .add("real", T.DoubleType())
    .add("exact", T.DecimalType(10, 2))
    .add("text", T.StringType())
    .add("day", T.DateType())
    .add("moment", T.TimestampType())
    .add("bytes", T.BinaryType())
    .add("list", T.ArrayType(T.IntegerType()))
    .add("map", T.MapType(T.StringType(), T.DoubleType()))
    .add("inner", INNER)
)
FITTING = {
    "flag": True, "tiny": -128, "whole": 1 << 62, "real": 2, "exact": 12.34, "text": "é",
    "day": "2026-11-22", "moment": "2026-11-22T05:06:07.5+02:00", "bytes": "aGk=",
    "list": [1, None, 3], "map": {"a": 1.5}, "inner": {"deep": [{"x": 1, "y": 2}, None]},
}  # fmt: skip
MISFITS = {
    "flag": 1, "tiny": 128, "whole": 1.5, "real": True, "exact": "many", "text": {"a": 1},
    "day": "yesterday", "moment": 17, "bytes": 3, "list": [1, "two"], "map": [1],
    "inner": {"deep": [{"x": "one"}]},
}  # fmt: skip
FITTED = {
    **FITTING,
    "real": 2.0,
    "exact": Decimal("12.34"),
    "day": date(2026, 11, 22),
    "moment": datetime(2026, 11, 22, 3, 6, 7, 500_000, tzinfo=UTC),
    "bytes": b"hi",
    "map": [("a", 1.5)],
    "inner": {"deep": [{"x": 1}, None]},
}


def array(kind: T.DataType, *messages: bytes, failfast: bool = False) -> list[Any]:
    column = pickle.loads(pickle.dumps(JsonColumn(kind, failfast=failfast)))
    data = b"".join(message + b"," for message in messages)
    lengths = [len(message) + 1 for message in messages]
    found: list[Any] = column.array(data, lengths, lambda number: f"record {number}").to_pylist()
    return found


def test_values_that_fit_are_converted_whatever_is_beside_them() -> None:
    fitting, misfits = json.dumps(FITTING).encode(), json.dumps(MISFITS).encode()
    assert array(ALL, fitting) == [FITTED]
    assert array(ALL, b" \n" + fitting, b"{}", failfast=True) == [FITTED, dict.fromkeys(FITTING)]
    found = array(ALL, fitting, misfits, b'"none"', fitting)
    assert found[0] == found[3] == FITTED
    assert found[1] == {
        **dict.fromkeys(FITTING),
        "text": '{"a": 1}',
        "list": [1, None],
        "inner": {"deep": [{"x": None}]},
    }
    assert found[2] is None


@pytest.mark.parametrize("name", MISFITS)
def test_failfast_finds_each_value_that_does_not_fit(name: str) -> None:
    message = json.dumps({**FITTING, name: MISFITS[name]}).encode()
    if name == "text":  # JSON values as text
        assert array(ALL, message, failfast=True)[0]["text"] == '{"a": 1}'
        return
    with pytest.raises(BadRecord, match=rf"record 1: record\.{name}.* is an? .* in the schema"):
        array(ALL, b"{}", message, failfast=True)


def test_unusual_json_that_the_server_accepts_is_read() -> None:
    """The server takes half a surrogate pair, and any number of digits."""
    kind = T.StructType().add("t", "string").add("n", "long")
    found = array(kind, rb'{"t": "\ud83d", "n": 1}', b'{"n": 1234567890123456789012, "t": "a"}')
    assert found == [{"t": "?", "n": 1}, {"t": "a", "n": None}]
    assert array(T.DoubleType(), b"1e400", b"1e5") == [float("inf"), 1e5]
    exact = T.DecimalType(38, 10)
    assert array(exact, b"1234567890123456789.0123456789") == [
        Decimal("1234567890123456789.0123456789")
    ]


def test_an_inferred_schema_covers_all_values() -> None:
    def inferred(*values: Any) -> str:
        return infer(values).simpleString()

    assert inferred(
        {"a": 1, "b": None, "c": [], "d": {}, "e": 1},
        {"a": 1.5, "b": "x", "c": [{"x": 1}], "e": [1]},
    ) == ("struct<a:double,b:string,c:array<struct<x:bigint>>,d:string,e:string>")
    assert inferred(1, 1 << 70) == "double"
    assert inferred(True, None) == "boolean"
    assert inferred([None], [[1]]) == "array<array<bigint>>"
    assert inferred() == inferred(None) == inferred(1, "x") == "string"
