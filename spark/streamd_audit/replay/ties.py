"""What ties streams together that can influence one another, and are replayed in one scope.

Ties are edges between nodes (`one`, `other`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from streamd_audit.arrow import map_in_arrow
from streamd_audit.replay import batches, quotas, scan
from streamd_audit.replay.quotas import History


def node_of(bucket: str, stream: str) -> Column:
    """The node of a stream before it is known which others it is joined with."""
    return f.xxhash64("group", bucket, stream)


def of_subscriptions() -> Column:
    """The node of the subscriptions of a group."""
    bucket, stream = map(f.lit, scan.OF_SUBSCRIPTIONS)
    return f.xxhash64("group", bucket, stream)


def edges_of(forks: DataFrame) -> DataFrame:
    """Forks and their sources."""
    one, other = node_of("bucket", "stream"), node_of("other_bucket", "other_stream")
    return forks.select(one.alias("one"), other.alias("other"))


def of_limited_buckets(
    scanned: DataFrame, states: DataFrame | None, histories: Mapping[int, History]
) -> list[DataFrame]:
    """What ties the streams of a bucket together whose quotas they share."""
    is_limited = f.lit(False)
    for group, history in histories.items():
        names = [name.decode() for name in history.limited]
        of_group = f.col("group") == group
        if quotas.ALL_OTHERS not in names:
            of_group = of_group & f.col("bucket").isin(names)
        if names:
            is_limited = is_limited | of_group
    if not any(history.limited for history in histories.values()):
        return []
    return [
        frame.where(is_limited).select(
            node_of("bucket", "stream").alias("one"),
            # No stream has an empty name.
            f.xxhash64("group", "bucket", f.lit("")).alias("other"),
        )
        for frame in _streams(scanned, states)
    ]


def of_patterns(
    scanned: DataFrame, patterns: DataFrame | None, states: DataFrame | None
) -> list[DataFrame]:
    """What ties the streams that patterns of subscriptions match to the subscriptions; `patterns`
    are rows of the log."""
    ddl = "`group` int, pattern string"
    frames = []
    if patterns is not None:
        frames.append(patterns.select("group", f.col("body").cast("string").alias("pattern")))
    if states is not None:
        known = states.where(f.col("kind") == "subscription").select("group", "body")
        frames.append(map_in_arrow(known, batches.patterns_of, ddl))
    if not frames:
        return []
    found: defaultdict[int, set[str]] = defaultdict(set)
    for row in reduce(DataFrame.unionByName, frames).distinct().collect():
        found[row["group"]].add(row["pattern"])
    if not found:
        return []
    names = "group", "bucket", "stream"
    streams = reduce(
        DataFrame.unionByName, (frame.select(*names) for frame in _streams(scanned, states))
    )
    ddl = "`group` int, bucket string, stream string"
    matched = map_in_arrow(streams.distinct(), batches.matching(found), ddl)
    one, other = node_of("bucket", "stream"), of_subscriptions()
    return [matched.select(one.alias("one"), other.alias("other"))]


def _streams(scanned: DataFrame, states: DataFrame | None) -> list[DataFrame]:
    """Frames with the streams of the log and of states."""
    frames = [scanned.where(f.col("what") == scan.BUNDLE)]
    if states is not None:
        frames.append(states.where(f.col("kind") == "stream"))
    return frames
