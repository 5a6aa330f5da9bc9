"""``audit_chunks``: whether every slice that a state refers to is there, whole, and what the log
says was appended.

What goes on from the tasks that read packs, to be compared with the log, are digests of records,
never their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streamd_audit.arrow import map_in_arrow
from streamd_audit.chunks.coverage import (
    APPEND,
    COLUMNS,
    HOT,
    ROWS_DDL,
    SLICE,
    STREAM,
    Row,
    judge_streams,
)
from streamd_audit.chunks.reading import findings_in, read_packs
from streamd_audit.chunks.refs import pending, references
from streamd_audit.chunks.said import damaged_rows, said_rows, totals
from streamd_audit.context import Context, Judged
from streamd_audit.findings import FINDINGS_DDL, findings_batch
from streamd_audit.frames import findings_frame, shaped
from streamd_audit.listing import listing_findings
from streamd_audit.replay.whole import plans_of, replayed
from streamd_audit.runner import run
from streamd_audit.sources.packs import PacksSource
from streamd_audit.sources.state import StateSource
from streamd_audit.states import State, listed_states, manifest_findings, manifests_of, states_of

# Of missing packs that are looked for once more.
_LOOKED_FOR = 10_000


def chunks_job(context: Context) -> Judged:
    """Every reference of every state there is, and of the log after the newest one."""
    # Listed before anything else is: what is put meanwhile is no orphan.
    listed = context.source(PacksSource, "object string, size long").persist(StorageLevel.DISK_ONLY)
    listed.count()
    states = states_of(context)
    newest = {state.group: state for state in states}
    rows = said_rows(context, newest)
    refs = references(rows, _judged_before(context))
    later = pending(context, newest)
    refs = (refs if later is None else refs.unionByName(later)).persist(StorageLevel.DISK_ONLY)
    wanted = refs.where("not coalesce(is_judged, false)")
    count, size = _counted(wanted)
    context.progress(f"reading {count:,} packs ({size_of(size)})")
    passed = read_packs(context, wanted, count, size).persist(StorageLevel.DISK_ONLY)
    told = {row["what"]: row["count"] for row in passed.groupBy("what").count().collect()}
    frames = [
        _of_listing(context),
        damaged_rows(context, rows),
        totals(context, rows, newest),
        _against_log(context, passed, refs, rows),
        _orphans(context, listed, rows, refs),
    ]
    if context.since is not None:
        frames.append(_gone(context, listed, refs))
    if len(told) > (SLICE in told):
        frames.append(_still_missing(context, findings_in(passed), states))

    def facts() -> Mapping[str, Any]:
        slices = told.get(SLICE, 0)
        last = max((state.index for state in states), default=None)
        of = "" if last is None else f", the newest as of entry {last:,}"
        return {
            "states": f"{len(states)}{of}",
            "packs": f"{count:,} ({size_of(size)}), {slices:,} slices",
            "pack_count": count,
            "pack_bytes": size,
            "slice_count": slices,
        }

    return Judged(reduce(DataFrame.unionByName, frames), facts)


def main(arguments: Sequence[str] | None = None) -> int:
    return run({"audit_chunks": chunks_job}, "Audit packs and their slices.", arguments)


def size_of(size: int) -> str:
    """Bytes for people."""
    value, unit = float(size), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{size:,} bytes" if unit == "bytes" else f"{value:,.1f} {unit}"


def _of_listing(context: Context) -> DataFrame:
    """What the names of objects tell, and manifests by themselves."""
    # A damaged manifest still is one: its pieces are no orphans.
    places = [
        (row["group"], row["index"], int(row["snapshot_id"], 16)) for row in manifests_of(context)
    ]
    found = listing_findings(context.listing, context.cluster, places)
    found += manifest_findings(context)
    rows = [astuple(one) for one in found]
    return context.spark.createDataFrame(rows, FINDINGS_DDL)


def _counted(refs: DataFrame) -> tuple[int, int]:
    """How many packs there are in references, and their size."""
    told = refs.where("what = 0").agg(F.count("*"), F.sum("size")).first()
    return (0, 0) if told is None else (told[0], told[1] or 0)


def _still_missing(context: Context, found: DataFrame, states: Sequence[State]) -> DataFrame:
    """What was found in packs, without those that were missing because the state that refers to
    them has been removed meanwhile, as a cluster does with age."""
    missing = found.where("kind = 'pack_missing'").select("index").distinct().limit(_LOOKED_FOR)
    indexes = [row["index"] for row in missing.collect()]
    if not indexes:
        return found
    there = listed_states(context)
    gone = [state.index for state in states if state.object not in there]
    is_new = there - {state.object for state in states}
    kept = ~F.col("index").isin(gone) if gone else F.lit(True)
    if is_new:
        # What only the log refers to may have been merged into other packs, as that state knows.
        kept = kept & F.col("index").isNotNull()
    return found.where((F.col("kind") != "pack_missing") | F.coalesce(kept, F.lit(not is_new)))


def _judged_before(context: Context) -> dict[int, int]:
    """The states that an incremental audit takes as they are, by their groups."""
    if context.since is None or replayed(context) is None:
        return {}
    plans = plans_of(context).items()
    return {group: plan.before for group, plan in plans if plan.before is not None}


def _gone(context: Context, listed: DataFrame, refs: DataFrame) -> DataFrame:
    """Packs that were judged before, and are not there any more."""
    packs = refs.where("what = 0 and is_judged").where(
        F.col("object").startswith(f"{context.cluster}/")
    )
    gone = packs.join(listed, ["object", "size"], "left_anti").select(
        "group",
        "object",
        F.col("state").alias("index"),
        F.format_string("%d bytes", "size").alias("expected"),
        F.lit("no such object of that size").alias("found"),
    )
    return findings_frame(gone, "pack_missing", context.cluster)


def _against_log(
    context: Context, passed: DataFrame, refs: DataFrame, rows: DataFrame
) -> DataFrame:
    """Slices and a state's own records against one another, and against the appends in the log."""
    cluster = context.cluster
    mine = rows.where("is_newest")
    streams = mine.where("said = 'stream'").select(
        F.lit(STREAM).alias("what"),
        "group",
        "stream_id",
        F.lit(-1).alias("start_record"),
        F.col("start_record").alias("start_byte"),
        "end_record",
        "name",
    )
    appends = _appends(context)
    before = _before_log(context)
    if before is None:
        streams = streams.withColumn("end_byte", F.lit(0))
    else:
        streams = streams.join(before, ["group", "stream_id"], "left").na.fill({"end_byte": 0})
    hot = mine.where("said = 'hot'").withColumn("what", F.lit(HOT))
    slices = passed.where(f"what = {SLICE}")
    unread = refs.where("what = 1 and is_judged").withColumn("what", F.lit(SLICE))
    unread = unread.drop("digest")
    frames = [shaped(frame, ROWS_DDL) for frame in (streams, hot, slices, unread)]
    if appends is not None:
        frames.append(shaped(appends, ROWS_DDL))
    has_log = appends is not None

    def judge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield findings_batch(judge_streams(_rows(batches), cluster, has_log=has_log))

    tasks = int(context.spark.conf.get("spark.sql.shuffle.partitions") or 4)
    ordered = (
        reduce(DataFrame.unionByName, frames)
        .repartition(tasks, "group", "stream_id")
        .sortWithinPartitions("group", "stream_id", "start_record", "what")
    )
    return map_in_arrow(ordered, judge, FINDINGS_DDL)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in COLUMNS]
        yield from map(Row._make, zip(*columns, strict=True))


def _appends(context: Context) -> DataFrame | None:
    """What the log appended, and where; None where there is no log."""
    found = replayed(context)
    if found is None:
        return None
    return found.appends.where("stream_id is not null").select(
        F.lit(APPEND).alias("what"),
        "group",
        "stream_id",
        "start_record",
        "start_byte",
        (F.col("start_record") + F.col("records")).alias("end_record"),
        (F.col("start_byte") + F.col("bytes")).alias("end_byte"),
        F.col("detail").alias("appends"),
        "digests",
    )


def _before_log(context: Context) -> DataFrame | None:
    """How many records streams had in the states that the replay began with, as `end_byte`."""
    frames = []
    for group, plan in plans_of(context).items():
        if plan.before is not None:
            columns = "`group` int, kind string, stream_id bigint, records bigint, problem string"
            rows = context.source(StateSource, columns, index=str(plan.before))
            rows = rows.where((F.col("kind") == "stream") & (F.col("group") == group))
            frames.append(rows.select("group", "stream_id", F.col("records").alias("end_byte")))
    return reduce(DataFrame.unionByName, frames) if frames else None


def _orphans(context: Context, listed: DataFrame, rows: DataFrame, refs: DataFrame) -> DataFrame:
    """Packs that nothing refers to. One of the archive's last term may be under way."""
    known = (
        rows.where("said = 'pack'")
        .select(F.col("name").alias("object"))
        .unionByName(refs.where("what = 0").select("object"))
        .distinct()
    )
    orphans = listed.join(known, "object", "left_anti").withColumn(
        "found", F.format_string("%d bytes", "size")
    )
    return findings_frame(orphans, "pack_orphan", context.cluster)
