"""The worked example of docs/spark-streams.md, run as printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.sink.attempts import Sink, Streams, new_sink
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[2] / "docs" / "spark-streams.md"
PARTITIONS = "spark.sql.shuffle.partitions"


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    before = spark.conf.get(PARTITIONS)
    assert before is not None
    yield spark
    spark.conf.set(PARTITIONS, before)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of its own, for the example names its buckets."""
    with ServerProcess(tmp_path / "data", flags=["--log-level", "warning"]) as server:
        yield server


def example() -> str:
    section = PAGE.read_text().partition("## A worked example\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert isinstance(code, str)
    return code


def put_steps(sink: Sink, epoch: int, *steps: tuple[str, str, float]) -> None:
    """Append steps of an agent, at a time of the day, for so much."""
    sink.write(
        [
            (
                f"runs/{agent}-{at[:2]}",
                b'{"agent": "%b", "at": "2026-11-22T%b:00Z", "cost": %g, "note": "x"}'
                % (agent.encode(), at.encode(), cost),
            )
            for agent, at, cost in steps
        ],
        epoch=epoch,
    )


def test_runs_become_a_table_of_costs_and_alerts_once(
    session: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    streams, sink = Streams(server.port), new_sink(server.url)
    names = {"spark": session, "url": server.url, "directory": tmp_path}
    table = f"{tmp_path}/costs"

    put_steps(sink, 0, ("planner", "05:10", 0.75), ("coder", "05:20", 0.5))
    put_steps(sink, 1, ("planner", "05:50", 0.5), ("coder", "06:05", 3.5), ("coder", "06:30", 0.25))
    exec(compile(example(), str(PAGE), "exec"), dict(names))
    assert costs(session, table) == [("coder", 5, 0.5, 1), ("planner", 5, 1.25, 2)]
    expensive = {"agent": "planner", "hour": "2026-11-22T05:00:00.000Z", "cost": 1.25}
    assert streams.messages("alerts/costs") == [expensive]

    exec(compile(example(), str(PAGE), "exec"), dict(names))
    assert streams.messages("alerts/costs") == [expensive], "nothing new, nothing said again"

    put_steps(sink, 2, ("planner", "06:15", 0.25), ("reviewer", "07:30", 0.1))
    exec(compile(example(), str(PAGE), "exec"), dict(names))
    assert costs(session, table)[-2:] == [("coder", 6, 3.75, 2), ("planner", 6, 0.25, 1)]
    other = {"agent": "coder", "hour": "2026-11-22T06:00:00.000Z", "cost": 3.75}
    assert streams.messages("alerts/costs") == [expensive, other]


def costs(session: SparkSession, table: str) -> list[tuple[str, int, float, int]]:
    hours = session.read.parquet(table).orderBy("hour", "agent")
    rows = hours.selectExpr("agent", "hour(hour) as hour", "cost", "steps").collect()
    return [(row.agent, row.hour, row.cost, row.steps) for row in rows]
