"""S3 with network failures, operators' mistakes, and a bucket that disappears."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trustme

from streamd.objectstore.check import check_object_store
from streamd.objectstore.errors import ColdRefused, ColdUnavailable, ObjectCorrupt, ObjectMissing
from streamd.objectstore.s3 import S3Store
from tests.objectstore.conftest import s3_store
from tests.support.minio import MinioServer, minio_or_skip
from tests.support.ports import unused_port
from tests.support.s3_proxy import Fault, S3Proxy

CONTENT = bytes(range(256)) * 4_096


# -- one attempt and its result -----------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.SLOW_DOWN, Fault.BAD_GATEWAY, Fault.LATE])
def test_a_store_that_does_not_answer_properly_is_unavailable(
    fault: Fault, s3_through_proxy: S3Store, proxy: S3Proxy
) -> None:
    for method in ("PUT", "GET", "HEAD", "POST"):
        proxy.fail(method, fault)
    began = time.monotonic()
    with pytest.raises(ColdUnavailable):
        s3_through_proxy.put("a", CONTENT)
    with pytest.raises(ColdUnavailable):
        s3_through_proxy.get("a", 0, 1)
    with pytest.raises(ColdUnavailable):
        s3_through_proxy.stat("a")
    with pytest.raises(ColdUnavailable):
        s3_through_proxy.delete(["a"])
    proxy.fail("GET", fault)
    with pytest.raises(ColdUnavailable):
        s3_through_proxy.page("")
    assert proxy.done[fault] == 5
    assert time.monotonic() - began < 5 * 1.0 + 3.0, "each within its time limit"
    s3_through_proxy.put("a", CONTENT)
    assert s3_through_proxy.get("a", 0, 256) == CONTENT[:256]


def test_a_connection_that_breaks_within_a_put_leaves_nothing(
    s3_through_proxy: S3Store, proxy: S3Proxy
) -> None:
    proxy.fail("PUT", Fault.RESET_IN_BODY)
    with pytest.raises(ColdUnavailable):
        s3_through_proxy.put("a", CONTENT)
    assert s3_through_proxy.page("") == []
    s3_through_proxy.put("a", CONTENT)
    assert s3_through_proxy.stat("a").size == len(CONTENT)


def test_a_put_whose_answer_is_lost_may_be_repeated(
    s3_through_proxy: S3Store, proxy: S3Proxy
) -> None:
    proxy.fail("PUT", Fault.REPLY_LOST)
    with pytest.raises(ColdUnavailable):
        s3_through_proxy.put("a", CONTENT)
    assert s3_through_proxy.get("a", 0, len(CONTENT)) == CONTENT
    s3_through_proxy.put("a", CONTENT)
    assert s3_through_proxy.get("a", 0, len(CONTENT)) == CONTENT


@pytest.mark.parametrize("fault", [Fault.TWICE, Fault.REPLY_LOST])
def test_a_delete_may_be_repeated(fault: Fault, s3_through_proxy: S3Store, proxy: S3Proxy) -> None:
    s3_through_proxy.put("a", b"x")
    s3_through_proxy.put("b", b"x")
    proxy.fail("POST", fault)
    if fault is Fault.REPLY_LOST:
        with pytest.raises(ColdUnavailable):
            s3_through_proxy.delete(["a"])
    s3_through_proxy.delete(["a"])
    assert proxy.passed["POST"] == 2
    assert [found.name for found in s3_through_proxy.page("")] == ["b"]


def test_a_truncated_answer_is_unavailable(s3_through_proxy: S3Store, proxy: S3Proxy) -> None:
    s3_through_proxy.put("a", CONTENT)
    proxy.fail("GET", Fault.CUT_SHORT)
    with pytest.raises(ColdUnavailable):
        s3_through_proxy.get("a", 0, len(CONTENT))
    assert s3_through_proxy.get("a", 0, len(CONTENT)) == CONTENT


def test_a_short_answer_is_never_returned(s3_through_proxy: S3Store, proxy: S3Proxy) -> None:
    s3_through_proxy.put("a", CONTENT)
    proxy.fail("GET", Fault.SHORT_BODY)
    with pytest.raises(ObjectCorrupt, match="ends before"):
        s3_through_proxy.get("a", 0, len(CONTENT))


def test_a_killed_server_is_unavailable_until_it_restarts(minio: MinioServer, s3: S3Store) -> None:
    s3.put("a", CONTENT)
    minio.kill()
    try:
        with pytest.raises(ColdUnavailable):
            s3.get("a", 0, 1)
    finally:
        minio.start()
    assert s3.get("a", 0, len(CONTENT)) == CONTENT


# -- errors for the operator --------------------------------------------------------------------


def test_a_wrong_key_is_named(minio: MinioServer, bucket: str) -> None:
    unknown = s3_store(minio, bucket, access_key_id="nobody")
    with pytest.raises(ColdRefused, match=r"cold\.s3_access_key_id"):
        check_object_store(unknown, "1")
    wrong = s3_store(minio, bucket, secret_access_key="wrong-secret")
    with pytest.raises(ColdRefused, match=r"cannot be written: .*cold\.s3_secret_access_key"):
        check_object_store(wrong, "1")


def test_a_bucket_that_does_not_exist_is_named(minio: MinioServer) -> None:
    store = s3_store(minio, "not-made")
    with pytest.raises(ColdRefused, match=r"bucket not-made.* does not exist \(cold\.s3_bucket\)"):
        check_object_store(store, "1")


def test_a_deleted_bucket_is_not_mistaken_for_missing_objects(
    minio: MinioServer, bucket: str, s3: S3Store
) -> None:
    s3.put("a", b"x")
    with pytest.raises(ObjectMissing):
        s3.stat("b")
    s3.delete(["a"])
    minio.client().remove_bucket(bucket)
    for call in (
        lambda: s3.stat("a"),
        lambda: s3.get("a", 0, 1),
        lambda: s3.page(""),
        lambda: s3.put("a", b"x"),
        lambda: s3.delete(["a"]),
    ):
        with pytest.raises(ColdRefused, match=r"cold\.s3_bucket"):
            call()
    minio.client().make_bucket(bucket)
    s3.put("a", b"x")
    assert s3.get("a", 0, 1) == b"x"


def test_a_read_only_key_is_reported(minio: MinioServer, bucket: str) -> None:
    anyone = (
        '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":["*"]},'
        f'"Action":["s3:GetObject"],"Resource":["arn:aws:s3:::{bucket}/*"]}}]}}'
    )
    minio.client().set_bucket_policy(bucket, anyone)
    store = S3Store(
        bucket=bucket, region="us-east-1", endpoint=minio.endpoint, prefix="", timeout_s=5.0
    )
    with pytest.raises(ColdRefused):
        check_object_store(store, "1")


def test_no_store_at_the_endpoint_is_unavailable(minio: MinioServer, bucket: str) -> None:
    nowhere = s3_store(minio, bucket, endpoint=f"http://127.0.0.1:{unused_port()}")
    with pytest.raises(ColdUnavailable, match="cannot be written"):
        check_object_store(nowhere, "1")


def test_a_malformed_endpoint_is_refused_at_once(minio: MinioServer, bucket: str) -> None:
    with pytest.raises(ColdRefused, match="endpoint"):
        s3_store(minio, bucket, endpoint="http://127.0.0.1:99999")


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_tls_accepts_servers_that_the_configured_authority_certifies(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate = authority.issue_cert("127.0.0.1")
    server = MinioServer(minio_or_skip(), tmp_path / "data", certificate=certificate)
    with server as minio:
        minio.client().make_bucket("secure")
        trusted = s3_store(minio, "secure", ca_file=str(tmp_path / "ca.pem"))
        check_object_store(trusted, "1")
        trusted.put("a", CONTENT)
        assert trusted.get("a", 5, 1000) == CONTENT[5:1005]
        with pytest.raises(ColdRefused, match=r"TLS: .*certificate verify failed"):
            check_object_store(s3_store(minio, "secure"), "1")


def test_two_prefixes_of_a_bucket_are_separate_stores(minio: MinioServer, bucket: str) -> None:
    one = s3_store(minio, bucket, prefix="one/")
    other = s3_store(minio, bucket, prefix="other/")
    one.put("a", b"1")
    other.put("a", b"2")
    one.delete(["a"])
    assert other.get("a", 0, 1) == b"2"
    assert one.page("") == []
