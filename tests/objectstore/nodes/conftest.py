"""Servers that reach a MinIO through a proxy, new ones for each test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.objectstore.nodes.running import ColdServer
from tests.support.minio import MinioServer
from tests.support.s3_proxy import S3Proxy

Make = Callable[..., ColdServer]


@pytest.fixture
def make(minio: MinioServer, bucket: str, proxy: S3Proxy, tmp_path: Path) -> Make:
    """Makes a server, to be started; keys of the section ``[cold]`` may be given."""

    def make(**more: float) -> ColdServer:
        return ColdServer(minio, bucket, proxy, tmp_path / "node", **more)

    return make
