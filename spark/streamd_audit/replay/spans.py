"""The rows of all states of a store, each once: states have most of their rows in common.

A row is the same from one state on, in the order of the states of its group, until one. So many
states cost little more to decode and to compare than one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from streamd_audit.replay import run
from streamd_audit.replay.plan import Plan, state_position
from streamd_audit.states import State

# A row of the states from number `since` to number `until` of its group; `object` is a piece that
# has it.
SPANS_DDL = (
    "`group` int, kind string, key binary, value binary, object string, since int, until int"
)
# What a replay meets: a row of the state that it begins with, or one that a state has and the one
# before it has not, or the other way round (`op` in `run`).
EVENTS_DDL = "`group` int, index long, position int, op int, kind string, key binary, value binary"
# Where a piece's name says of which state it is: group, index and checkpoint's id.
_NAMED_AT, _NAMED_LENGTH = len("7d0c3a52-0000-0000-0000-000000000000/pieces/") + 1, 8 + 1 + 33


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
    numbers = rows.sparkSession.createDataFrame(
        [
            (f"{one.state.group:08x}/{one.state.index:016x}-{one.state.snapshot_id}", one.number)
            for one in numbered(states)
        ],
        "named string, number int",
    )
    named = f.substring("object", _NAMED_AT, _NAMED_LENGTH).alias("named")
    rows = rows.select("group", "kind", "key", "value", "object", named)
    rows = rows.join(f.broadcast(numbers), "named")
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


def events_of(
    spans: DataFrame, states: Sequence[State], plans: Mapping[int, Plan]
) -> DataFrame | None:
    """The rows of the states that plans name, as a replay meets them; None if they name none."""
    met, first, last = [], {}, {}
    for group, plan in plans.items():
        of_group = [one for one in numbered(states) if one.state.group == group]
        begin = _begin(of_group, plan)
        first[group], last[group] = begin, begin + len(plan.states)
        met += [
            (group, begin + 1 + at, index, state_position(at, is_there=False))
            for at, index in enumerate(plan.states)
        ]
        if plan.before is not None:
            met.append((group, begin, plan.before, 0))
    if not met:
        return None
    spark = spans.sparkSession
    places = spark.createDataFrame(met, "`group` int, number int, index long, position int")
    ends = spark.createDataFrame(
        [(group, first[group], last[group]) for group in first], "`group` int, begin int, end int"
    )
    known = spans.join(f.broadcast(ends), "group")
    since, until = f.col("since"), f.col("until")
    begun = known.where((since <= f.col("begin")) & (f.col("begin") <= until)).select(
        "*", f.col("begin").alias("number"), f.lit(run.BEFORE).alias("op")
    )
    after = known.where((since > f.col("begin")) & (since <= f.col("end"))).select(
        "*", since.alias("number"), f.lit(run.AFTER).alias("op")
    )
    gone = known.where((until >= f.col("begin")) & (until < f.col("end"))).select(
        "*", (until + 1).alias("number"), f.lit(run.GONE).alias("op")
    )
    rows = begun.unionByName(after).unionByName(gone)
    rows = rows.join(f.broadcast(places), ["group", "number"])
    position = (
        f.when(f.col("op") == run.BEFORE, -1)
        .when(f.col("op") == run.AFTER, f.col("position") + 1)
        .otherwise(f.col("position"))
    )
    return rows.select(
        "group", "index", position.cast("int").alias("position"), "op", "kind", "key", "value"
    )


def _begin(states: Sequence[Place], plan: Plan) -> int:
    """The number of the state with which a replay begins, or the one before that of the first state
    to compare with."""
    if plan.before is not None:
        return max(one.number for one in states if one.state.index == plan.before)
    return min((one.number for one in states), default=0) - 1
