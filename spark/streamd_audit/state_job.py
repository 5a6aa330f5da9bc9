"""``replay_state``: whether the newest state, and with ``--url`` a live cluster, are what the
commands in the log come to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from streamd_audit.arrow import map_in_arrow
from streamd_audit.context import Context, Judged
from streamd_audit.errors import Damaged
from streamd_audit.findings import FINDINGS_DDL, finding, findings_batch
from streamd_audit.live import live_findings
from streamd_audit.log_job import JUDGED, differences_of
from streamd_audit.replay.distribute import Replayed
from streamd_audit.replay.whole import plans_of, replayed, states_at
from streamd_audit.rows import Bucket, read_row
from streamd_audit.runner import run

_BUCKETS_DDL = "`group` int, bucket string, said_ms long, said_streams long, said_hidden long"


def state_job(context: Context) -> Judged:
    """Streams and buckets of the newest state that the log reaches."""
    found = replayed(context)
    frames = [context.spark.createDataFrame([], FINDINGS_DDL)]
    if found is not None:
        frames.append(differences_of(context, JUDGED, others=True))
        frames.append(_of_buckets(context, found))
        if context.options.url is not None:
            frames.append(live_findings(context, found))

    def facts() -> Mapping[str, Any]:
        if found is None:
            return {"replay": "there is no log"}
        streams = found.streams.count()
        began = {plan.before for plan in plans_of(context).values()}
        since = ", ".join(
            "from entry 1 on" if index is None else f"behind the state as of entry {index:,}"
            for index in sorted(began, key=lambda index: index or 0)
        )
        return {"replay": f"{streams:,} streams, {since}", "stream_count": streams}

    return Judged(reduce(DataFrame.unionByName, frames), facts)


def main(arguments: Sequence[str] | None = None) -> int:
    return run({"replay_state": state_job}, "Replay the archive.", arguments)


def _of_buckets(context: Context, found: Replayed) -> DataFrame:
    """Buckets that states have otherwise than the log leads to."""
    after = {group: plan.after for group, plan in plans_of(context).items()}
    cluster = context.cluster
    rows = states_at(context, {group: (None, index) for group, index in after.items()})
    if rows is None:
        return context.spark.createDataFrame([], FINDINGS_DDL)
    rows = rows.where("kind = 'bucket'").select("group", "key", "value")
    said = map_in_arrow(rows, _said_of_buckets, _BUCKETS_DDL)
    compared = [group for group, index in after.items() if index is not None]
    mine = found.buckets.where(f.col("group").isin(*compared))
    both = mine.join(said, ["group", "bucket"], "full_outer")
    same = (
        f.col("created_ms").eqNullSafe(f.col("said_ms"))
        & f.col("streams").eqNullSafe(f.col("said_streams"))
        & f.col("hidden").eqNullSafe(f.col("said_hidden"))
    )

    def findings(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = (
            "group", "bucket", "created_ms", "streams", "hidden", "said_ms", "said_streams",
            "said_hidden",
        )  # fmt: skip
        for batch in batches:
            rows = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
            yield findings_batch(
                finding(
                    "bucket_differs",
                    cluster=cluster,
                    group=group,
                    index=after[group],
                    expected=f"bucket {name}: {_told(*row[:3])}",
                    found=_told(*row[3:]),
                )
                for group, name, *row in rows
            )

    return map_in_arrow(both.where(~same).select(*both.columns), findings, FINDINGS_DDL)


def _told(created_ms: int | None, streams: int | None, hidden: int | None) -> str:
    if created_ms is None:
        return "no such bucket"
    return f"{streams} streams, {hidden} of them hidden, made at {created_ms}"


def _said_of_buckets(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    names = ["group", "bucket", "said_ms", "said_streams", "said_hidden"]
    kinds = (pa.int32(), pa.string(), pa.int64(), pa.int64(), pa.int64())
    for batch in batches:
        rows = []
        for group, key, value in zip(
            *(batch.column(n).to_pylist() for n in ("group", "key", "value")), strict=True
        ):
            try:
                row = read_row(key, value)
            except Damaged:
                continue
            if isinstance(row.value, Bucket):
                known = row.value
                name = row.rest.decode(errors="replace")
                rows.append((group, name, known.created_ms, known.streams, known.hidden))
        made = zip(*rows, strict=True) if rows else [()] * len(names)
        arrays = [pa.array(each, kind) for each, kind in zip(made, kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=names)
