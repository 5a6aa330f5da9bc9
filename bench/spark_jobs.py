"""What `bench.spark` times, each in a process of its own with a driver of 1 GiB.

``python -m bench.spark_jobs NAME MASTER ARGUMENT…`` prints one line of JSON: how long it took once
the session was ready, how much it processed, and the most memory the driver ever had.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from minio import Minio
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from urllib3 import PoolManager

import streamd.spark
import streamd_audit.audit
from streamd_audit.session import spark_session

DRIVER_MEMORY_MIB = 1024
_MIB = 1024 * 1024
_POLL_S = 0.02
_PATIENCE_S = 300.0


def client() -> Minio:
    """The minio client for the store that the environment names."""
    host = os.environ["AWS_ENDPOINT_URL"].partition("://")[2]
    keys = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    return Minio(host, *keys, secure=False, http_client=PoolManager(retries=False))


def hash_objects(spark: SparkSession, bucket: str, prefix: str) -> dict[str, float]:
    """SHA-256 of all objects below a prefix: nothing that reads them all can be faster."""
    listed = client().list_objects(bucket, f"{prefix}/", recursive=True)
    names = [str(each.object_name) for each in listed]

    def hashed(some: Iterable[str]) -> Iterator[int]:
        store = client()
        for name in some:
            response = store.get_object(bucket, name)
            try:
                content = response.read()
            finally:
                response.close()
                response.release_conn()
            sha256(content).hexdigest()
            yield len(content)

    # Small parts, so that no core waits for the last of another's.
    parts = min(len(names), 16)
    size = spark.sparkContext.parallelize(names, parts).mapPartitions(hashed).sum()
    return {"bytes": size}


def audit(spark: SparkSession, bucket: str, prefix: str, out: str) -> dict[str, float]:
    """The whole audit."""

    with redirect_stdout(sys.stderr):
        status = streamd_audit.audit.main(["--store", f"s3://{bucket}/{prefix}", "--out", out])
    return {"status": status}


def read_stream(spark: SparkSession, url: str, bucket: str, messages: str) -> dict[str, float]:
    """A streaming query that counts what there is in the streams of a bucket."""
    streamd.spark.register(spark)
    seen = 0

    def count(rows: DataFrame, _: int) -> None:
        nonlocal seen
        found = rows.agg(F.count("record.number"), F.max("record.text")).first()
        assert found is not None
        seen += found[0]

    rows = (
        spark.readStream.format("streamd")
        .schema("stream string, record struct<number: long, text: string>")
        .options(url=url, bucket=bucket)
        .load()
    )
    query = rows.writeStream.foreachBatch(count).start()
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while seen < int(messages):
            failure = query.exception()
            if failure is not None:
                raise failure
            if time.monotonic() > deadline:
                raise TimeoutError(f"{seen} of {messages} messages were read")
            time.sleep(_POLL_S)
    finally:
        query.stop()
    return {"messages": seen}


def write(
    spark: SparkSession, url: str, bucket: str, messages: str, size: str, streams: str
) -> dict[str, float]:
    """Rows of `size` bytes, which Spark has in memory, written to as many streams of a bucket."""
    streamd.spark.register(spark)
    rows = spark.range(int(messages)).select(
        F.concat(F.lit(f"{bucket}/s"), F.col("id") % int(streams)).alias("stream"),
        F.rpad(F.col("id").cast("string"), int(size), "x").cast("binary").alias("record"),
    )
    # The client's data, too, is made before its time begins. Spark takes longer to pad a row than
    # to write it.
    rows.cache().count()
    # The first write of a session starts a Python worker for each core; the client runs already.
    some = rows.where("crc32(record) % 100 = 0")
    some.write.format("streamd").options(url=url).mode("append").save()
    started, cpu_started = time.perf_counter(), _cpu_s()
    rows.write.format("streamd").options(url=url).mode("append").save()
    seconds, cpu_s = time.perf_counter() - started, _cpu_s() - cpu_started
    return {"messages": int(messages), "seconds": seconds, "cpu_s": cpu_s}


_JOBS: dict[str, Callable[..., dict[str, float]]] = {
    job.__name__: job for job in (hash_objects, audit, read_stream, write)
}


def _peak_mb(pid: int | str) -> float:
    """The most memory that a process ever had resident, in MB (10^6 bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def _cpu_s() -> float:
    """Processor time of this process and of all that it started, in seconds: on a busy machine it
    says more than a clock."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # A process that has ended meanwhile is in its parent's account.
        with suppress(OSError):
            # Of what follows the name: the parent is second, its own times and those of the
            # children it has waited for are twelfth to fifteenth.
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
            ticks[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    ours, before = {os.getpid()}, -1
    while len(ours) != before:
        before = len(ours)
        ours |= {pid for pid, parent in parents.items() if parent in ours}
    return sum(ticks[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str]) -> None:
    name, master, *rest = arguments
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory {DRIVER_MEMORY_MIB}m pyspark-shell"
    spark = spark_session(f"bench {name}", master)
    gateway: Any = spark.sparkContext._gateway
    # The first job of a session loads much of Spark, whatever it does.
    spark.range(1).count()
    started, cpu_started = time.perf_counter(), _cpu_s()
    found = _JOBS[name](spark, *rest)
    found.setdefault("seconds", time.perf_counter() - started)
    found.setdefault("cpu_s", _cpu_s() - cpu_started)
    found["python_mb"] = _peak_mb("self")
    found["jvm_mb"] = _peak_mb(gateway.proc.pid)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
