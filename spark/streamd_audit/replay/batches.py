"""What the distributed replay does to batches of rows, a partition at a time.

Each function's rows have the columns that a schema here names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from streamd_audit.arrow import ArrowMap
from streamd_audit.errors import Damaged
from streamd_audit.frames import batches_of, rows_in
from streamd_audit.replay import buckets, heads, run, scan, sessions, stated
from streamd_audit.replay.components import components
from streamd_audit.replay.globs import Patterns, path_of
from streamd_audit.replay.ids import Place
from streamd_audit.replay.plan import Plan
from streamd_audit.replay.quotas import History
from streamd_audit.rows import Bucket as BucketRow
from streamd_audit.rows import Session as SessionRow
from streamd_audit.rows import Stream as StreamRow
from streamd_audit.rows import read_row
from streamd_audit.subscriptions import Subscription as SubscriptionRow

_ROWS_AT_ONCE = 10_000

Batches = Iterable[pa.RecordBatch]
Rows = Iterator[tuple[Any, ...]]


def _makes(schema: str) -> Callable[[Callable[[Batches], Rows]], ArrowMap]:
    """A decorator: a function that yields rows yields batches of a schema's columns."""

    def of(function: Callable[[Batches], Rows]) -> ArrowMap:
        def made(batches: Batches) -> Iterator[pa.RecordBatch]:
            return batches_of(schema, function(batches))

        return made

    return of


def _text(key: bytes) -> tuple[str, str] | None:
    """Bucket and name in a stream's key, as the rows of the log have them."""
    bucket, nul, name = key.partition(b"\0")
    if not nul:
        return None
    return bucket.decode("utf-8", "replace"), name.decode("utf-8", "replace")


# -- packages --------------------------------------------------------------------------------------

SESSION_EVENTS = (
    "`group` int, node_id long, index long, position int, event int, one long, two long, "
    "three long, four long, body binary"
)
JUDGED = "`group` int, index long, position int, result string, expected string, found string"


@_makes(SESSION_EVENTS)
def of_packages(batches: Batches) -> Rows:
    """Each package, at its first command."""
    for group, index, position, body in rows_in(batches, "group", "index", "position", "body"):
        package = scan.decode_package(body)
        told = package.session_id, package.sequence, package.lowest, package.count
        yield group, package.node_id, index, position, sessions.PACKAGE, *told, None


def judge_packages(
    members: Mapping[int, Sequence[tuple[int, frozenset[int]]]],
    places: Mapping[int, Sequence[Place]],
) -> ArrowMap:
    """The commands of packages that do not take effect, and sessions that are not opened; and,
    without a position, where states differ from that.

    `members` are the nodes of each group as of entries of its log, `places` those of the states.
    """

    @_makes(JUDGED)
    def judge(batches: Batches) -> Rows:
        names = (
            "group", "node_id", "index", "position", "event", "one", "two", "three", "four", "body"
        )  # fmt: skip
        for (group, node_id), rows in groupby(rows_in(batches, *names), key=itemgetter(0, 1)):
            told = sessions.follow(
                node_id,
                (_with_session(row[2:]) for row in rows),
                members.get(group, ()),
                places.get(group, ()),
            )
            for one in told:
                yield group, *one

    return judge


def _with_session(row: tuple[Any, ...]) -> sessions.Event:
    *event, body = row
    session = None
    if body is not None:
        value = read_row(*heads.decode_row(body)).value
        assert isinstance(value, SessionRow)
        counts = {sequence: len(told) for sequence, told in value.outcomes.items()}
        session = value.session_id, value.nonce, value.lowest, counts
    return *event, session


# -- scopes ----------------------------------------------------------------------------------------

STATE_ROWS = (
    "`group` int, index long, position int, op int, kind string, bucket string, stream string, "
    "other_bucket string, other_stream string, number long, streams long, hidden long, body binary"
)
ROOTS = "node long, root long"

_NO_NAMES = None, None, None, None


def singles(schema: str) -> ArrowMap:
    """Each command of bundles, which are the `body`, in a row of its own."""
    names = [part.split()[0].strip("`") for part in schema.split(", ")]
    index, position, body = map(names.index, ("index", "position", "body"))

    @_makes(schema)
    def cut(batches: Batches) -> Rows:
        for row in rows_in(batches, *names):
            for step in heads.unpack(row[body]):
                made = list(row)
                made[index], made[position] = step[:2]
                made[body] = heads.pack([step])
                yield tuple(made)

    return cut


@_makes(STATE_ROWS)
def of_states(batches: Batches) -> Rows:
    """Rows of streams, producers, uploads, sessions: by their stream or `number`, the whole row in
    `body`. Of a bucket `body` is the name, `number` when it was made."""
    names = "group", "index", "position", "op", "key", "value"
    for group, index, position, op, key, value in rows_in(batches, *names):
        try:
            row = read_row(key, value)
        except Damaged:
            continue
        place = group, index, position, op, row.kind
        body = heads.encode((key, value))
        if isinstance(row.value, StreamRow):
            fork = row.value.settings.fork
            source = None if fork is None else _text(fork.source)
            pair = _text(row.rest)
            if pair is not None:
                number = row.value.stream_id
                yield *place, *pair, *(source or (None, None)), number, None, None, body
            is_tied = bool(row.value.links or row.value.settings.write_fence)
            if pair is not None and is_tied:
                yield *place[:4], *_tied(pair)
        elif isinstance(row.value, BucketRow):
            known = row.value
            counts = known.created_ms, known.streams, known.hidden
            yield *place, *_NO_NAMES, *counts, row.rest
        elif row.kind in stated.KINDS:
            yield *place, *_NO_NAMES, 0, None, None, body
            one = row.value
            pair = _text(one.config.wake_key if isinstance(one, SubscriptionRow) else row.rest)
            if pair is not None:
                yield *place[:4], *_tied(pair)
        else:
            yield *place, *_NO_NAMES, row.numbers[0], None, None, body


def _tied(pair: tuple[str, str]) -> tuple[Any, ...]:
    """The rest of a row that says that a stream goes with the subscriptions."""
    return "tied", *pair, *scan.OF_SUBSCRIPTIONS, 0, None, None, None


@_makes("`group` int, pattern string")
def patterns_of(batches: Batches) -> Rows:
    """The patterns of subscriptions in rows of states."""
    for group, body in rows_in(batches, "group", "body"):
        value = read_row(*heads.decode_row(body)).value
        if isinstance(value, SubscriptionRow) and value.config.pattern:
            yield group, value.config.pattern


def matching(patterns: Mapping[int, Collection[str]]) -> ArrowMap:
    """The streams, by group, bucket and name, that a pattern of their group matches."""

    @_makes("`group` int, bucket string, stream string")
    def chosen(batches: Batches) -> Rows:
        of_group = {
            group: Patterns((pattern, pattern) for pattern in some)
            for group, some in patterns.items()
        }
        for group, bucket, stream in rows_in(batches, "group", "bucket", "stream"):
            if group in of_group and of_group[group].matching(path_of(f"{bucket}\0{stream}")):
                yield group, bucket, stream

    return chosen


def join_components(batches: Batches) -> Iterator[pa.RecordBatch]:
    """For each node the one that represents all nodes joined with it; all pairs in one task."""
    held = [[batch.column(name).to_numpy() for name in ("one", "other")] for batch in batches]
    if not held:
        return
    one, other = (np.concatenate(parts) for parts in zip(*held, strict=True))
    nodes, roots = components(one, other)
    for begin in range(0, len(nodes), _ROWS_AT_ONCE):
        span = slice(begin, begin + _ROWS_AT_ONCE)
        yield pa.RecordBatch.from_arrays(
            [pa.array(nodes[span]), pa.array(roots[span])], names=["node", "root"]
        )


def run_scopes(plans: Mapping[int, Plan], histories: Mapping[int, History]) -> ArrowMap:
    """The model over scopes that come one after the other."""

    def run_all(batches: Batches) -> Iterator[pa.RecordBatch]:
        replays: dict[int, run.Replay] = {}
        for row in rows_in(batches, *run.COLUMNS):
            group = row[1]
            replay = replays.get(group) or replays.setdefault(
                group, _replay(plans[group], histories.get(group))
            )
            replay.feed(row)
            yield from replay.take(_ROWS_AT_ONCE)
        for replay in replays.values():
            replay.finish()
            yield from replay.take()

    return run_all


def _replay(plan: Plan, history: History | None) -> run.Replay:
    header = plan.header
    began = header.pattern_version, header.generation_floor
    first = header.next_stream_id
    return run.Replay(plan.places, plan.bases, first, history, began, plan.versions)


# -- ids -------------------------------------------------------------------------------------------

NUMBERS = "`group` int, born_index long, born_position int, scope long, guess long, number long"
WOULD_BE = "`group` int, index long, position int, number long"


def number(first: Mapping[int, int]) -> ArrowMap:
    """Number what was made in its order, from the first number of its group on."""

    def numbered(batches: Batches) -> Iterator[pa.RecordBatch]:
        following = dict(first)
        for batch in batches:
            groups = batch.column("group").to_numpy()
            numbers = np.zeros(len(groups), np.int64)
            for group in np.unique(groups).tolist():
                chosen = groups == group
                count = int(chosen.sum())
                begin = following[group]
                numbers[chosen] = np.arange(begin, begin + count)
                following[group] = begin + count
            columns = [batch.column(name) for name in batch.schema.names]
            yield pa.RecordBatch.from_arrays(
                [*columns, pa.array(numbers)], names=[*batch.schema.names, "number"]
            )

    return numbered


def would_be(first: Mapping[int, int]) -> ArrowMap:
    """The ids that commands give if they make something; rows with `is_made` are what was made."""

    @_makes(WOULD_BE)
    def numbered(batches: Batches) -> Rows:
        following = dict(first)
        names = "group", "index", "position", "is_made"
        for group, index, position, is_made in rows_in(batches, *names):
            if is_made:
                following[group] += 1
            else:
                yield group, index, position, following[group]

    return numbered


# -- buckets ---------------------------------------------------------------------------------------

BUCKETS = (
    "`group` int, bucket binary, index long, position int, result string, expected string, "
    "found string"
)


def judge_buckets(places: Mapping[int, Sequence[Place]]) -> ArrowMap:
    """The outcomes of commands on buckets; and, without a position, where states differ from them.

    `places` are those of the states, by group. The event of a state's bucket is its `op`.
    """

    @_makes(BUCKETS)
    def judge(batches: Batches) -> Rows:
        names = (
            "group", "bucket", "index", "position", "event", "log_ms", "streams", "hidden"
        )  # fmt: skip
        rows = rows_in(batches, *names)
        for (group, name), events in groupby(rows, key=itemgetter(0, 1)):
            told = buckets.follow((row[2:] for row in events), places.get(group, ()))
            for index, position, result, expected, found in told:
                yield group, name, index, position, result, expected, found

    return judge
