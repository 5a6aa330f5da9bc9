"""One Spark session for all tests of a worker, which takes seconds to start; and one MinIO with
the clean buckets, which are written once.

What needs PySpark is imported where it is used: `make test` does not install it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from tests.spark.buckets import Clean, Place, write_little, write_rich
from tests.spark.damages import Scene
from tests.spark.streams import Writer
from tests.support.minio import MinioServer, minio_or_skip
from tests.support.server_process import ServerProcess
from tests.support.tools import JAVA, skip_without

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKET = "audits"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from streamd_audit.session import SparkMissing, spark_session

    settings = tmp_path_factory.mktemp("settings")
    # Otherwise the catalog makes one in the checkout when it is first used.
    warehouse = f"spark.sql.warehouse.dir {settings}/warehouse\n"
    (settings / "spark-defaults.conf").write_text(warehouse)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SPARK_CONF_DIR", str(settings))
            session = spark_session("tests", master="local[2]")
    except SparkMissing:
        skip_without(JAVA)
    session.conf.set("spark.sql.shuffle.partitions", "3")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for the tests of a module."""
    with ServerProcess(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def writer(server: ServerProcess) -> Iterator[Writer]:
    """Writes to the module's server."""
    writer = Writer(server.url)
    yield writer
    writer.close()


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    """A server with one bucket, `BUCKET`; each test has prefixes of its own."""
    with MinioServer(minio_or_skip(), tmp_path_factory.mktemp("minio") / "data") as server:
        server.client().make_bucket(BUCKET)
        yield server


@pytest.fixture(scope="session")
def _rich(minio: MinioServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Clean, Path]:
    place, directory = Place(minio, BUCKET, "clean/rich"), tmp_path_factory.mktemp("rich")
    trio.run(write_rich, directory, place)
    return Clean.at(place), directory / "data"


@pytest.fixture(scope="session")
def rich(_rich: tuple[Clean, Path]) -> Clean:
    """The objects of one node that did everything that streams can do."""
    return _rich[0]


@pytest.fixture(scope="session")
def unsubscribed(minio: MinioServer, tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """The same without subscriptions, whose wakes have ids that depend on the group."""
    place = Place(minio, BUCKET, "clean/unsubscribed")
    trio.run(partial(write_rich, subscribed=False), tmp_path_factory.mktemp("other"), place)
    return Clean.at(place)


@pytest.fixture(scope="session")
def rich_data(_rich: tuple[Clean, Path]) -> Path:
    """The data directory of the node that wrote the rich bucket, which was stopped."""
    return _rich[1]


@pytest.fixture(scope="session")
def little(minio: MinioServer, tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """Another cluster's few objects."""
    place = Place(minio, BUCKET, "clean/little")
    trio.run(write_little, tmp_path_factory.mktemp("little"), place)
    return Clean.at(place)


@pytest.fixture
def scene(rich: Clean, little: Clean) -> Scene:
    """A copy of the rich cluster's objects, in memory, to damage."""
    return Scene.of(rich, little)
