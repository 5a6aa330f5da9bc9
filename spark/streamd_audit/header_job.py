"""The headers of states, compared with their manifests and with the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter

import msgspec
import pyarrow as pa
from pyspark.sql import functions as f

from streamd_audit.arrow import map_in_arrow
from streamd_audit.context import Context
from streamd_audit.findings import Finding, finding
from streamd_audit.frames import batches_of, rows_in
from streamd_audit.replay import headers, scan
from streamd_audit.replay.distribute import Replayed
from streamd_audit.replay.plan import FIRST_STATE
from streamd_audit.replay.quotas import History
from streamd_audit.replay.stored import headers_of, looked_through, readable_states
from streamd_audit.replay.whole import account_of, compared_states, plans_of, scanned
from streamd_audit.states import State, manifests_of

_SEEN_DDL = "`group` int, number int, body binary"
_decode_seen = msgspec.msgpack.Decoder(headers.Seen).decode


Made = Mapping[tuple[int, int], int]
Seen = Mapping[tuple[int, int], headers.Seen]


def findings_of_headers(context: Context, found: Replayed | None) -> list[Finding]:
    """Headers that differ from their manifests, or from what the log leads to."""
    by_log = {}
    if found is not None:
        made, seen = _made(found, context), _seen(found, context)
        by_log = expected_headers(context, made, seen, found.histories)
    return judged_headers(context, by_log)


def judged_headers(context: Context, by_log: Mapping[State, headers.Expected]) -> list[Finding]:
    """Headers that differ from their manifests, or from what they have to say `by_log`."""
    configurations = {row["object"]: row["configuration"] for row in manifests_of(context)}
    times = account_of(context).times
    told = []
    for state, index in looked_through(context).stale:
        rows = f"the rows of entry {state.index}", f"those of entry {index}"
        told.append(_finding(context, state, headers.Difference("state_stale", *rows)))
    for state in readable_states(context):
        header = headers_of(context).get(state)
        configuration = configurations[state.object]
        as_named = headers.Expected(
            state.index, state.term, state.log_ms, configuration=configuration
        )
        expected = by_log.get(state, as_named)
        differs = headers.difference(header, expected) or headers.difference(header, as_named)
        log_ms = times.get((state.group, state.index), state.log_ms)
        if differs is None and log_ms != state.log_ms:
            named = f"log_ms {log_ms}", f"log_ms {state.log_ms} in the manifest"
            differs = headers.Difference("header_differs", *named)
        if differs is not None:
            told.append(_finding(context, state, differs))
    return told


def _finding(context: Context, state: State, differs: headers.Difference) -> Finding:
    return finding(
        differs.kind,
        cluster=context.cluster,
        group=state.group,
        index=state.index,
        object=state.object,
        expected=differs.expected,
        found=differs.found,
    )


def expected_headers(
    context: Context, made: Made, seen: Seen, histories: Mapping[int, History]
) -> dict[State, headers.Expected]:
    """What the headers of the states that are compared with the log have to say.

    `made` is how many things took an id before the state of a number, and not before an earlier
    one; `seen` is how far the log was archived and what was seen of the objects as of that state.
    """
    plans = plans_of(context)
    places = account_of(context).places
    times = account_of(context).times
    numbers: Counter[int] = Counter()
    expected = {}
    for state in compared_states(context):
        group = state.group
        plan, number = plans[group], numbers[group]
        numbers[group] += 1
        term, _ = places.get((group, state.index), (state.term, 0))
        known = seen.get((group, number)) or headers.seen_by(plan.header)
        is_before = [base for index, base in plan.bases if index <= state.index]
        configuration = plan.header.configuration
        for index, payload in plan.configurations:
            if (plan.before or 0) < index <= state.index:
                configuration = payload
        expected[state] = headers.Expected(
            state.index,
            term,
            times.get((group, state.index), state.log_ms),
            plan.header.next_stream_id + sum(made[group, at] for at in range(number + 1)),
            configuration,
            known.archived,
            is_before[-1],
            known.scrub,
            histories[group].at((state.index, FIRST_STATE)).counts,
            known.tree,
            known.log_keys,
            known.features,
        )
    return expected


def _made(found: Replayed, context: Context) -> Made:
    """How many things took an id before the state of a number, and not before an earlier one."""
    # Shallow however many groups and states there are: the JVM's stack is not deep.
    states = [
        each
        for group, plan in plans_of(context).items()
        for each in (f.lit(group), f.array(*map(f.lit, plan.states)).cast("array<long>"))
    ]
    of_group = f.coalesce(f.create_map(*states)[f.col("group")], f.array().cast("array<long>"))
    earlier = f.size(f.filter(of_group, lambda index: index < f.col("index")))
    rows = found.made.groupBy("group", earlier.alias("number")).count().collect()
    return Counter({(row["group"], row["number"]): row["count"] for row in rows})


def _seen(found: Replayed, context: Context) -> Seen:
    """How far the log is archived and what was seen of the objects, by group and number of the
    state; empty if the log says nothing of it."""
    if scan.HEADER not in account_of(context).kinds:
        return {}
    plans = plans_of(context)
    rows = scanned(context).where(f.col("what") == scan.HEADER)
    rows = rows.where(f.col("group").isin(*plans)).select("group", "index", "position", "body")
    if found.refused is not None:
        rows = rows.join(found.refused, ["group", "index", "position"], "left_anti")
    ordered = rows.repartition("group").sortWithinPartitions("group", "index", "position")

    def follow(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        each = rows_in(batches, "group", "index", "position", "body")
        yield from batches_of(
            _SEEN_DDL,
            (
                (group, number, scan.encode(seen))
                for group, some in groupby(each, key=itemgetter(0))
                for number, seen in enumerate(
                    headers.follow(
                        (
                            (index, position, scan.decode_header(body))
                            for _, index, position, body in some
                            if index > (plans[group].before or 0)
                        ),
                        plans[group].places,
                        plans[group].header,
                    )
                )
            ),
        )

    return {
        (row["group"], row["number"]): _decode_seen(row["body"])
        for row in map_in_arrow(ordered, follow, _SEEN_DDL).collect()
    }
