"""``audit_chunks``: whether every slice that a state refers to exists, is whole, and holds what the
log appended.

The tasks that read packs pass on digests of records to compare with the log, never their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streamd_audit.arrow import map_in_arrow
from streamd_audit.chunks.claims import claimed_rows, damaged_rows, totals
from streamd_audit.chunks.coverage import (
    APPEND,
    COLUMNS,
    HOT,
    REMOVED,
    ROWS_DDL,
    SLICE,
    STREAM,
    Row,
    judge_streams,
)
from streamd_audit.chunks.reading import FINDING, PACK, ends_in_pack, findings_in, read_packs
from streamd_audit.chunks.refs import references
from streamd_audit.context import Context, Judged
from streamd_audit.errors import Damaged, ObjectMissing
from streamd_audit.findings import FINDINGS_DDL, Finding, findings_batch
from streamd_audit.frames import batches_of, findings_frame, rows_in, shaped
from streamd_audit.listing import listing_findings
from streamd_audit.log_ends import last_entries
from streamd_audit.replay.stored import state_indexes
from streamd_audit.replay.whole import numbers_before, plans_of, replayed
from streamd_audit.runner import run
from streamd_audit.segments import HEAD_BYTES, read_entries, read_head
from streamd_audit.sources.packs import PacksSource
from streamd_audit.states import State, listed_states, manifest_findings, manifests_of, states_of
from streamd_audit.store import open_store

_ENDS_DDL = "`group` int, object string, stream_id long, end_record long"
# How many missing packs are looked for once more.
_LOOKED_FOR = 10_000
# Within which time of the log a leader has made the first state of it.
_FIRST_STATE_MS = 60_000


def chunks_job(context: Context) -> Judged:
    """Every reference in every state, and in the log after the newest one."""
    # Listed before anything else: objects put meanwhile are not orphans.
    listed = context.source(PacksSource, "object string, size long")
    states = states_of(context)
    rows = claimed_rows(context)
    packs, size = (each["packs"] for each in (context.listing.objects, context.listing.sizes))
    context.progress(f"reading {packs:,} packs ({size_of(size)})")
    refs = references(context, rows)
    passed = context.keep(read_packs(context, refs, _judged_before(context)))
    told = _counted(passed, rows)
    orphans = _orphans(context, listed, rows, passed)
    frames = [
        totals(context, rows),
        _against_log(context, passed, rows),
        findings_frame(orphans, "pack_orphan", context.cluster),
    ]
    beyond = _beyond_log(context, orphans)
    if beyond is not None:
        frames.append(beyond)
    if told.has_damage:
        frames.append(damaged_rows(context, rows))
    if context.since is not None:
        frames.append(_gone(context, listed, passed))
    if told.has_findings:
        frames.append(_still_missing(context, findings_in(passed, rows), states))

    def facts() -> Mapping[str, Any]:
        last = max((state.index for state in states), default=None)
        of = "" if last is None else f", the newest as of entry {last:,}"
        return {
            "states": f"{len(states)}{of}",
            "packs": f"{told.packs:,} ({size_of(told.size)}), {told.slices:,} slices",
            "pack_count": told.packs,
            "pack_bytes": told.size,
            "slice_count": told.slices,
        }

    return Judged(_of_listing(context), frames, facts)


def main(arguments: Sequence[str] | None = None) -> int:
    return run({"audit_chunks": chunks_job}, "Audit packs and their slices.", arguments)


def size_of(size: int) -> str:
    """A size in bytes, for people."""
    value, unit = float(size), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{size:,} bytes" if unit == "bytes" else f"{value:,.1f} {unit}"


def _of_listing(context: Context) -> list[Finding]:
    """Findings from the names of objects, and from manifests by themselves."""
    # A damaged manifest still is one: its pieces are no orphans.
    places = [
        (row["group"], row["index"], int(row["snapshot_id"], 16)) for row in manifests_of(context)
    ]
    found = listing_findings(
        context.listing, context.cluster, places, lambda group: _is_young(context, group)
    )
    return found + manifest_findings(context)


def _is_young(context: Context, group: int) -> bool:
    """Whether a whole log is so short that its first state may still be to come: a leader makes it
    in seconds, once the first entries are archived."""
    listing = context.listing
    if listing.first_entries.get(group) != 1:
        return False
    try:
        first = context.store.read(listing.first_segments[group])
        last = context.store.read(listing.last_segments[group], 0, HEAD_BYTES)
        # The first entries have no time.
        times = (entry.time_ms for entry in read_entries(first) if entry.time_ms)
        return read_head(last).last.time_ms - next(times, 0) <= _FIRST_STATE_MS
    except (ObjectMissing, Damaged):
        return False


class _Counted(NamedTuple):
    """How many packs were read, their size in bytes, and how many of their slices are referred to;
    whether there are findings about them, and whether rows of states are damaged."""

    packs: int
    size: int
    slices: int
    has_findings: bool
    has_damage: bool


def _counted(passed: DataFrame, rows: DataFrame) -> _Counted:
    damage = rows.where("said = 'damaged'").select(F.lit(None).cast("int").alias("what"))
    counted = (
        passed.where("not coalesce(is_judged, false)")
        .select("what", "size", "slices")
        .unionByName(damage, allowMissingColumns=True)
        .groupBy("what")
        .agg(F.count("*").alias("count"), F.sum("size").alias("size"), F.sum("slices").alias("in"))
    )
    told = {row["what"]: row for row in counted.collect()}
    packs = told.get(PACK, {"count": 0, "size": 0, "in": 0})
    return _Counted(packs["count"], packs["size"], packs["in"], FINDING in told, None in told)


def _still_missing(context: Context, found: DataFrame, states: Sequence[State]) -> DataFrame:
    """The findings about packs, without those that are missing because the state that refers to
    them was removed meanwhile, as a cluster does with old states."""
    missing = found.where("kind = 'pack_missing'").select("index").distinct().limit(_LOOKED_FOR)
    indexes = [row["index"] for row in missing.collect()]
    if not indexes:
        return found
    there = listed_states(context)
    gone = [state.index for state in states if state.object not in there]
    is_new = there - {state.object for state in states}
    kept = ~F.col("index").isin(gone) if gone else F.lit(True)
    if is_new:
        # Packs that only the log refers to may have been repacked, as that state knows.
        kept = kept & F.col("index").isNotNull()
    return found.where((F.col("kind") != "pack_missing") | F.coalesce(kept, F.lit(not is_new)))


def _judged_before(context: Context) -> dict[int, int]:
    """The numbers of states that an incremental audit takes as they are, by their groups."""
    since = context.since
    if since is None or replayed(context) is None:
        return {}
    plans = plans_of(context)
    return {
        group: number
        for group, number in numbers_before(context).items()
        if (plans[group].before or 0) <= since.of(group)
    }


def _gone(context: Context, listed: DataFrame, passed: DataFrame) -> DataFrame:
    """Packs that were judged before and no longer exist."""
    packs = passed.where(f"what = {PACK} and is_judged").where(
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


def _against_log(context: Context, passed: DataFrame, rows: DataFrame) -> DataFrame:
    """Slices and a state's own records compared with one another, and with the appends in the
    log."""
    cluster = context.cluster
    streams = rows.where("said in ('stream', 'blob')").select(
        F.lit(STREAM).alias("what"),
        "group",
        "stream_id",
        F.lit(-1).alias("start_record"),
        F.col("start_record").alias("start_byte"),
        "end_record",
        "name",
        "since",
        "until",
    )
    appends = _appends(context)
    before = _before_log(context, rows)
    if before is None:
        streams = streams.withColumn("end_byte", F.lit(0))
    else:
        streams = streams.join(before, ["group", "stream_id"], "left").na.fill({"end_byte": 0})
    hot = rows.where("said = 'hot'").withColumn("what", F.lit(HOT))
    removed = rows.where("said = 'removed'").withColumn("what", F.lit(REMOVED))
    removed = removed.withColumn("start_record", F.lit(-1))
    slices = passed.where(f"what = {SLICE}")
    frames = [shaped(frame, ROWS_DDL) for frame in (streams, hot, slices, removed)]
    if appends is not None:
        frames.append(shaped(appends, ROWS_DDL))
    has_log = appends is not None
    states = state_indexes(context)

    def judge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield findings_batch(judge_streams(_rows(batches), cluster, states, has_log=has_log))

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
    """What the log appended, and where; None if there is no log."""
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


def _before_log(context: Context, rows: DataFrame) -> DataFrame | None:
    """How many records streams had in the states that the replay began with, as `end_byte`."""
    is_before = F.lit(False)
    numbers = numbers_before(context)
    for group, number in numbers.items():
        is_there = (F.col("since") <= number) & (F.col("until") >= number)
        is_before = is_before | ((F.col("group") == group) & is_there)
    if not numbers:
        return None
    streams = rows.where(F.col("said").isin("stream", "blob") & is_before)
    return streams.select("group", "stream_id", F.col("end_record").alias("end_byte"))


def _orphans(context: Context, listed: DataFrame, rows: DataFrame, passed: DataFrame) -> DataFrame:
    """Packs that nothing refers to: object, found. A pack of the archive's last term may still be
    in progress."""
    known = rows.where("said = 'pack'").select(F.col("name").alias("object"))
    known = known.unionByName(passed.where(f"what = {PACK}").select("object"))
    return (
        listed.withColumn("is_known", F.lit(False))
        .unionByName(known.withColumn("is_known", F.lit(True)), allowMissingColumns=True)
        .groupBy("object")
        .agg(F.max("is_known").alias("is_known"), F.max("size").alias("size"))
        .where("not is_known")
        .select("object", F.format_string("%d bytes", "size").alias("found"))
    )


def _beyond_log(context: Context, orphans: DataFrame) -> DataFrame | None:
    """Packs of which nothing in the store knows, with records that the log has not reached; one of
    each group. None if there is no log to compare with."""
    replay = replayed(context)
    if replay is None:
        return None
    url, access = context.options.store, context.options.of_sources()

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(url, access)
        yield from batches_of(
            _ENDS_DDL,
            (row for (name,) in rows_in(batches, "object") for row in ends_in_pack(store, name)),
        )

    ends = map_in_arrow(orphans.select("object"), read, _ENDS_DDL)
    tails = replay.streams.select("group", "stream_id", "records")
    following = F.lit(0)
    for group, number in replay.next_numbers.items():
        following = F.when(F.col("group") == group, number).otherwise(following)
    is_beyond = (F.col("stream_id") >= following) | (F.col("end_record") > F.col("records"))
    beyond = ends.join(tails, ["group", "stream_id"], "left").where(is_beyond)
    found = beyond.groupBy("group").agg(
        F.min("object").alias("object"),
        F.count_distinct("object").alias("packs"),
        F.min_by("stream_id", "object").alias("stream_id"),
        F.min_by("end_record", "object").alias("end_record"),
    )
    last = last_entries(context)
    index = F.lit(None).cast("long")
    for group, entry in last.items():
        index = F.when(F.col("group") == group, entry + 1).otherwise(index)
    expected = F.lit("packs with records that the log appended")
    told = F.format_string(
        "%d packs with others, such as those of stream id %d before record %d",
        "packs", "stream_id", "end_record",
    )  # fmt: skip
    rows = found.select(
        "group", "object", index.alias("index"), expected.alias("expected"), told.alias("found")
    )
    return findings_frame(rows, "log_end_missing", context.cluster)
