"""The sink in Spark: batch and streaming, with workers that are killed at every step."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streamd.spark import register
from tests.jepsen_like.cluster_processes import wait_until
from tests.spark.sink import queries
from tests.spark.sink.attempts import Row, Sink, Streams
from tests.spark.sink.steps import EVERY_STEP, Step
from tests.spark.sink.workers import kill_workers
from tests.support.s3_proxy import Moment, S3Proxy
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

ALL = os.environ.get("AUDIT_TESTS") == "all"
SOME_STEPS = [
    Step(Moment.BEFORE, "POST", "/append-batch", 1),
    Step(Moment.BEHIND, "POST", "/v1/stream/", 0),
    Step(Moment.BEHIND, "POST", "/v1/stream/", 3),
]


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def expect(streams: Streams, rows: Sequence[Row]) -> None:
    """Every stream has its rows, each once; two partitions may write in any order."""
    for name in {name for name, _ in rows}:
        expected = sorted(
            json.dumps(json.loads(record)) for stream, record in rows if stream == name
        )
        assert sorted(json.dumps(message) for message in streams.messages(name)) == expected


def rows_for(bucket: str, batch: int, count: int = 40) -> list[Row]:
    return [
        (f"{bucket}/s{number // 2 % 2}", b'{"batch": %d, "n": %d}' % (batch, number))
        for number in range(count)
    ]


def outcome(query: StreamingQuery) -> str:
    """How a query ended: nothing, or Spark's message about its failure."""
    try:
        query.awaitTermination()
    except PySparkException as error:
        return str(error)
    return ""


def test_a_table_is_written_to_the_streams_it_names(
    session: SparkSession, sink_server: ServerProcess, sink: Sink, streams: Streams
) -> None:
    table = session.range(1000).selectExpr(
        f"concat('{sink.sink_id}/s', id % 3) as stream", "to_json(struct(id)) as record"
    )
    write = table.repartition(4).write.format("streamd").mode("append")
    write.option("url", sink_server.url).option("create", "true").save()
    expect(streams, [(f"{sink.sink_id}/s{n % 3}", b'{"id": %d}' % n) for n in range(1000)])


def test_a_write_with_an_id_can_be_repeated(
    session: SparkSession, sink_server: ServerProcess, sink: Sink, streams: Streams
) -> None:
    table = session.range(100).selectExpr("to_json(struct(id)) as record")
    for epoch in (0, 0, 1, 1):
        write = table.write.format("streamd").mode("append").option("url", sink_server.url)
        write = write.option("stream", f"{sink.sink_id}/s").option("create", "true")
        write.option("id", sink.sink_id).option("epoch", epoch).save()
    assert streams.records(f"{sink.sink_id}/s") == 200


def test_a_batch_that_a_function_writes_twice_is_stored_once(
    session: SparkSession,
    sink_server: ServerProcess,
    sink: Sink,
    streams: Streams,
    tmp_path: Path,
) -> None:
    """The function of `foreachBatch` fails after writing, and Spark runs the batch again."""
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    batches = [rows_for(sink.sink_id, number) for number in range(2)]
    for number, rows in enumerate(batches):
        queries.put_batch(source, number, rows)
    failed: list[int] = []

    def write(rows: DataFrame, number: int) -> None:
        ordered = rows.repartition(2, "stream").sortWithinPartitions("stream", "record")
        ordered.write.format("streamd").mode("append").options(
            url=sink_server.url, create="true", id=sink.sink_id, epoch=number
        ).save()
        if number not in failed:
            failed.append(number)
            raise InterruptedError("the driver had to go")

    for _ in range(3):
        query = queries.rows_of(session, source).writeStream.foreachBatch(write)
        query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        failure = outcome(query.start())
    assert (failure, failed) == ("", [0, 1])
    expect(streams, batches[0] + batches[1])


@pytest.mark.parametrize(
    ("options", "columns", "said"),
    [
        ({}, "'a/b' as stream, '1' as record", "option url is missing"),
        ({"url": "http://h", "strem": "a/b"}, "'1' as record", "has no option strem"),
        (
            {"url": "http://h"},
            "1 as n",
            "the columns are n; to write, select 'stream' and 'record'",
        ),
        ({"url": "http://h", "stream": "a/b"}, "1 as record", "must be of type string or binary"),
        ({"url": "http://h", "epoch": "1"}, "'a/b' as stream, '1' as record", "option id with it"),
    ],
)
def test_rows_that_cannot_be_written_are_refused_before_a_task_begins(
    session: SparkSession, options: dict[str, str], columns: str, said: str
) -> None:
    table = session.sql(f"select {columns}")
    with pytest.raises(PySparkException, match=said):
        table.write.format("streamd").mode("append").options(**options).save()


def test_a_stream_is_not_overwritten(session: SparkSession) -> None:
    table = session.sql("select 'a/b' as stream, '1' as record")
    with pytest.raises(PySparkException, match="can only be appended to"):
        table.write.format("streamd").mode("overwrite").option("url", "http://h").save()


def test_a_query_whose_workers_are_killed_at_its_steps_leaves_each_row_once(
    session: SparkSession,
    sink: Sink,
    streams: Streams,
    proxy: S3Proxy,
    tmp_path: Path,
) -> None:
    """The query fails, and continues from its checkpoint."""
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    every, failures = list[Row](), 0
    for number, step in enumerate(EVERY_STEP if ALL else SOME_STEPS):
        rows = rows_for(sink.sink_id, number)
        every += rows
        queries.put_batch(source, number, rows)
        hold = proxy.hold(*step)
        query = queries.start(
            queries.rows_of(session, source), proxy.endpoint, checkpoint, parallel="1"
        )
        # A worker that outlived the query before knows its streams already, and asks for less; or
        # it is the one that is held, and this query does not fail.
        wait_until(lambda: hold.is_reached or not query.isActive, f"{step}", queries.START_S)  # noqa: B023
        if hold.is_reached:
            assert kill_workers(proxy.port) > 0
        hold.release(drop=True)
        failures += bool(outcome(query))
        proxy.heal()
    query = queries.start(queries.rows_of(session, source), proxy.endpoint, checkpoint)
    assert outcome(query) == ""
    assert failures >= number / 2
    expect(streams, every)


@pytest.mark.skipif(not ALL, reason="its parts are tested without Spark: AUDIT_TESTS=all")
def test_a_batch_ends_in_the_partitions_in_which_it_began(
    session: SparkSession, sink: Sink, streams: Streams, proxy: S3Proxy, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    rows = rows_for(sink.sink_id, 0)
    queries.put_batch(source, 0, rows)
    hold = proxy.hold(Moment.BEHIND, "POST", "/v1/stream/", 3)
    query = queries.start(queries.rows_of(session, source), proxy.endpoint, checkpoint)
    hold.wait(queries.START_S)
    kill_workers(proxy.port)
    hold.release(drop=True)
    assert outcome(query)
    appended = {name: streams.messages(name) for name, _ in rows}
    for partitions in (5, 3):
        more = queries.rows_of(session, source).repartition(partitions)
        assert "RowsChanged" in outcome(queries.start(more, proxy.endpoint, checkpoint))
        assert {name: streams.messages(name) for name, _ in rows} == appended
    query = queries.start(queries.rows_of(session, source), proxy.endpoint, checkpoint)
    assert outcome(query) == ""
    expect(streams, rows)
