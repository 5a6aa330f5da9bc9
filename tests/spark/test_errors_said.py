"""An error of a format reaches the user as one line: what is wrong, where, and the cure."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from streamd.spark import register
from streamd_audit import sources
from tests.spark.streams import Writer
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

NOBODY = "http://127.0.0.1:1"


def said(act: Callable[[], object]) -> str:
    """What a driver prints about the exception of `act` without its own frames."""
    with pytest.raises(PySparkException) as caught:
        act()
    # Frames of workers are those that pyspark takes from the message.
    frames = "".join(traceback.format_tb(caught.value.__traceback__))
    assert "streamd/spark/" not in frames
    assert caught.value.__cause__ is None
    said = str(caught.value)
    assert "Traceback" not in said
    return said


@pytest.fixture
def formats(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"straem": "a"}, "BadOption: format('streamd') has no option straem"),
        ({"stream": "none/a"}, "StreamMissing: there is no stream none/a at "),
        ({"bucket": "nobucket"}, "there is no bucket nobucket at "),
        ({"stream": "a", "url": NOBODY, "retry_for_s": "0"}, f"{NOBODY} cannot be reached: "),
        ({"stream": "a", "cacert": "/no/such.pem"}, "option cacert is '/no/such.pem', "),
    ],
)
def test_an_error_of_a_load_is_the_first_line(
    formats: SparkSession, server: ServerProcess, options: dict[str, str], fault: str
) -> None:
    frame = formats.read.format("streamd").options(**{"url": server.url, **options})
    told = said(frame.load)
    assert fault in told.splitlines()[0], told
    assert told.count(fault) == 1


def test_an_error_of_the_planning_is_the_first_line(
    formats: SparkSession, server: ServerProcess
) -> None:
    frame = formats.read.format("streamd").options(url=server.url, stream="none/a")
    first = said(frame.schema("record string").load().collect).splitlines()[0]
    assert "StreamMissing: there is no stream none/a at " in first


def test_an_error_of_a_task_names_record_and_field(
    formats: SparkSession, server: ServerProcess, writer: Writer
) -> None:
    writer.filled("told/s", [{"n": "one"}])
    frame = formats.read.format("streamd").schema("record struct<n: int>")
    frame = frame.options(url=server.url, stream="told/s", mode="failfast")
    lines = said(frame.load().collect).splitlines()
    # Spark's own first line names no error.
    assert "record.n is a string, and int in the schema" in "".join(lines[:2])


def test_an_error_of_a_stream_is_the_first_line(
    formats: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    frame = formats.readStream.format("streamd").schema("record string")
    rows = frame.options(url=server.url, stream="none/live").load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    first = said(query.awaitTermination).splitlines()[0]
    assert "StreamMissing: there is no stream none/live at " in first


def test_an_error_of_a_write_names_the_stream(formats: SparkSession, server: ServerProcess) -> None:
    rows = formats.createDataFrame([("1",)], "record string").write.format("streamd")
    write = rows.mode("append").options(url=server.url, stream="none/written").save
    lines = said(write).splitlines()
    assert "NotWritten: stream none/written: 404 STREAM_NOT_FOUND: " in "".join(lines[:2])
    assert "create=true" in lines[1]
    write = rows.mode("append").options(url=server.url, straem="none/written").save
    assert "has no option straem" in said(write).splitlines()[0]


def test_an_error_of_a_table_of_state_is_the_first_line(
    formats: SparkSession, server: ServerProcess
) -> None:
    frame = formats.read.format("streamd_materialized").options(url=server.url, stream="none/t")
    assert "there is no stream none/t at " in said(frame.load).splitlines()[0]


def test_an_error_of_the_audits_sources_is_the_first_line(formats: SparkSession) -> None:
    sources.register(formats)
    load = formats.read.format("streamd_log").option("straem", "a").load
    assert "BadOption: streamd_log has no option 'straem'" in said(load().collect).splitlines()[0]
    load = formats.read.format("streamd_log").option("store", "/no/such").load
    assert "/no/such" in said(load().collect).splitlines()[0]


def test_tracebacks_of_other_errors_stay(formats: SparkSession, server: ServerProcess) -> None:
    """Only a worker that ends by an error of ours hides its traceback: a bug keeps its own."""
    frame = formats.read.format("streamd").options(url=server.url, stream="none/a")
    assert "Traceback" not in said(frame.load)
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
    with pytest.raises(PySparkException, match="Traceback"):
        formats.range(1).select(udf(lambda n: 1 // n, "long", useArrow=False)("id")).collect()
