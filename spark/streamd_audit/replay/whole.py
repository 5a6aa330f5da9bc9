"""The log of a cluster, and what it comes to: fetched, decoded and replayed once for all jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from streamd_audit import log_order
from streamd_audit.arrow import map_in_arrow
from streamd_audit.commands import RenewIncarnations, decode_command, decode_configuration
from streamd_audit.context import Context
from streamd_audit.errors import Damaged
from streamd_audit.options import NotRun
from streamd_audit.replay.distribute import Plan, Replayed, replay
from streamd_audit.rows import Header, read_row
from streamd_audit.sources.log import LogSource
from streamd_audit.sources.state import StateSource
from streamd_audit.states import State, states_of
from streamd_audit.watermark import base_index

_LOG_DDL = (
    "`group` int, index long, term long, entry_kind string, log_ms long, stamp_ms long, "
    "chain long, object string, position int, kind string, bucket string, stream string, "
    "records int, bytes long, digests binary, "
    "package struct<node_id:bigint,session_id:bigint,sequence:bigint,lowest:bigint,count:bigint>, "
    "head binary, problem string"
)
_STATE_DDL = "`group` int, index long, kind string, key binary, value binary, problem string"
# Recoveries and changes of the membership that a log may have; it has a few.
_MOST_FACTS = 10_000


class Span(NamedTuple):
    """Entries of a group that follow one another without a gap, both ends included."""

    group: int
    first: int
    last: int


def log_of(context: Context) -> DataFrame:
    """The log that is judged, each entry once, with digests in the place of records."""

    def read() -> DataFrame:
        spark = context.spark
        tasks = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
        # Each job that looks at the log pays for each of its partitions, however small.
        parts = max(tasks, 2 * spark.sparkContext.defaultParallelism)
        log = context.source(LogSource, _LOG_DDL, parts=parts)
        if context.since is not None:
            # From the state on that the replay begins with.
            known = [state.index for state in states_of(context) if state.index <= context.since]
            if known:
                log = log.where(f.col("index").isNull() | (f.col("index") > max(known)))
        log = log.persist(StorageLevel.DISK_ONLY)
        # By all tasks at once; whoever takes the first rows of it has it read a task at a time.
        log.count()
        return log

    return context.shared("log", read)


def told_of(context: Context) -> Sequence[Row]:
    """What is wrong with the order of entries (`log_order.WRONG`), and runs of entries without a
    gap (`log_order.RUN`): a few, if the log is not very broken."""

    def look() -> Sequence[Row]:
        entries = log_of(context).where("position = 0 and index is not null")
        is_noop = f.coalesce(f.col("entry_kind") == "noop", f.lit(False))
        seen = map_in_arrow(
            entries.select(
                "group", "index", "term", "stamp_ms", is_noop.alias("is_noop"), "object"
            ),
            log_order.told_of,
            log_order.TOLD_DDL,
        ).persist(StorageLevel.DISK_ONLY)
        parts = seen.where(f"what != {log_order.WRONG}").repartition(1)
        of_leaders = f.when(f.col("what") == log_order.NOOP, f.col("first_term"))
        ordered = parts.sortWithinPartitions("what", "group", of_leaders, "first")
        whole = map_in_arrow(ordered, log_order.joined, log_order.TOLD_DDL)
        wrong = seen.where(f"what = {log_order.WRONG}")
        return wrong.unionByName(whole).limit(_MOST_FACTS).collect()

    return context.shared("told", look)


def spans_of(context: Context) -> Sequence[Span]:
    """Entries of each group that follow one another without a gap, in order."""
    return sorted(
        Span(row["group"], row["first"], row["last"])
        for row in told_of(context)
        if row["what"] == log_order.RUN
    )


def replayed(context: Context) -> Replayed | None:
    """What the last span of each group comes to; None where there is no log.

    Raises `NotRun` when a log begins behind every state.
    """
    return context.shared("replayed", lambda: _replay(context, spans_of(context)))


def plans_of(context: Context) -> dict[int, Plan]:
    """What the replay began with, and was compared with; empty before it was."""
    return context.shared("plans", dict)


def _replay(context: Context, spans: Sequence[Span]) -> Replayed | None:
    latest = {span.group: span for span in sorted(spans)}
    if not latest:
        return None
    context.progress("replaying the log")
    log, states = log_of(context), states_of(context)
    rows = log.where("position is not null and index is not null")
    facts = (
        rows.where("kind = 'renew-incarnations' or entry_kind = 'configuration'")
        .select("group", "index", "entry_kind", "head")
        .orderBy("group", "index")
        .limit(_MOST_FACTS)
        .collect()
    )
    plans = plans_of(context)
    inside = f.lit(False)
    chosen = {}
    for group, span in latest.items():
        of_group = [state for state in states if state.group == group]
        try:
            chosen[group] = _chosen(of_group, span, context.since)
        except NotRun:
            continue  # `log_job` tells of the gap before the span
    state = states_at(context, chosen)
    headers = _headers(state)
    for group, (before, after) in chosen.items():
        header = headers.get((group, before), Header())
        bases = [(0, header.incarnation_base)]
        members = []
        for row in facts:
            if row["group"] != group or row["head"] is None:
                continue
            if row["entry_kind"] == "configuration":
                members.append((row["index"], _members(row["head"])))
                continue
            command = decode_command(row["head"])
            if isinstance(command, RenewIncarnations):
                bases.append((row["index"], command.base))
        plans[group] = Plan(before, after, header.next_stream_id, tuple(bases), tuple(members))
        span = latest[group]
        begin = span.first if before is None else before + 1
        is_mine = (f.col("group") == group) & f.col("index").between(begin, span.last)
        inside = inside | is_mine
    if not plans:
        return None
    whole = rows.where(inside & (f.col("entry_kind") == "commands") & f.col("kind").isNotNull())
    return replay(whole, state, plans)


def states_at(
    context: Context, chosen: Mapping[int, tuple[int | None, int | None]]
) -> DataFrame | None:
    """The rows of states of these groups as of these entries; None where none is meant."""
    meant = f.lit(False)
    indexes = set()
    for group, pair in chosen.items():
        there = [index for index in pair if index is not None]
        indexes |= set(there)
        meant = meant | ((f.col("group") == group) & f.col("index").isin(*there))
    if not indexes:
        return None
    rows = context.source(StateSource, _STATE_DDL, every="true")
    return rows.where(f.col("index").isin(*indexes)).where(meant)


def _headers(state: DataFrame | None) -> dict[tuple[int, int | None], Header]:
    """By group and index; a state without one is as if it were empty, and differs in all."""
    found = {}
    rows = [] if state is None else state.where("kind = 'header'").collect()
    for row in rows:
        try:
            value = read_row(row["key"], row["value"]).value
        except Damaged:
            continue
        if isinstance(value, Header):
            found[row["group"], row["index"]] = value
    return found


def _chosen(
    states: Sequence[State], span: Span, since: int | None
) -> tuple[int | None, int | None]:
    """The states that the replay of a span begins with and is compared with."""
    indexes = [state.index for state in states if state.index <= span.last]
    before = base_index(indexes, span.first, since)
    later = [index for index in indexes if index > (before or 0)]
    return before, max(later, default=None)


def _members(payload: bytes) -> frozenset[int]:
    try:
        return frozenset(decode_configuration(payload).members())
    except Damaged:
        return frozenset()
