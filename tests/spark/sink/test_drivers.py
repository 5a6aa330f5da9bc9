"""Drivers with JVMs of their own, killed at the steps of a micro-batch; a leader with them."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest

from tests.jepsen_like.cluster_processes import ClusterProcesses
from tests.spark.sink import queries
from tests.spark.sink.attempts import Row, Streams
from tests.spark.sink.steps import EVERY_STEP, Step
from tests.spark.sink.test_queries import expect, rows_for
from tests.spark.sink.workers import kill_workers
from tests.support.s3_proxy import Moment, S3Proxy
from tests.support.tools import JAVA, has_java, needs

pytestmark = pytest.mark.long

ALL = os.environ.get("AUDIT_TESTS") == "all"
# Between the appends of a task: its plan is written, half of it is done.
HALF_DONE = Step(Moment.BEHIND, "POST", "/v1/stream/", 1)


@needs(JAVA, has_java())
def test_killing_worker_driver_and_leader_in_a_micro_batch_leaves_each_row_once(
    tmp_path: Path,
) -> None:
    """The task is retried, then the query from its checkpoint, on the remaining nodes."""
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    bucket, every = uuid4().hex, list[Row]()
    with (
        ClusterProcesses(tmp_path, proxied=False) as cluster,
        S3Proxy(cluster.nodes[1].client_port) as proxy,
    ):
        urls = ",".join([proxy.endpoint, cluster.nodes[2].url, cluster.nodes[3].url])
        for number, step in enumerate(EVERY_STEP if ALL else [HALF_DONE]):
            rows = rows_for(bucket, number)
            every += rows
            queries.put_batch(source, number, rows)
            worker_hold = proxy.hold(*step)
            driver = queries.Driver(urls, source, checkpoint)
            try:
                worker_hold.wait(queries.START_S)
                driver_hold = proxy.hold(*step)
                assert kill_workers(proxy.port) > 0
                worker_hold.release(drop=True)
                driver_hold.wait(queries.START_S)
            finally:
                driver.kill()
            leader = cluster.leader()
            leader.kill()
            driver_hold.release(drop=True)
            if ALL:
                leader.start()
                cluster.wait_ready()
        cluster.leader()
        queries.Driver(urls, source, checkpoint).wait()
        expect(Streams(cluster.alive[0].client_port), every)
