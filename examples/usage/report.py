"""The usage of a cluster, from its log and the heads of its objects alone.

It counts what clients sent, as the log has it: a refused append counts where it was refused, and
what was deleted since counts where it was written. Days are those of the log's time, in UTC.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from examples.usage.page import Day, HotSpot, Objects, Page, render
from streamd_audit import sources
from streamd_audit.failures import told_in_a_line
from streamd_audit.options import NotRun, Options
from streamd_audit.session import spark_session

# How much a person reads; the rest is in the Parquet files.
_BUCKETS_SHOWN = 12
_DAYS_SHOWN = 366
_HOT_SPOTS_SHOWN = 25
# The limit for one bucket and day.
_HOT_SPOTS_KEPT = 10
_OTHERS = "(others)"

_PIECES = "pieces array<struct<digest:string,size:bigint,rows_size:bigint>>"
_LOG = (
    "`group` int, log_ms long, kind string, bucket string, stream string, records int, bytes long"
)


class Usage(NamedTuple):
    """The report's tables.

    ``streams``: bucket, day, stream, and what it got that day: appends, messages, bytes, created,
    deleted. ``days``: bucket, day, the sums of these, the number of streams written to, and
    ``total_bytes`` up to that day. ``hot_spots``: for each bucket and day the streams that got most
    bytes, with their ``share`` of all and their ``place`` from 1 on. ``objects``: kind, objects,
    ``stored_bytes`` and the ``content_bytes`` that they hold uncompressed.
    """

    streams: DataFrame
    days: DataFrame
    hot_spots: DataFrame
    objects: DataFrame


def streams_of(log: DataFrame) -> DataFrame:
    """What each stream got on each day: everything else is a sum of this."""
    is_append = F.col("kind") == "append"
    brings = F.col("kind").isin("append", "create")
    return (
        log.where(F.col("bucket").isNotNull())
        .withColumn("day", F.to_date(F.timestamp_millis("log_ms")))
        .groupBy("bucket", "day", "stream")
        .agg(
            F.count_if(is_append).alias("appends"),
            F.sum(F.when(brings, F.col("records")).otherwise(0)).alias("messages"),
            F.sum(F.when(brings, F.col("bytes")).otherwise(0)).alias("bytes"),
            F.count_if(F.col("kind") == "create").alias("created"),
            F.count_if(F.col("kind") == "delete").alias("deleted"),
        )
    )


def days_of(streams: DataFrame) -> DataFrame:
    so_far = Window.partitionBy("bucket").orderBy("day")
    return (
        streams.groupBy("bucket", "day")
        .agg(
            F.sum("appends").alias("appends"),
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.count_if(F.col("messages") > 0).alias("streams"),
            F.sum("created").alias("created"),
            F.sum("deleted").alias("deleted"),
        )
        .withColumn("total_bytes", F.sum("bytes").over(so_far))
    )


def hot_spots_of(streams: DataFrame) -> DataFrame:
    of_day = Window.partitionBy("bucket", "day")
    hottest = of_day.orderBy(F.desc("bytes"), "stream")
    return (
        streams.where(F.col("bytes") > 0)
        .withColumn("share", F.col("bytes") / F.sum("bytes").over(of_day))
        .withColumn("place", F.row_number().over(hottest))
        .where(F.col("place") <= _HOT_SPOTS_KEPT)
        .select("bucket", "day", "stream", "appends", "messages", "bytes", "share", "place")
    )


def objects_of(segments: DataFrame, packs: DataFrame, manifests: DataFrame) -> DataFrame:
    piece = manifests.select(F.explode("pieces").alias("piece")).select("piece.*")
    found = (
        _sums("log segments", segments, "size", "entries_size"),
        _sums("packs", packs, "size", "size"),
        _sums("states", piece, "size", "rows_size"),
    )
    return found[0].unionByName(found[1]).unionByName(found[2])


def _sums(kind: str, objects: DataFrame, stored: str, content: str) -> DataFrame:
    return objects.agg(
        F.count("*").alias("objects"),
        F.coalesce(F.sum(stored), F.lit(0)).alias("stored_bytes"),
        F.coalesce(F.sum(content), F.lit(0)).alias("content_bytes"),
    ).select(F.lit(kind).alias("kind"), "objects", "stored_bytes", "content_bytes")


def write_usage(spark: SparkSession, given: Options, out: Path) -> Path:
    """Write the tables as Parquet below `out`, and the page; returns the page's path.

    The log is read once: everything else follows from what each stream got on each day.
    """
    sources.register(spark)

    def read(name: str, schema: str) -> DataFrame:
        return spark.read.format(name).schema(schema).options(**given.of_sources()).load()

    def written(name: str, table: DataFrame) -> DataFrame:
        path = str(out / "usage" / name)
        table.write.mode("overwrite").parquet(path)
        return spark.read.parquet(path)

    streams = written("streams", streams_of(read("streamd_log", _LOG)))
    objects = objects_of(
        read("streamd_segments", "size bigint, entries_size bigint"),
        read("streamd_packs", "size bigint"),
        read("streamd_manifests", _PIECES),
    )
    found = Usage(
        streams,
        written("days", days_of(streams).coalesce(1)),
        written("hot_spots", hot_spots_of(streams).coalesce(1)),
        written("objects", objects.coalesce(1)),
    )
    path = out / "usage.html"
    path.write_text(render(_page(found, given.store)), encoding="utf-8")
    return path


def _page(found: Usage, title: str) -> Page:
    """The content of the page: no more rows than it has room for, however large the cluster."""
    totals = found.days.agg(
        F.sum("bytes"), F.sum("messages"), F.sum("appends"), F.sum("created"),
        F.count_distinct("bucket"), F.min("day"), F.max("day"),
    ).first()  # fmt: skip
    assert totals is not None
    by_size = found.days.groupBy("bucket").agg(F.sum("bytes").alias("bytes"))
    largest = [row[0] for row in by_size.orderBy(F.desc("bytes"), "bucket").take(_BUCKETS_SHOWN)]
    shown = F.when(F.col("bucket").isin(largest), F.col("bucket")).otherwise(_OTHERS)
    days = (
        found.days.withColumn("bucket", shown)
        .groupBy("bucket", "day")
        .agg(F.sum("bytes").alias("bytes"), F.sum("messages").alias("messages"))
    )
    all_days = days.select("day").distinct()
    newest = [row[0] for row in all_days.orderBy(F.desc("day")).take(_DAYS_SHOWN)]
    hot = found.hot_spots.orderBy(F.desc("bytes"), "bucket", "stream", "day")
    buckets = [*largest, _OTHERS] if totals[4] > len(largest) else largest
    return Page(
        title=title,
        bytes=totals[0] or 0,
        messages=totals[1] or 0,
        appends=totals[2] or 0,
        created=totals[3] or 0,
        buckets=totals[4],
        first_day=totals[5],
        last_day=totals[6],
        shown_buckets=buckets,
        days=[Day(*row) for row in days.where(F.col("day") >= min(newest)).collect()]
        if newest
        else [],
        hot_spots=[
            HotSpot(row.bucket, row.stream, row.day, row.bytes, row.messages, row.share)
            for row in hot.take(_HOT_SPOTS_SHOWN)
        ],
        objects=[Objects(*row) for row in found.objects.collect()],
    )


def main(arguments: Sequence[str]) -> None:
    """Write the report and print its page's path; exits with one line that says what failed."""
    parser = argparse.ArgumentParser(description="What is in a cluster's cold store, for whom.")
    parser.add_argument("--store", required=True, metavar="DIR|s3://BUCKET/PREFIX")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--cluster", metavar="ID", help="default: the only cluster in the store")
    given = parser.parse_args(arguments)
    try:
        with told_in_a_line():
            given.out.mkdir(parents=True, exist_ok=True)
            spark = spark_session("usage report")
            # What fails reaches us as an exception; Spark's log of it is a hundred lines.
            spark.sparkContext.setLogLevel("OFF")
            print(write_usage(spark, Options(given.store, cluster=given.cluster), given.out))
    except NotRun as error:
        raise SystemExit(f"no report: {error}") from None
