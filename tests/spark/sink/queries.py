"""A query that carries rows from files to streams: in the tests' session, or a driver of its own.

``python -m tests.spark.sink.queries URLS SOURCE CHECKPOINT`` runs it to its end. Each file of
SOURCE is a micro-batch, and its rows are in two partitions.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streamd.spark import register
from streamd_audit.session import spark_session
from tests.spark.sink.attempts import Row

PARTITIONS = 2
# A JVM may need that long to start and run a few batches, on a machine with much else to do.
START_S = 300.0


def put_batch(source: Path, number: int, rows: Sequence[Row]) -> None:
    """One more micro-batch for the query."""
    lines = [
        json.dumps({"stream": stream, "record": record.decode()}) + "\n" for stream, record in rows
    ]
    part = source / f".{number:04}"
    part.write_text("".join(lines))
    part.rename(source / f"{number:04}.json")
    # Files are taken in the order of their times.
    os.utime(source / f"{number:04}.json", (1_700_000_000 + number, 1_700_000_000 + number))


def rows_of(spark: SparkSession, source: Path) -> DataFrame:
    files = spark.readStream.schema("stream string, record string")
    # Dealt out in turn, the rows of a stream are in both partitions.
    return files.option("maxFilesPerTrigger", 1).json(str(source)).repartition(PARTITIONS)


def start(rows: DataFrame, url: str, checkpoint: Path, **options: str) -> StreamingQuery:
    writer = rows.writeStream.format("streamd").option("url", url).option("create", "true")
    return (
        writer.options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


class Driver:
    """The query in a process of its own, with a JVM of its own."""

    def __init__(self, url: str, source: Path, checkpoint: Path) -> None:
        command = [sys.executable, "-m", "tests.spark.sink.queries", url, str(source)]
        self._log = checkpoint.with_suffix(".log")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, str(checkpoint)],
                stdout=log,
                stderr=log,
                start_new_session=True,
                # Files of a killed driver are removed with the test's directory.
                env={**os.environ, "SPARK_LOCAL_DIRS": str(checkpoint.with_suffix(".scratch"))},
                cwd=Path(__file__).parents[3],
            )

    def kill(self) -> None:
        """End the driver at once, and its JVM; workers find out by themselves."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def wait(self, timeout_s: float = START_S) -> None:
        """Wait for the end of the query, which must succeed."""
        status = self._process.wait(timeout_s)
        assert status == 0, self._log.read_text(errors="replace")[-6000:]


def main(url: str, source: str, checkpoint: str) -> None:
    spark = spark_session("sink", "local[2,4]")  # tasks are tried 4 times
    register(spark)
    start(rows_of(spark, Path(source)), url, Path(checkpoint)).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
