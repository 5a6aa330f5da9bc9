"""Jobs run on a cluster of Spark by ``spark-submit``, their package shipped by ``--py-files``."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.buckets import Clean
from tests.spark.reading import access
from tests.spark.standalone import Standalone, standalone

# Four JVMs start for it.
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        os.environ.get("AUDIT_TESTS") != "all", reason="takes long: make audit-test"
    ),
]

SPARK = Path(__file__).parents[2] / "spark"

# Read on the workers, by a package from the zip: a row names its path.
SCRIPT = """
import json, sys
from pyspark.sql import SparkSession
from streamd_audit.session import spark_session
from streamd_audit.sources import register

def came_from(_):
    import streamd_audit
    yield streamd_audit.__file__

def files_of(spark):
    return set(spark.sparkContext.parallelize([0, 1], 2).mapPartitions(came_from).collect())

spark = spark_session("on a cluster")
register(spark)
log = spark.read.format("streamd_log").options(**json.loads(sys.argv[1])).load()
told = {
    "master": spark.sparkContext.master,
    "rows": log.count(),
    "problems": log.filter("problem is not null").count(),
    "files": sorted(files_of(spark)),
}
with open(sys.argv[2], "w") as out:
    json.dump(told, out)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The argument of ``--py-files``: the package in a zip, and nothing else."""
    base = tmp_path_factory.mktemp("package") / "streamd_audit"
    return Path(shutil.make_archive(str(base), "zip", SPARK, "streamd_audit"))


def test_sources_are_read_on_a_clusters_workers(
    cluster: Standalone, package: Path, rich: Clean, tmp_path: Path
) -> None:
    script = tmp_path / "count.py"
    script.write_text(SCRIPT)
    out = tmp_path / "told.json"
    ended = cluster.submit(script, [json.dumps(access(rich.place)), str(out)], package=package)
    assert ended.returncode == 0, ended.stderr[-4000:]
    told = json.loads(out.read_text())
    assert told["master"] == cluster.url
    assert told["problems"] == 0
    assert told["rows"] > 100
    # Each executor has its copy, none reads this checkout.
    assert all(".zip/streamd_audit/" in file for file in told["files"])


def test_a_job_on_a_cluster_prints_the_same_as_here(
    cluster: Standalone, package: Path, rich: Clean, tmp_path: Path
) -> None:
    script = Path(shutil.copy(SPARK / "audit_chunks.py", tmp_path))
    arguments = [
        f"--{name.replace('_', '-')}={value}" for name, value in access(rich.place).items()
    ]
    ended = cluster.submit(script, [*arguments, f"--out={tmp_path / 'out'}"], package=package)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-4000:]
    found = json.loads((tmp_path / "out" / "findings.json").read_text())
    assert found["verdict"] == "clean"
