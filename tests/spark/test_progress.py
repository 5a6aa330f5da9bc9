"""What a streaming query's progress says about a source: its name, and how far it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streamd.spark import register
from tests.spark.streams import Writer
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[2] / "docs" / "spark-streams.md"


@pytest.fixture
def run(spark: SparkSession, server: ServerProcess, tmp_path: Path) -> Callable[..., Any]:
    register(spark)

    def run(fail: bool = False, **options: Any) -> StreamingQuery:
        """A query over what there is."""

        def write(frame: DataFrame, _: int) -> None:
            if fail:
                raise RuntimeError("planned")
            frame.collect()

        frame = spark.readStream.format("streamd").schema("stream string, record string")
        rows = frame.options(url=server.url, **options).load()
        query = (
            rows.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        with pytest.raises(StreamingQueryException, match="planned") if fail else nullcontext():
            query.awaitTermination()
        return query

    return run


def reports(query: StreamingQuery) -> list[Any]:
    return [json.loads(one.json)["sources"][0]["latestOffset"] for one in query.recentProgress]


def test_progress_names_the_source_and_tells_its_metrics(
    run: Callable[..., StreamingQuery], server: ServerProcess, writer: Writer
) -> None:
    writer.filled("progress/run-a", [*range(10)])
    writer.filled("progress/run-b", [1, 2])
    query = run(bucket="progress", prefix="run-", max_records_per_batch=8)
    first, second = reports(query)
    assert first["source"] == f"streamd: bucket progress, prefix run-, at {server.url}"
    # Ten digits and a comma each, and twice two.
    told = {name: first[name] for name in ("streams", "records", "bytes")}
    assert told == {"streams": 2, "records": 8, "bytes": 16}
    assert (first["lag_records"], first["lag_bytes"]) == (4, 8)
    assert (second["records"], second["lag_records"], second["lag_bytes"]) == (4, 0, 0)
    assert second["tails"]["progress/run-b"]["offset"] == "0000000000000002_0000000000000004"
    assert [one.sources[0].numInputRows for one in query.recentProgress] == [8, 4]


def test_a_stream_that_was_created_again_lags_by_all_of_it(
    run: Callable[..., StreamingQuery], writer: Writer
) -> None:
    writer.filled("recreated/s", [1, 2, 3])
    run(stream="recreated/s")
    writer.delete("recreated/s")
    writer.filled("recreated/s", [4, 5])
    [report] = reports(run(stream="recreated/s"))
    assert report["source"].startswith("streamd: stream recreated/s, at http://")
    assert (report["records"], report["bytes"], report["lag_records"]) == (2, 4, 0)


def test_a_micro_batch_that_is_repeated_has_no_metrics(
    run: Callable[..., StreamingQuery], writer: Writer
) -> None:
    writer.filled("repeated/s", [1, 2])
    run(fail=True, stream="repeated/s")
    writer.append("repeated/s", 3)
    [repeated, next_one] = reports(run(stream="repeated/s"))
    assert repeated is None
    assert (next_one["records"], next_one["lag_records"]) == (1, 0)


def test_the_listener_of_the_page_tells_how_far_a_query_is(
    spark: SparkSession, run: Callable[..., StreamingQuery], writer: Writer
) -> None:
    section = PAGE.read_text().partition("### Progress\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    writer.filled("listened/s", [1, 2, 3])
    printed: Queue[str] = Queue()
    names: dict[str, Any] = {"spark": spark, "print": printed.put}
    exec(code, names)
    try:
        run(stream="listened/s")
        line = printed.get(timeout=60)
    finally:
        spark.streams.removeListener(names["listener"])
    assert re.fullmatch(r"streamd: stream listened/s, at http\S+: 3 records, lag 0", line)
