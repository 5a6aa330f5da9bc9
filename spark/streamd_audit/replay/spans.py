"""The rows of all states of a store, each once: states have most of their rows in common.

A row is the same from one state on, in the order of the states of its group, until one. So many
states cost little more to decode and to compare than one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from streamd_audit.arrow import map_in_arrow
from streamd_audit.replay import run
from streamd_audit.replay.plan import Plan, state_position
from streamd_audit.replay.stated import KINDS
from streamd_audit.states import State

# A row of the states from number `since` to number `until` of its group; `object` is a piece that
# has it.
SPANS_DDL = (
    "`group` int, kind string, key binary, value binary, object string, since int, until int"
)
# What a replay meets: a row of the state that it begins with, or one that a state has and the one
# before it has not, or the other way round (`op` in `run`).
EVENTS_DDL = "`group` int, index long, position int, op int, kind string, key binary, value binary"
_REPLAYED = (
    "stream", "producer", "upload", "bucket", "session", "token", "limits", "operation", *KINDS,
)  # fmt: skip
# Where a piece's name says of which state it is: group, index and checkpoint's id.
_NAMED_AT, _NAMED_LENGTH = len("7d0c3a52-0000-0000-0000-000000000000/pieces/") + 1, 8 + 1 + 33

Numbers = np.ndarray[Any, np.dtype[Any]]


class Place(NamedTuple):
    """The `number`-th state of its group, from 0."""

    number: int
    state: State


def numbered(states: Sequence[State]) -> list[Place]:
    """States, sorted, with their numbers."""
    return [
        Place(number, state)
        for _, of_group in groupby(states, key=lambda state: state.group)
        for number, state in enumerate(of_group)
    ]


def spans_of_rows(rows: DataFrame, states: Sequence[State]) -> DataFrame:
    """The rows of these states as `SPANS_DDL`; `rows` have group, object, kind, key, value."""
    numbers: dict[str, list[Column]] = {}
    for number, state in numbered(states):
        named = f"{state.group:08x}/{state.index:016x}-{state.snapshot_id}"
        numbers.setdefault(named, []).append(f.lit(number))
    # A table of states to join with would start Python workers of its own, only to be made.
    pairs = [each for named, some in numbers.items() for each in (f.lit(named), f.array(*some))]
    none = f.lit(None).cast("map<string, array<int>>")
    known = f.create_map(*pairs) if pairs else none
    of_state = f.explode(known[f.substring("object", _NAMED_AT, _NAMED_LENGTH)]).alias("number")
    rows = rows.select("group", "kind", "key", "value", "object", of_state)
    one = Window.partitionBy("group", "key").orderBy("number")
    is_same = (f.lag("number").over(one) == f.col("number") - 1) & (
        f.lag("value").over(one) == f.col("value")
    )
    rows = rows.withColumn("is_new", f.when(f.coalesce(is_same, f.lit(False)), 0).otherwise(1))
    rows = rows.withColumn("version", f.sum("is_new").over(one))
    return (
        rows.groupBy("group", "key", "version")
        .agg(
            f.first("kind").alias("kind"),
            f.first("value").alias("value"),
            f.min("object").alias("object"),
            f.min("number").alias("since"),
            f.max("number").alias("until"),
        )
        .select("group", "kind", "key", "value", "object", "since", "until")
    )


class _Met(NamedTuple):
    """The states of a group that its replay meets: from number `begin` to `last`, the `indexes` of
    their entries and the `positions` of the rows that each lacks; the first may not be there."""

    begin: int
    last: int
    has_first: bool
    indexes: Numbers
    positions: Numbers


def events_of(
    spans: DataFrame, states: Sequence[State], plans: Mapping[int, Plan]
) -> DataFrame | None:
    """The rows of the states that plans name, as a replay meets them; None if they name none. Rows
    of bytes and of packs are left out."""
    met = {group: _met(states, group, plan) for group, plan in plans.items()}
    if not any(one.has_first or one.last > one.begin for one in met.values()):
        return None

    def of_spans(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for group, one in met.items():
                yield from _events(batch, group, one)

    rows = spans.where(f.col("kind").isin(*_REPLAYED))
    rows = rows.select("group", "kind", "key", "value", "since", "until")
    return map_in_arrow(rows, of_spans, EVENTS_DDL)


def _met(states: Sequence[State], group: int, plan: Plan) -> _Met:
    begin = _begin([one for one in numbered(states) if one.state.group == group], plan)
    positions = (state_position(at, is_there=False) for at in range(len(plan.states)))
    return _Met(
        begin,
        begin + len(plan.states),
        plan.before is not None,
        np.array([plan.before or 0, *plan.states], np.int64),
        np.array([0, *positions], np.int32),
    )


def _events(batch: pa.RecordBatch, group: int, met: _Met) -> Iterator[pa.RecordBatch]:
    """The rows of a group that begin or end with the states that it meets."""
    is_mine = batch.column("group").to_numpy() == group
    since, until = batch.column("since").to_numpy(), batch.column("until").to_numpy()
    begin, last = met.begin, met.last
    is_first = is_mine & (since <= begin) & (begin <= until) & met.has_first
    for op, is_met, number, shift in (
        (run.BEFORE, is_first, np.full_like(since, begin), -1),
        (run.AFTER, is_mine & (since > begin) & (since <= last), since, 1),
        (run.GONE, is_mine & (until >= begin) & (until < last), until + 1, 0),
    ):
        at = np.flatnonzero(is_met)
        if len(at):
            places = number[at] - begin
            rows = batch.take(pa.array(at))
            columns = {
                "group": rows.column("group"),
                "index": pa.array(met.indexes[places]),
                "position": pa.array(met.positions[places] + np.int32(shift)),
                "op": pa.array(np.full(len(at), op, np.int32)),
                **{name: rows.column(name) for name in ("kind", "key", "value")},
            }
            yield pa.RecordBatch.from_pydict(columns)


def _begin(states: Sequence[Place], plan: Plan) -> int:
    """The number of the state with which a replay begins, or the one before that of the first state
    to compare with."""
    if plan.before is not None:
        return max(one.number for one in states if one.state.index == plan.before)
    return min((one.number for one in states), default=0) - 1
