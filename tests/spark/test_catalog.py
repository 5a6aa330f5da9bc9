"""Tables and views in Spark's catalog: `USING streamd OPTIONS (…)`, with inferred columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from streamd.spark import register
from tests.spark.streams import Writer
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[2] / "docs" / "spark-streams.md"
STEPS = [{"agent": "planner", "cost": 0.5}, {"agent": "coder", "cost": 2.0}]
RECORD = "struct<agent:string,cost:double>"
COLUMNS = [("stream", "string"), ("offset", "string"), ("record", RECORD)]


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """A session whose tables are in a database of the test's own."""
    register(spark)
    spark.sql(f"CREATE DATABASE frames LOCATION '{tmp_path}/frames'")
    spark.sql("USE frames")
    yield spark
    spark.sql("USE default")
    spark.sql("DROP DATABASE frames CASCADE")


def test_a_table_without_columns_has_those_of_the_streams(
    catalog: SparkSession, server: ServerProcess, writer: Writer
) -> None:
    writer.filled("tables/run-a", STEPS)
    writer.filled("tables/other", STEPS)
    catalog.sql(
        "CREATE TABLE runs USING streamd "
        f"OPTIONS (URL '{server.url}', Bucket 'tables', prefix 'run-') TBLPROPERTIES (of 'me')"
    )
    assert catalog.table("runs").dtypes == COLUMNS
    costs = "SELECT record.agent, sum(record.cost) FROM runs GROUP BY 1 ORDER BY 1"
    assert [tuple(row) for row in catalog.sql(costs).collect()] == [
        ("coder", 2.0),
        ("planner", 0.5),
    ]
    writer.append("tables/run-a", {"agent": "coder", "cost": 1.0})
    assert [tuple(row) for row in catalog.sql(costs).collect()] == [
        ("coder", 3.0),
        ("planner", 0.5),
    ]


def test_the_statements_of_the_documentation_run(
    catalog: SparkSession, server: ServerProcess, writer: Writer
) -> None:
    writer.filled("agents/run-a", STEPS)
    (block,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    statements = block.replace("http://node1:4437", server.url).split(";")
    found = [catalog.sql(one).collect() for one in statements if one.strip()]
    assert sorted(map(tuple, found[-1])) == [("coder", 2.0), ("planner", 0.5)]
    assert catalog.table("runs").dtypes == COLUMNS
    catalog.catalog.dropTempView("runs")


def test_a_query_adds_options_to_those_of_a_table(
    catalog: SparkSession, server: ServerProcess, writer: Writer
) -> None:
    [end] = writer.filled("more/s", STEPS)
    writer.append("more/s", {"agent": "tester", "cost": 3.0})
    catalog.sql(f"CREATE TABLE more USING streamd OPTIONS (url '{server.url}', stream 'more/s')")
    asked = catalog.sql(f"FROM more WITH (ending_offset = '{end}')")
    assert [row.record.agent for row in asked.collect()] == ["planner", "coder"]
    rest = catalog.read.option("starting_offset", end).table("more")
    assert [row.record.agent for row in rest.collect()] == ["tester"]


def test_a_table_is_followed_as_a_stream(
    catalog: SparkSession, server: ServerProcess, writer: Writer, tmp_path: Path
) -> None:
    writer.filled("live/s", STEPS)
    catalog.catalog.createTable("live", source="streamd", url=server.url, stream="live/s")
    followed = catalog.readStream.table("live")
    assert followed.dtypes == COLUMNS
    found: list[str] = []
    query = (
        followed.writeStream.foreachBatch(
            lambda frame, _: found.extend(row.record.agent for row in frame.collect())
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert found == ["planner", "coder"]


def test_a_stream_that_is_read_without_a_schema_has_the_inferred_one(
    catalog: SparkSession, server: ServerProcess, writer: Writer
) -> None:
    writer.filled("schemas/s", STEPS)
    given = {"url": server.url, "stream": "schemas/s"}
    assert catalog.read.format("streamd").options(**given).load().dtypes == COLUMNS
    assert catalog.readStream.format("streamd").options(**given).load().dtypes == COLUMNS


def test_a_table_of_state_has_inferred_columns(
    catalog: SparkSession, server: ServerProcess, writer: Writer
) -> None:
    user = {"type": "user", "key": "1", "value": {"name": "Ada"}}
    writer.filled("tables-of/state", [{**user, "headers": {"operation": "insert"}}])
    options = f"OPTIONS (url '{server.url}', stream 'tables-of/state', type 'user')"
    catalog.sql(f"CREATE TABLE users USING streamd_materialized {options}")
    catalog.sql(f"CREATE TEMPORARY VIEW same USING streamd_materialized {options}")
    for name in ("users", "same"):
        found = catalog.table(name).select("key", "value.name").collect()
        assert [tuple(row) for row in found] == [("1", "Ada")]
    catalog.sql("DROP VIEW same")


def test_a_temporary_view_may_have_a_token_and_a_table_may_not(
    catalog: SparkSession, server: ServerProcess, writer: Writer
) -> None:
    writer.filled("secrets/s", STEPS)
    options = f"OPTIONS (url '{server.url}', stream 'secrets/s', token 'sd_hunter2')"
    catalog.sql(f"CREATE TEMPORARY VIEW view USING streamd {options}")
    assert catalog.table("view").count() == 2
    assert "hunter2" not in catalog.table("view").schema.json()
    catalog.sql("DROP VIEW view")
    with pytest.raises(AnalysisException, match="keeps its options where all") as caught:
        catalog.sql(f"CREATE TABLE secret USING streamd {options}")
    assert "hunter2" not in str(caught.value)


def test_a_table_with_columns_says_that_spark_forgot_its_options(
    catalog: SparkSession, server: ServerProcess
) -> None:
    catalog.sql(
        "CREATE TABLE given (record string) USING streamd "
        f"OPTIONS (url '{server.url}', stream 'tables/run-a')"
    )
    with pytest.raises(AnalysisException, match="create the table without columns"):
        catalog.sql("SELECT * FROM given").collect()


def test_an_unknown_option_of_a_table_is_named(
    catalog: SparkSession, server: ServerProcess
) -> None:
    with pytest.raises(AnalysisException, match="has no option straem; its options are"):
        catalog.sql(f"CREATE TABLE t USING streamd OPTIONS (url '{server.url}', straem 'a')")
