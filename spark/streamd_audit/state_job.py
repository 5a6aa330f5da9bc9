"""``replay_state``: whether the newest state, and with ``--url`` a live cluster, are the result of
the commands in the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from streamd_audit.arrow import map_in_arrow
from streamd_audit.context import Context, Judged
from streamd_audit.errors import Damaged
from streamd_audit.findings import FINDINGS_DDL, finding, findings_batch
from streamd_audit.frames import batches_of, columns_of, rows_in
from streamd_audit.live import live_findings
from streamd_audit.log_job import JUDGED, differences_of
from streamd_audit.replay import access
from streamd_audit.replay.distribute import Replayed, with_ops
from streamd_audit.replay.run import STREAMS
from streamd_audit.replay.whole import plans_of, replayed, state_rows, states_at
from streamd_audit.rows import Bucket, read_row
from streamd_audit.runner import run

_BUCKETS_DDL = (
    "`group` int, bucket string, created_ms long, streams long, hidden long, is_said boolean"
)
_Numbers = list[int]


def state_job(context: Context) -> Judged:
    """Streams, buckets, tokens and limits of the newest state that the log reaches."""
    found = replayed(context)
    frames = [*differences_of(context, JUDGED, others=True)]
    if found is not None:
        frames += _of_buckets(context, found)
        frames += _of_access(context, found)
        if context.options.url is not None:
            frames.append(live_findings(context, found))

    def facts() -> Mapping[str, Any]:
        if found is None:
            return {"replay": "there is no log"}
        streams = found.counts.get(STREAMS, 0)
        began = {plan.before for plan in plans_of(context).values()}
        since = ", ".join(
            "from entry 1 on" if index is None else f"after the state as of entry {index:,}"
            for index in sorted(began, key=lambda index: index or 0)
        )
        return {"replay": f"{streams:,} streams, {since}", "stream_count": streams}

    return Judged([], frames, facts)


def main(arguments: Sequence[str] | None = None) -> int:
    return run({"replay_state": state_job}, "Replay the archive.", arguments)


def _of_buckets(context: Context, found: Replayed) -> Sequence[DataFrame]:
    """Buckets in which states differ from the log's result."""
    after = {group: plan.after for group, plan in plans_of(context).items()}
    cluster = context.cluster
    rows = states_at(context, {group: (None, index) for group, index in after.items()})
    if rows is None:
        return []
    rows = rows.where("kind = 'bucket'").select("group", "key", "value")
    said = map_in_arrow(rows, _said_of_buckets, _BUCKETS_DDL)
    compared = [group for group, index in after.items() if index is not None]
    mine = found.buckets.where(f.col("group").isin(*compared))
    mine = mine.withColumn("is_said", f.lit(False)).select(*said.columns)
    both = mine.unionByName(said).repartition("group", "bucket")
    both = both.sortWithinPartitions("group", "bucket")

    def findings(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        each = rows_in(batches, *columns_of(_BUCKETS_DDL))
        yield findings_batch(
            finding(
                "bucket_differs",
                cluster=cluster,
                group=group,
                index=after[group],
                expected=f"bucket {name}: {_told(by_log)}",
                found=_told(by_state),
            )
            for (group, name), some in groupby(each, key=itemgetter(0, 1))
            for by_log, by_state in [_pair(some)]
            if by_log != by_state
        )

    return [map_in_arrow(both, findings, FINDINGS_DDL)]


def _of_access(context: Context, found: Replayed) -> Sequence[DataFrame]:
    """Tokens and limits in which states differ from the log's result."""
    plans = plans_of(context)
    rows = with_ops(state_rows(context), plans)
    if rows is None or all(plan.after is None for plan in plans.values()):
        return []
    return [access.findings_of(found.access, rows, plans, context.cluster)]


def _pair(rows: Iterable[tuple[Any, ...]]) -> tuple[_Numbers | None, _Numbers | None]:
    """A bucket by the log's result and by the state."""
    found: dict[bool, _Numbers] = {is_said: numbers for _, _, *numbers, is_said in rows}
    return found.get(False), found.get(True)


def _told(numbers: _Numbers | None) -> str:
    if numbers is None:
        return "no such bucket"
    created_ms, streams, hidden = numbers
    return f"{streams} streams, {hidden} of them hidden, made at {created_ms}"


def _said_of_buckets(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    def buckets() -> Iterator[tuple[Any, ...]]:
        for group, key, value in rows_in(batches, "group", "key", "value"):
            try:
                row = read_row(key, value)
            except Damaged:
                continue
            if isinstance(row.value, Bucket):
                known = row.value
                name = row.rest.decode(errors="replace")
                yield group, name, known.created_ms, known.streams, known.hidden, True

    return batches_of(_BUCKETS_DDL, buckets())
