"""A MinIO for all tests of the cold store, and a bucket for each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from streamd.objectstore.s3 import S3Store
from tests.support.minio import MinioServer, minio_or_skip
from tests.support.s3_proxy import S3Proxy

_numbers = count(1)


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with MinioServer(minio_or_skip(), tmp_path_factory.mktemp("minio") / "data") as server:
        yield server


@pytest.fixture
def bucket(minio: MinioServer) -> str:
    """The name of a new, empty bucket."""
    name = f"bucket-{next(_numbers)}"
    minio.client().make_bucket(name)
    return name


@pytest.fixture
def s3(minio: MinioServer, bucket: str) -> Iterator[S3Store]:
    store = s3_store(minio, bucket)
    yield store
    store.close()


@pytest.fixture
def proxy(minio: MinioServer) -> Iterator[S3Proxy]:
    with S3Proxy(minio.port) as proxy:
        yield proxy


@pytest.fixture
def s3_through_proxy(minio: MinioServer, bucket: str, proxy: S3Proxy) -> Iterator[S3Store]:
    """With a time limit short enough for a test."""
    store = s3_store(minio, bucket, endpoint=proxy.endpoint, timeout_s=1.0)
    yield store
    store.close()


def s3_store(
    minio: MinioServer,
    bucket: str,
    *,
    endpoint: str | None = None,
    timeout_s: float = 20.0,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    ca_file: str | None = None,
    prefix: str = "some/where/",
) -> S3Store:
    return S3Store(
        bucket=bucket,
        region="us-east-1",
        endpoint=endpoint or minio.endpoint,
        access_key_id=access_key_id or minio.access_key_id,
        secret_access_key=secret_access_key or minio.secret_access_key,
        ca_file=ca_file,
        prefix=prefix,
        timeout_s=timeout_s,
        connections=4,
    )
