"""Frames of findings, and of other rows whose columns are named in DDL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from streamd_audit.findings import FINDINGS_DDL, finding
from streamd_audit.sources.source import array_of

_ROWS_AT_ONCE = 10_000
_ARROW = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "array<int>": pa.list_(pa.int32()),
}


def columns_of(ddl: str) -> dict[str, str]:
    """The type of each column, by its name."""
    pairs = (part.split() for part in ddl.split(", "))
    return {name.strip("`"): kind for name, kind in pairs}


def arrow_schema(ddl: str) -> pa.Schema:
    return pa.schema([(name, _ARROW[kind]) for name, kind in columns_of(ddl).items()])


def batches_of(ddl: str, rows: Iterable[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    """Rows as batches with the columns of `ddl`."""
    schema = arrow_schema(ddl)
    left = iter(rows)
    while held := list(islice(left, _ROWS_AT_ONCE)):
        columns = zip(*held, strict=True)
        arrays = [array_of(each, field.type) for each, field in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_in(batches: Iterable[pa.RecordBatch], *names: str) -> Iterator[tuple[Any, ...]]:
    """These columns of each row."""
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)


def shaped(frame: DataFrame, ddl: str) -> DataFrame:
    """The columns of `ddl` and no others; null where the frame has none."""
    known = frozenset(frame.columns)

    def column(name: str, kind: str) -> Column:
        value = F.col(name) if name in known else F.lit(None)
        return value.cast(kind).alias(name)

    return frame.select(*(column(name, kind) for name, kind in columns_of(ddl).items()))


def findings_frame(frame: DataFrame, kind: str, cluster: str) -> DataFrame:
    """Findings of one kind, out of a frame with some of their columns."""
    made = finding(kind, cluster=cluster)
    known = frame.columns
    told = ("severity", "kind", "cluster", "cause")
    more = [F.lit(getattr(made, name)).alias(name) for name in told if name not in known]
    return shaped(frame.select("*", *more), FINDINGS_DDL)
