"""Objects of any size are put in one request, so a kill leaves the whole object or nothing: an
incomplete multipart upload would take room that no listing shows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from streamd.objectstore.objects import MAX_OBJECT_BYTES
from streamd.objectstore.s3 import S3Store
from tests.objectstore.conftest import s3_store
from tests.support.minio import MinioServer
from tests.support.s3_proxy import Moment, S3Proxy

MIB = 1024 * 1024
PUT = """
import sys
from streamd.objectstore.s3 import S3Store
endpoint, bucket, key, secret, size = sys.argv[1:]
store = S3Store(bucket=bucket, region="us-east-1", endpoint=endpoint,
                access_key_id=key, secret_access_key=secret)
store.put("big", bytes(int(size)))
"""


def uploads(minio: MinioServer, bucket: str) -> list[str]:
    """Multipart uploads that were begun and not completed."""
    return [
        upload.object_name for upload in minio.client()._list_multipart_uploads(bucket).uploads
    ] + [str(path) for path in (minio.directory / ".minio.sys/multipart").rglob("xl.meta")]


@pytest.mark.parametrize("size", [5 * MIB + 1, MAX_OBJECT_BYTES])
def test_the_largest_objects_take_one_request(
    minio: MinioServer, bucket: str, proxy: S3Proxy, size: int
) -> None:
    store: S3Store = s3_store(minio, bucket, endpoint=proxy.endpoint)
    store.put("big", bytes(size))
    assert proxy.passed == {"PUT": 1}
    assert store.stat("big").size == size
    store.close()


@contextmanager
def putting(minio: MinioServer, bucket: str, proxy: S3Proxy) -> Iterator[subprocess.Popen[bytes]]:
    """A process that puts a large object."""
    command = [sys.executable, "-c", PUT, proxy.endpoint, bucket]
    keys = [minio.access_key_id, minio.secret_access_key]
    process = subprocess.Popen([*command, *keys, str(20 * MIB)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("moment", list(Moment))
def test_a_kill_in_the_midst_of_a_put_leaves_no_unfinished_upload(
    minio: MinioServer, bucket: str, proxy: S3Proxy, moment: Moment
) -> None:
    hold = proxy.hold(moment, "PUT", "big")
    with putting(minio, bucket, proxy) as process:
        hold.wait()
        process.kill()
        process.wait()
    hold.release(drop=True)
    minio.kill()
    minio.start()
    assert uploads(minio, bucket) == []
