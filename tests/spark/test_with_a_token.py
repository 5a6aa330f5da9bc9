"""Streams of a server that requires tokens, as frames: read and written with the option `token`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streamd.spark import register
from tests.http.authorized import Authorized, authorized

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authorized]:
    directory: Path = tmp_path_factory.mktemp("authorized")
    with authorized("HTTP/1.1", directory) as found:
        yield found


def test_rows_are_written_and_read_with_a_token(spark: SparkSession, server: Authorized) -> None:
    register(spark)
    [url] = server.urls
    writer = server.token(
        *(
            f"{verb}:{bucket}/*"
            for verb in ("read", "append", "create")
            for bucket in ("rows", "spark-sink")
        )
    )
    rows = spark.createDataFrame(
        [("rows/a", f"{number}") for number in range(20)], "stream string, record string"
    )
    sink = rows.write.format("streamd").mode("append")
    sink.options(url=url, token=writer, create="true", content_type="text/plain").save()
    reader = server.token("read:rows/*", "list:rows/")
    frame = spark.read.format("streamd").schema("record string")
    found = frame.options(url=url, token=reader, bucket="rows").load().collect()
    assert sorted(int(row["record"]) for row in found) == list(range(20))


def test_a_missing_token_is_reported(spark: SparkSession, server: Authorized) -> None:
    register(spark)
    frame = spark.read.format("streamd").schema("record string")
    with pytest.raises(Exception, match="401 Unauthorized"):
        frame.options(url=server.urls[0], stream="rows/a").load().collect()


def test_a_token_does_not_go_with_a_store(spark: SparkSession) -> None:
    register(spark)
    frame = spark.read.format("streamd").schema("record string")
    with pytest.raises(Exception, match="option token cannot be combined with option store"):
        frame.options(store="/nowhere", token="sd_x", stream="a").load().collect()


def test_a_missing_scope_is_reported_and_not_a_later_batch(
    spark: SparkSession, server: Authorized
) -> None:
    register(spark)
    token = server.token(
        *(f"{verb}:spark-sink/*" for verb in ("read", "append", "create")), "read:*"
    )
    rows = spark.createDataFrame([("1",)], "record string")
    sink = rows.write.format("streamd").mode("append").options(url=server.urls[0], token=token)
    with pytest.raises(Exception, match="INSUFFICIENT_SCOPE"):
        sink.options(stream="rows/a").save()
