"""The log of a cluster and its result: fetched, decoded and replayed once for all jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from streamd_audit import log_order, log_trees
from streamd_audit.arrow import map_in_arrow
from streamd_audit.commands import Limits
from streamd_audit.context import Context, columns_of
from streamd_audit.frames import batches_of, rows_in
from streamd_audit.log_order import Told
from streamd_audit.log_trees import Place
from streamd_audit.names import EndName, parse, split
from streamd_audit.options import NotRun
from streamd_audit.replay import scan
from streamd_audit.replay.distribute import Replayed, replay
from streamd_audit.replay.plan import Plan
from streamd_audit.replay.stored import (
    events,
    headers_of,
    limits_of,
    readable_states,
    state_indexes,
)
from streamd_audit.rows import Header, first_header
from streamd_audit.states import State, states_of
from streamd_audit.tree_claims import tree_places
from streamd_audit.tree_parts import covered_parts
from streamd_audit.watermark import Watermark, base_index

_Row = tuple[Any, ...]
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
    segments that do not continue the chain, or the log's time: group, first entry, object, what is
    before it and what it says; `problems` what is wrong with which object: group, entry, object,
    problem. `places` are term and chain at the entries (group, index) that were asked for, `times`
    the log's times there. `trees` are those over the log, at the places that were asked for, and
    what is wrong with one; `kinds` the kinds of rows that the log has.
    """

    order: list[Told] = field(default_factory=list)
    runs: list[Told] = field(default_factory=list)
    joints: list[tuple[int, int, str, str, str]] = field(default_factory=list)
    problems: list[tuple[int, int | None, str, str]] = field(default_factory=list)
    places: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    times: dict[tuple[int, int], int] = field(default_factory=dict)
    settings: list[tuple[int, int, int, int, bytes]] = field(default_factory=list)
    trees: list[tuple[Place, str | None]] = field(default_factory=list)
    kinds: set[int] = field(default_factory=set)


def scanned(context: Context) -> DataFrame:
    """The log to judge, as rows of `scan.SCANNED_DDL`."""

    def read() -> DataFrame:
        spark = context.spark
        tasks = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
        since = scanned_after(context)
        context.notes["scanned_after"] = since
        places = sorted(places_asked(context))
        reader = scan.Scan(
            context.of_sources, columns_of(scan.SCANNED_DDL), places, since, tree_places(context)
        )
        # Each job that reads the log pays for each of its partitions, however small.
        parts = max(tasks, 2 * spark.sparkContext.defaultParallelism)
        return context.keep(context.read(reader, scan.SCANNED_DDL, parts))

    return context.shared("scanned", read)


def scanned_after(context: Context) -> dict[int, int]:
    """The last entries of groups that are not read: those of the states with which an incremental
    replay begins."""
    found: dict[int, int] = {}
    for state in readable_states(context) if context.since is not None else ():
        if context.since is not None and state.index <= context.since.of(state.group):
            found[state.group] = max(found.get(state.group, 0), state.index)
    return found


def places_asked(context: Context) -> set[int]:
    """The entries that states, pointers to the archive's end and the watermark name."""
    asked = {state.index for state in states_of(context)}
    for name in context.listing.ends:
        named = parse(split(name)[1])
        assert isinstance(named, EndName)
        asked.add(named.index)
    mark = context.notes.get("watermark")
    if isinstance(mark, Watermark):
        asked.update(one.index for one in mark.marks)
    return asked


def account_of(context: Context) -> Account:
    """What is told of the log as a whole; the log is read for it."""

    def look() -> Account:
        # Every partition of the log is stored by this, by all tasks at once.
        few = scanned(context).where(f.col("what") >= scan.WRONG).select(*_FEW)
        covered = covered_parts(context)
        if covered is not None:
            few = few.unionByName(covered.select(*_FEW))
        few = few.repartition(1).sortWithinPartitions(*_FEW[:5], "object")
        places = tree_places(context)

        def together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from batches_of(_FEW_DDL, few_of(rows_in(batches, *_FEW), places))

        return account_in(map_in_arrow(few, together, _FEW_DDL).collect())

    return context.shared("account", look)


def account_in(rows: Iterable[_Row]) -> Account:
    """What is told by rows of `_FEW_DDL` that `few_of` has put together."""
    account = Account()
    for what, group, one, index, two, three, name, body in rows:
        if what in (scan.WRONG, scan.RUN):
            of = account.order if what == scan.WRONG else account.runs
            of.append(scan.decode_told(body))
        elif what == scan.SEGMENT:
            account.joints.append((group, index, name, *scan.decode_texts(body)))
        elif what == scan.PROBLEM:
            account.problems.append((group, index, name, body.decode()))
        elif what == scan.PLACED:
            account.places[group, index] = one, two
            account.times[group, index] = three
        elif what == scan.TREE:
            account.trees.append(log_trees.decode_judged(body))
        elif what == scan.KIND:
            account.kinds.add(one)
        else:
            account.settings.append((group, index, one, two, body))
    account.settings.sort(key=lambda setting: setting[:2])
    return account


_FEW_DDL = (
    "what int, `group` int, one long, index long, two long, three long, object string, body binary"
)
_FEW = [part.split()[0].strip("`") for part in _FEW_DDL.split(", ")]


def few_of(rows: Iterable[_Row], places: Collection[int] = ()) -> Iterator[_Row]:
    """Rows of `_FEW_DDL` put together in one task; they come sorted by their first five columns,
    and by their objects. Trees are put together at these places."""
    for what, some in groupby(rows, key=itemgetter(0)):
        if what == scan.TREE:
            yield from _trees(some, places)
        else:
            yield from islice(_of_kind(what, some), _MOST_TOLD)


def _trees(rows: Iterable[_Row], places: Collection[int]) -> Iterator[_Row]:
    parts = (log_trees.decode_part(row[-1]) for row in rows)
    for place, problem in log_trees.judged(parts, places):
        body = log_trees.encode((place, problem))
        yield scan.TREE, place.group, None, None, None, None, place.object, body


def _of_kind(what: int, rows: Iterator[_Row]) -> Iterator[_Row]:
    if what in (scan.WRONG, scan.RUN, scan.NOOPS):
        return map(_of_order, log_order.joined(scan.decode_told(row[-1]) for row in rows))
    return _joints(rows) if what == scan.SEGMENT else rows


def _of_order(told: Told) -> _Row:
    what = scan.RUN if told.what == log_order.RUN else scan.WRONG
    return what, told.group, None, told.first, None, None, told.object, scan.encode(told)


def _joints(rows: Iterable[_Row]) -> Iterator[_Row]:
    """Segments, in order, that do not continue the chain before them."""
    before: tuple[int, int, tuple[int, int, int] | None] | None = None
    for what, group, _, first, last, _, name, body in rows:
        joint = scan.decode_joint(body)
        if (
            before is not None
            and before[:2] == (group, first - 1)
            and joint.before is not None
            and before[2] is not None
            and joint.before != before[2]
        ):
            told = [
                f"{chain:08x} of term {term} at {time_ms} ms"
                for chain, term, time_ms in (before[2], joint.before)
            ]
            yield what, group, None, first, None, None, name, scan.encode(told)
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
    settings = account_of(context).settings
    plans = plans_of(context)
    inside = f.lit(False)
    for group, span in latest.items():
        of_group = [state for state in readable_states(context) if state.group == group]
        try:
            since = None if context.since is None else context.since.of(group)
            before, after = chosen_states(of_group, span, since)
        except NotRun:
            continue  # `log_job` tells of the gap before the span
        header = first_header(group)
        limits: tuple[tuple[str, str, Limits], ...] = ()
        if before is not None:
            header = headers_of(context).get(before, header)
            limits = tuple(limits_of(context, before))
        versions = versions_of(context, after)
        plans[group] = plan_of(group, before, after, header, limits, settings, versions)
        begin = span.first if before is None else before.index + 1
        is_mine = (f.col("group") == group) & f.col("index").between(begin, span.last)
        inside = inside | is_mine
    if not plans:
        return None
    rows = scanned(context).where(inside & (f.col("what") < scan.WRONG))
    there = set(account_of(context).kinds)
    if context.notes["state_sessions"]:
        # They are judged even if the log opened none.
        there.add(scan.OPENED_SESSION)
    return replay(rows, events(context, plans), plans, there)


def compared_states(context: Context) -> Sequence[State]:
    """The states that the log's result was compared with, after `replayed`."""
    found = []
    for group, plan in plans_of(context).items():
        of_group = [state for state in readable_states(context) if state.group == group]
        begin = _begin_at(of_group, plan.before)
        found += of_group[begin : begin + len(plan.states)]
    return found


def numbers_before(context: Context) -> dict[int, int]:
    """The number of the state with which the replay of each group began, after `replayed`."""
    found = {}
    for group, indexes in state_indexes(context).items():
        plan = plans_of(context).get(group)
        if plan is not None and plan.before is not None:
            found[group] = sum(index <= plan.before for index in indexes) - 1
    return found


def chosen_states(
    states: Sequence[State], span: Span, since: int | None
) -> tuple[State | None, Sequence[State]]:
    """The state that the replay of a span begins with, and those that it is compared with.

    Raises `NotRun` if there is none to begin with.
    """
    reached = [state for state in states if state.index <= span.last]
    before = base_index([state.index for state in reached], span.first, since)
    begin = _begin_at(states, before)
    return None if before is None else states[begin - 1], reached[begin:]


def versions_of(context: Context, states: Iterable[State]) -> tuple[int, ...]:
    """The versions of the patterns of subscriptions that headers of states have."""
    headers = headers_of(context)
    return tuple(headers.get(state, Header()).pattern_version for state in states)


def plan_of(
    group: int,
    before: State | None,
    after: Sequence[State],
    header: Header,
    limits: tuple[tuple[str, str, Limits], ...],
    settings: Iterable[tuple[int, int, int, int, bytes]],
    versions: tuple[int, ...],
) -> Plan:
    """The plan of a group that begins with a state of this header and these limits; `settings` are
    those of an `Account`, `versions` those of the patterns as of the states."""
    bases = [(0, header.incarnation_base)]
    configurations = []
    for of, index, what, base, payload in settings:
        if of == group and what == scan.CONFIGURED:
            configurations.append((index, payload))
        elif of == group and what == scan.RENEWED:
            bases.append((index, base))
    return Plan(
        None if before is None else before.index,
        tuple(state.index for state in after),
        header,
        tuple(bases),
        tuple(configurations),
        limits,
        versions,
    )


def _begin_at(states: Sequence[State], before: int | None) -> int:
    """The number of the first state that is compared with the log after entry `before`."""
    if before is None:
        return 0
    return sum(state.index <= before for state in states)
