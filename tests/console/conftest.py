"""A cluster, a browser and somebody who has signed in, for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.console.consoles import Cluster, Console
from tests.examples.browsing import pages
from tests.http.authorized import ROOT
from tests.jepsen_like.cluster_processes import ClusterProcesses
from tests.support.minio import MinioServer, minio_or_skip

BUCKET = "console"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("console")
    with MinioServer(minio_or_skip(), directory / "minio" / "data") as minio:
        minio.client().make_bucket(BUCKET)
        environment = {
            "STREAMD_AUTH_MODE": "required",
            "STREAMD_ROOT_TOKEN": ROOT,
            "STREAMD_LOG_AUDIT": "stream:audit/trail",
            "STREAMD_COLD_BACKEND": "s3",
            "STREAMD_COLD_S3_BUCKET": BUCKET,
            "STREAMD_COLD_S3_ENDPOINT": minio.endpoint,
            "STREAMD_COLD_S3_ACCESS_KEY_ID": minio.access_key_id,
            "STREAMD_COLD_S3_SECRET_ACCESS_KEY": minio.secret_access_key,
        }
        (directory / "nodes").mkdir()
        with ClusterProcesses(
            directory / "nodes", proxied=False, environment=environment
        ) as processes:
            yield Cluster(processes)


@pytest.fixture(scope="module")
def console(cluster: Cluster) -> Iterator[Console]:
    """The console of the first node; a test that leaves it signed in as somebody else opens it
    again."""
    with pages(1) as (page,):
        console = Console(page, cluster.url)
        console.open()
        yield console
