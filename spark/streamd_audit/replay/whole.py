"""The log of a cluster and its result: fetched, decoded and replayed once for all jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from streamd_audit import log_order
from streamd_audit.arrow import map_in_arrow
from streamd_audit.commands import Limits, decode_configuration
from streamd_audit.context import Context, columns_of
from streamd_audit.errors import Damaged
from streamd_audit.frames import batches_of, rows_in
from streamd_audit.log_order import Told
from streamd_audit.names import EndName, parse, split
from streamd_audit.options import NotRun
from streamd_audit.replay import scan
from streamd_audit.replay.distribute import Replayed, replay
from streamd_audit.replay.plan import Plan
from streamd_audit.replay.quotas import owner_of
from streamd_audit.rows import Header, first_header, read_row
from streamd_audit.sources.state import StateSource
from streamd_audit.states import State, states_of
from streamd_audit.watermark import Watermark, base_index

_Row = tuple[Any, ...]
_STATES_DDL = (
    "`group` int, index bigint, object string, key binary, value binary, kind string, "
    "problem string"
)
# Of each kind of what is told of the log as a whole; it has a few, if it is not very broken.
_MOST_TOLD = 10_000


class Span(NamedTuple):
    """Consecutive entries of a group, both ends included."""

    group: int
    first: int
    last: int


@dataclass
class Account:
    """What is told of the log as a whole.

    `order` is what is wrong with the order of entries, `runs` those without a gap; `joints` are
    segments that do not continue the chain: group, first entry, object, the chain before it and the
    one it says; `problems` what is wrong with which object: group, entry, object, problem. `places`
    are term and chain at the entries (group, index) that were asked for.
    """

    order: list[Told] = field(default_factory=list)
    runs: list[Told] = field(default_factory=list)
    joints: list[tuple[int, int, str, int, int]] = field(default_factory=list)
    problems: list[tuple[int, int | None, str, str]] = field(default_factory=list)
    places: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    settings: list[tuple[int, int, int, int, bytes]] = field(default_factory=list)


def scanned(context: Context) -> DataFrame:
    """The log to judge, as rows of `scan.SCANNED_DDL`."""

    def read() -> DataFrame:
        spark = context.spark
        tasks = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
        asked = {state.index for state in states_of(context)}
        since = 0
        if context.since is not None:
            # From the state on that the replay begins with.
            since = max((index for index in asked if index <= context.since), default=0)
        for name in context.listing.ends:
            named = parse(split(name)[1])
            assert isinstance(named, EndName)
            asked.add(named.index)
        mark = context.notes.get("watermark")
        if isinstance(mark, Watermark):
            asked.add(mark.index)
        reader = scan.Scan(context.of_sources, columns_of(scan.SCANNED_DDL), sorted(asked), since)
        # Each job that reads the log pays for each of its partitions, however small.
        parts = max(tasks, 2 * spark.sparkContext.defaultParallelism)
        return context.read(reader, scan.SCANNED_DDL, parts).persist(StorageLevel.DISK_ONLY)

    return context.shared("scanned", read)


def account_of(context: Context) -> Account:
    """What is told of the log as a whole; the log is read for it."""

    def look() -> Account:
        log = scanned(context)
        # Every partition of it is stored by this, by all tasks at once.
        context.notes["log_rows"] = {
            row["what"]: row["count"] for row in log.groupBy("what").count().collect()
        }
        order = ["what", "group", "one", "index", "two"]
        few = log.where(f.col("what") >= scan.WRONG).select(*order, "object", "body")
        few = few.repartition(1).sortWithinPartitions(*order)
        account = Account()
        for row in map_in_arrow(few, _together, _FEW_DDL).collect():
            what, group, index = row["what"], row["group"], row["index"]
            if what in (scan.WRONG, scan.RUN):
                of = account.order if what == scan.WRONG else account.runs
                of.append(scan.decode_told(row["body"]))
            elif what == scan.SEGMENT:
                account.joints.append((group, index, row["object"], row["one"], row["two"]))
            elif what == scan.PROBLEM:
                account.problems.append((group, index, row["object"], row["body"].decode()))
            elif what == scan.PLACED:
                account.places[group, index] = row["one"], row["two"]
            else:
                account.settings.append((group, index, row["one"], row["two"], row["body"]))
        account.settings.sort(key=lambda setting: setting[:2])
        return account

    return context.shared("account", look)


_FEW_DDL = "what int, `group` int, one long, index long, two long, object string, body binary"


def _together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What is told of the log, sorted by what it is, put together in one task."""
    names = [part.split()[0].strip("`") for part in _FEW_DDL.split(", ")]
    yield from batches_of(_FEW_DDL, _few(rows_in(batches, *names)))


def _few(rows: Iterable[_Row]) -> Iterator[_Row]:
    for what, some in groupby(rows, key=itemgetter(0)):
        yield from islice(_of_kind(what, some), _MOST_TOLD)


def _of_kind(what: int, rows: Iterator[_Row]) -> Iterator[_Row]:
    if what in (scan.WRONG, scan.RUN, scan.NOOPS):
        return map(_of_order, log_order.joined(scan.decode_told(row[-1]) for row in rows))
    return _joints(rows) if what == scan.SEGMENT else rows


def _of_order(told: Told) -> _Row:
    what = scan.RUN if told.what == log_order.RUN else scan.WRONG
    return what, told.group, None, told.first, None, told.object, scan.encode(told)


def _joints(rows: Iterable[_Row]) -> Iterator[_Row]:
    """Segments, in order, that do not continue the chain before them."""
    before: tuple[int, int, int | None] | None = None
    for what, group, _, first, last, name, body in rows:
        joint = scan.decode_joint(body)
        if (
            before is not None
            and before[:2] == (group, first - 1)
            and None not in (joint.before, before[2])
            and joint.before != before[2]
        ):
            yield what, group, before[2], first, joint.before, name, None
        before = group, last, joint.last


def spans_of(context: Context) -> Sequence[Span]:
    """Consecutive entries of each group, in order."""
    return sorted(Span(run.group, run.first, run.last) for run in account_of(context).runs)


def replayed(context: Context) -> Replayed | None:
    """The result of the last span of each group; None if there is no log.

    Raises `NotRun` when a log begins after every state.
    """
    return context.shared("replayed", lambda: _replay(context, spans_of(context)))


def plans_of(context: Context) -> dict[int, Plan]:
    """What the replay began with, and was compared with; empty before the replay."""
    return context.shared("plans", dict)


def _replay(context: Context, spans: Sequence[Span]) -> Replayed | None:
    latest = {span.group: span for span in sorted(spans)}
    if not latest:
        return None
    context.progress("replaying the log")
    states = states_of(context)
    settings = account_of(context).settings
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
        header = headers.get((group, before)) or first_header(group)
        bases = [(0, header.incarnation_base)]
        members = []
        for of, index, what, base, payload in settings:
            if of == group and what == scan.CONFIGURED:
                members.append((index, _members(payload)))
            elif of == group and what == scan.RENEWED:
                bases.append((index, base))
        limits = tuple(_limits(state, group, before))
        plans[group] = Plan(
            before,
            after,
            header.next_stream_id,
            tuple(bases),
            tuple(members),
            header.counts,
            limits,
        )
        span = latest[group]
        begin = span.first if before is None else before + 1
        is_mine = (f.col("group") == group) & f.col("index").between(begin, span.last)
        inside = inside | is_mine
    if not plans:
        return None
    rows = scanned(context).where(inside & (f.col("what") < scan.WRONG))
    return replay(rows, state, plans, context.notes["log_rows"].keys())


def state_rows(context: Context) -> DataFrame:
    """The raw rows of all states."""
    return context.shared(
        "state_rows",
        lambda: context.source(StateSource, _STATES_DDL, every="true").persist(
            StorageLevel.DISK_ONLY
        ),
    )


def states_at(
    context: Context, chosen: Mapping[int, tuple[int | None, int | None]]
) -> DataFrame | None:
    """The rows of states of these groups as of these entries; None if there are none."""
    meant = f.lit(False)
    for group, pair in chosen.items():
        there = [index for index in pair if index is not None]
        if there:
            meant = meant | ((f.col("group") == group) & f.col("index").isin(*there))
    if all(pair == (None, None) for pair in chosen.values()):
        return None
    return state_rows(context).where(meant)


def _headers(state: DataFrame | None) -> dict[tuple[int, int | None], Header]:
    """Headers by group and index; a state without one counts as empty, and differs in
    everything."""
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


def _limits(
    state: DataFrame | None, group: int, index: int | None
) -> Iterator[tuple[str, str, Limits]]:
    """The limits that a state has, by kind and name."""
    if state is None or index is None:
        return
    of_state = (f.col("group") == group) & (f.col("index") == index)
    for row in state.where(of_state & (f.col("kind") == "limits")).collect():
        try:
            found = read_row(row["key"], row["value"])
        except Damaged:
            continue
        if isinstance(found.value, Limits):
            yield *owner_of(found.rest), found.value


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
