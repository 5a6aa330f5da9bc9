"""What the distributed replay does to batches of rows, a partition at a time.

Each function's rows have the columns that a schema here names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from streamd_audit.arrow import ArrowMap
from streamd_audit.errors import Damaged
from streamd_audit.frames import batches_of, rows_in
from streamd_audit.replay import buckets, heads, run, scan, sessions
from streamd_audit.replay.components import components
from streamd_audit.replay.plan import Plan
from streamd_audit.replay.quotas import History
from streamd_audit.rows import Bucket as BucketRow
from streamd_audit.rows import Session as SessionRow
from streamd_audit.rows import Stream as StreamRow
from streamd_audit.rows import read_row

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
    "three long, four long"
)
REFUSED = "`group` int, index long, position int, result string"

# The kind of a row about a node: a state's session and its packages, a session opened, a package.
_KNOWN, _REMEMBERED, OPENED, _PACKAGE = range(4)


@_makes(SESSION_EVENTS)
def of_packages(batches: Batches) -> Rows:
    """Each package, at its first command."""
    for group, index, position, body in rows_in(batches, "group", "index", "position", "body"):
        package = scan.decode_package(body)
        told = package.session_id, package.sequence, package.lowest, package.count
        yield group, package.node_id, index, position, _PACKAGE, *told


@_makes(SESSION_EVENTS)
def known_sessions(batches: Batches) -> Rows:
    """The sessions that a state remembers."""
    for group, index, body in rows_in(batches, "group", "index", "body"):
        row = read_row(*heads.decode_row(body))
        if isinstance(row.value, SessionRow):
            known = row.value
            place = group, row.numbers[0], index
            yield *place, -2, _KNOWN, known.session_id, known.nonce, known.lowest, None
            for sequence, outcomes in known.outcomes.items():
                yield *place, -1, _REMEMBERED, sequence, len(outcomes), None, None


def judge_packages(members: Mapping[int, tuple[tuple[int, frozenset[int]], ...]]) -> ArrowMap:
    """The commands of packages that do not take effect, and sessions that are not opened.

    `members` are the nodes of each group as of entries of its log.
    """

    @_makes(REFUSED)
    def judge(batches: Batches) -> Rows:
        at, node = None, sessions.Node()
        changes: Iterator[tuple[int, frozenset[int]]] = iter(())
        change: tuple[int, frozenset[int]] | None = None
        known: tuple[int, int, int, dict[int, int]] | None = None
        names = (
            "group", "node_id", "index", "position", "event", "one", "two", "three", "four"
        )  # fmt: skip
        for row in rows_in(batches, *names):
            group, number, index, position, event, one, two, three, four = row
            if at != (group, number):
                at, node = (group, number), sessions.Node()
                changes = iter(members.get(group, ()))
                change = next(changes, None)
            while change is not None and change[0] < index:
                if number not in change[1]:
                    node.remove()
                change = next(changes, None)
            if event == _KNOWN:
                known = one, two, three, {}
                node.begin(*known)
            elif event == _REMEMBERED and known is not None:
                known[3][one] = two
            elif event == OPENED:
                result = "done" if node.open(index, one, two) else "stale"
                yield group, index, position, result
            elif event == _PACKAGE:
                verdict = node.take(one, two, three, four)
                if verdict != sessions.APPLIED:
                    for each in range(position, position + four):
                        yield group, index, each, verdict

    return judge


# -- scopes ----------------------------------------------------------------------------------------

STATE_ROWS = (
    "`group` int, index long, op int, kind string, bucket string, stream string, "
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
    names = "group", "index", "op", "key", "value"
    for group, index, op, key, value in rows_in(batches, *names):
        try:
            row = read_row(key, value)
        except Damaged:
            continue
        place = group, index, op, row.kind
        body = heads.encode((key, value))
        if isinstance(row.value, StreamRow):
            fork = row.value.settings.fork
            source = None if fork is None else _text(fork.source)
            pair = _text(row.rest)
            if pair is not None:
                number = row.value.stream_id
                yield *place, *pair, *(source or (None, None)), number, None, None, body
        elif isinstance(row.value, BucketRow):
            known = row.value
            counts = known.created_ms, known.streams, known.hidden
            yield *place, *_NO_NAMES, *counts, row.rest
        else:
            yield *place, *_NO_NAMES, row.numbers[0], None, None, body


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
    return run.Replay(plan.after, plan.bases, plan.first_number, history)


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
    "`group` int, bucket binary, index long, position int, result string, created_ms long, "
    "streams long, hidden long"
)
# A state's bucket, in the numbers of `buckets`.
BEGUN = 7


def judge_buckets(until: Mapping[int, int | None]) -> ArrowMap:
    """The outcomes of commands on buckets; and each bucket that exists as of the entries
    `until`."""

    @_makes(BUCKETS)
    def judge(batches: Batches) -> Rows:
        at: tuple[int, bytes] | None = None
        bucket, is_told = buckets.Bucket(), True

        def told() -> Rows:
            if at is not None and bucket.is_there:
                yield (
                    *at, None, None, None, bucket.created_ms, bucket.streams, bucket.hidden
                )  # fmt: skip

        names = (
            "group", "bucket", "index", "position", "event", "log_ms", "streams", "hidden"
        )  # fmt: skip
        for row in rows_in(batches, *names):
            group, name, index, position, event, log_ms, streams, hidden = row
            if at != (group, name):
                if not is_told:
                    yield from told()
                at, bucket, is_told = (group, name), buckets.Bucket(), False
            last = until.get(group)
            if not is_told and last is not None and index > last:
                yield from told()
                is_told = True
            kind = event % 8
            if kind == BEGUN:
                bucket.begin(log_ms, streams, hidden)
                continue
            result = bucket.tell(kind, log_ms)
            if result is None:
                continue
            if kind == buckets.ASKED:
                result = "absent"
            yield group, name, index, position, result, None, None, None
        if not is_told:
            yield from told()

    return judge
