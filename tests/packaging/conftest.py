"""What the tests of packages share: one build of everything."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.packaging.installed import ROOT, output
from tests.support.minio import MinioServer, minio_or_skip
from tests.support.tools import BUILDING, skip_without


class Built(NamedTuple):
    wheel: Path
    client_wheel: Path
    sources: Path
    binary: Path
    deb: Path
    rpm: Path
    bill: Path
    tree: Path


def build(directory: Path, umask: str = "022") -> Built:
    """Build everything below a directory, or take what was built there. Skips the test where the
    extra `release` is not installed."""
    if find_spec("build") is None:
        skip_without(BUILDING)
    dist, tree = directory / "dist", directory / "tree"
    if not (directory / "done").exists():
        where = (f"DIST={dist}", f"TREE={tree}", f"VENV={sys.prefix}")
        masked = "sh", "-c", 'umask $0; exec "$@"', umask
        output(*masked, "make", "binary", "packages", "sbom", *where, cwd=ROOT)
        (directory / "done").touch()
    kinds = ("durable_streamd-*.whl", "durable_streamd_client-*.whl", "*.gz", "streamd")
    found = [list(dist.glob(kind)) for kind in (*kinds, "*.deb", "*.rpm", "*.json")]
    assert [len(files) for files in found] == [1] * len(found)
    wheel, client_wheel, sources, binary, deb, rpm, bill = (files[0] for files in found)
    return Built(wheel, client_wheel, sources, binary, deb, rpm, bill, tree)


@pytest.fixture(scope="package")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """One build for all processes of a run."""
    directory = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = directory.parent
    directory /= "built"
    directory.mkdir(exist_ok=True)
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build(directory)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MinioServer]:
    """An empty MinIO."""
    with MinioServer(minio_or_skip(), tmp_path / "store" / "minio") as running:
        yield running
