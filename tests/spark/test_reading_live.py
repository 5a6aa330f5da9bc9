"""``spark.readStream.format("streamd")`` from real servers, micro-batch by micro-batch.

Spark takes seconds for each query, so only what is between it and the reader is tested with it;
for the rest the test asks the reader as Spark does.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition

from streamd.spark import register
from streamd.spark.errors import StreamMissing, Trimmed
from streamd.spark.live import StreamReader
from tests.spark.streams import Writer
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

SCHEMA = "stream string, record struct<n: int>"


class Query:
    """A query over streams that is run repeatedly from its checkpoint to the end of the streams,
    and records the rows of each micro-batch."""

    def __init__(self, spark: SparkSession, checkpoint: Path, options: dict[str, Any]) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self.options = options
        self.batches: list[list[tuple[str, int]]] = []

    def run(self, fail_at: int | None = None) -> None:
        """Raises `StreamingQueryException`. With `fail_at`, micro-batch number so many fails."""

        def keep(batch: DataFrame, number: int) -> None:
            if number == fail_at:
                raise RuntimeError("planned")
            self.batches.append([(row.stream, row.record.n) for row in batch.collect()])

        frame = self._spark.readStream.format("streamd").schema(SCHEMA).options(**self.options)
        query = (
            frame.load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def seen(self) -> list[tuple[str, int]]:
        """What was read since the last call."""
        found = sorted(row for batch in self.batches for row in batch)
        self.batches.clear()
        return found


class Asked(Query):
    """The same without Spark: the reader is asked in the order that Structured Streaming has."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.batches = []
        # As in a checkpoint: where each micro-batch ends, the last one perhaps not committed.
        self._log: list[str] = []
        self._committed = 0

    def run(self, fail_at: int | None = None) -> None:
        reader = self._reader()
        reader.prepareForTriggerAvailableNow()
        if not self._log:
            self._log.append(json.dumps(reader.initialOffset()))
        while True:
            if len(self._log) == self._committed + 1:
                start = json.loads(self._log[-1])
                end = json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit()))
                if end == self._log[-1]:
                    return
                self._log.append(end)
            start, end = map(json.loads, self._log[-2:])
            rows = [row for part in reader.partitions(start, end) for row in self._read(part)]
            if self._committed == fail_at:
                raise RuntimeError("planned")
            if rows:
                self.batches.append(rows)
            reader.commit(end)
            self._committed += 1

    def _reader(self) -> StreamReader:
        schema = T.StructType().add("stream", "string")
        schema.add("record", T.StructType().add("n", "integer"))
        return StreamReader(CaseInsensitiveDict(self.options), schema)

    def _read(self, part: InputPartition) -> list[tuple[str, int]]:
        """As a task does, from what was sent to it."""
        reader = pickle.loads(pickle.dumps(self._reader()))
        batches = [batch.to_pylist() for batch in reader.read(pickle.loads(pickle.dumps(part)))]
        return [(row["stream"], row["record"]["n"]) for batch in batches for row in batch]


@pytest.fixture
def asked(server: ServerProcess) -> Callable[..., Query]:
    def asked(**options: Any) -> Query:
        return Asked({"url": server.url, **{name: str(it) for name, it in options.items()}})

    return asked


@pytest.fixture
def query(spark: SparkSession, server: ServerProcess, tmp_path: Path) -> Callable[..., Query]:
    register(spark)

    def query(**options: Any) -> Query:
        return Query(spark, tmp_path / "checkpoint", {"url": server.url, **options})

    return query


def numbered(*numbers: int) -> list[dict[str, int]]:
    return [{"n": number} for number in numbers]


def test_streams_of_a_prefix_are_followed_and_new_ones_picked_up(
    query: Callable[..., Query], writer: Writer
) -> None:
    writer.filled("live/run-a", numbered(1, 2))
    writer.filled("live/other", numbered(9))
    following = query(bucket="live", prefix="run-")
    following.run()
    assert following.seen() == [("live/run-a", 1), ("live/run-a", 2)]
    writer.append("live/run-a", *numbered(3))
    writer.filled("live/run-b", numbered(10, 11))
    following.run()
    assert following.seen() == [("live/run-a", 3), ("live/run-b", 10), ("live/run-b", 11)]
    following.run()
    assert following.seen() == []


def test_a_failed_batch_is_read_again_unchanged(
    query: Callable[..., Query], writer: Writer
) -> None:
    writer.filled("again/s", numbered(*range(10)))
    following = query(stream="again/s", max_records_per_batch=4)
    with pytest.raises(StreamingQueryException, match="planned"):
        following.run(fail_at=1)
    writer.append("again/s", *numbered(10))
    following.run()
    numbers = [[n for _, n in batch] for batch in following.batches]
    assert numbers == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_limits_bound_each_micro_batch_and_streams_share_it(
    asked: Callable[..., Query], writer: Writer
) -> None:
    writer.filled("limits/busy", numbered(*range(100)))
    writer.filled("limits/quiet", numbered(1, 2))
    following = asked(bucket="limits", max_records_per_batch=30)
    following.run()
    sizes = [len(batch) for batch in following.batches]
    assert sizes == [30, 30, 30, 12]
    assert ("limits/quiet", 2) in following.batches[0]
    assert len(set(following.seen())) == 102


def test_a_limit_of_bytes_takes_the_records_that_fit(
    asked: Callable[..., Query], writer: Writer
) -> None:
    writer.create("bytes/s")
    for size in (10, 10, 10, 500, 10, 10):
        writer.append("bytes/s", {"n": size, "pad": "x" * size})
    length = len(json.dumps({"n": 10, "pad": "x" * 10})) + 1
    following = asked(stream="bytes/s", max_bytes_per_batch=2 * length)
    following.run()
    assert [[n for _, n in batch] for batch in following.batches] == [
        [10, 10],
        [10],
        [500],
        [10, 10],
    ]


def test_a_query_may_begin_now_or_at_an_offset(asked: Callable[..., Query], writer: Writer) -> None:
    offsets = writer.filled("begin/s", numbered(*range(6)), 3)
    following = asked(stream="begin/s", starting_offset=offsets[0])
    following.run()
    assert [n for _, n in following.seen()] == [3, 4, 5]


def test_a_query_that_begins_now_reads_new_records(
    asked: Callable[..., Query], writer: Writer
) -> None:
    writer.filled("nows/s", numbered(1))
    following = asked(bucket="nows", starting_offset="now")
    following.run()
    assert following.seen() == []
    writer.append("nows/s", *numbered(2))
    writer.filled("nows/later", numbered(3))
    following.run()
    assert following.seen() == [("nows/later", 3), ("nows/s", 2)]


def test_trimmed_offsets_end_the_query_or_by_option_continue_from_the_snapshot(
    asked: Callable[..., Query], writer: Writer
) -> None:
    offsets = writer.filled("trimmed/s", numbered(*range(100)), 10)
    following = asked(stream="trimmed/s", max_records_per_batch=10)
    with pytest.raises(RuntimeError, match="planned"):
        following.run(fail_at=1)
    writer.publish("trimmed/s", offsets[6], b"{}")
    with pytest.raises(Trimmed, match=rf"trimmed/s begins at {offsets[6]}"):
        following.run()
    following.options["on_trimmed"] = "snapshot"
    following.run()
    assert [n for _, n in following.seen()] == [*range(10), *range(70, 100)]


def test_a_recreated_stream_is_read_from_its_start(
    asked: Callable[..., Query], writer: Writer
) -> None:
    writer.filled("again/s", numbered(1, 2, 3))
    writer.filled("again/other", numbered(4))
    following = asked(bucket="again")
    following.run()
    following.seen()
    writer.delete("again/other")
    writer.delete("again/s")
    writer.filled("again/s", numbered(5, 6, 7, 8))
    following.run()
    assert [n for _, n in following.seen()] == [5, 6, 7, 8]


def test_a_batch_of_a_deleted_stream_ends_the_query_or_is_skipped(
    asked: Callable[..., Query], writer: Writer
) -> None:
    writer.filled("deleted/a", numbered(1))
    writer.filled("deleted/b", numbered(2))
    following = asked(bucket="deleted")
    with pytest.raises(RuntimeError, match="planned"):
        following.run(fail_at=0)
    writer.delete("deleted/a")
    with pytest.raises(StreamMissing, match="there is no stream deleted/a"):
        following.run()
    following.options["on_deleted"] = "skip"
    following.run()
    assert following.seen() == [("deleted/b", 2)]
