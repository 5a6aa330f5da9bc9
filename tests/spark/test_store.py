"""The audit's store: listings and reads, and how it distinguishes damage from an outage."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest

from streamd_audit import directories
from streamd_audit import store as audit_store
from streamd_audit.errors import TOO_SHORT, UNREADABLE, Damaged, ObjectMissing, StoreFailed
from streamd_audit.store import Store, open_store
from tests.spark.conftest import BUCKET
from tests.support.minio import MinioServer
from tests.support.s3_proxy import Fault, S3Proxy

_prefixes = count(1)
CONTENTS = {
    "a/1": b"first",
    "a/2/x": b"0123456789",
    "a/20": b"",
    "a-b": b"sorts before the slash",
    "b": bytes(3_000_000),
}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_store, "PAUSES_S", (0.01, 0.01, 0.01))


@pytest.fixture
def proxy(minio: MinioServer) -> Iterator[S3Proxy]:
    with S3Proxy(minio.port) as proxy:
        yield proxy


@pytest.fixture
def prefix(minio: MinioServer) -> str:
    """A new place in the bucket, with `CONTENTS`."""
    prefix = f"store/{next(_prefixes)}"
    for name, content in CONTENTS.items():
        minio.client().put_object(BUCKET, f"{prefix}/{name}", io.BytesIO(content), len(content))
    return prefix


def in_bucket(minio: MinioServer, prefix: str, endpoint: str | None = None, **others: str) -> Store:
    options = {
        "endpoint": endpoint or minio.endpoint,
        "access_key": minio.access_key_id,
        "secret_key": minio.secret_access_key,
        **others,
    }
    return open_store(f"s3://{BUCKET}/{prefix}", options)


@pytest.fixture(params=["directory", "s3"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, minio: MinioServer, prefix: str
) -> Iterator[Store]:
    if request.param == "directory":
        for name, content in {**CONTENTS, ".tmp/left": b"of a crash"}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content)
        opened = open_store(str(tmp_path))
    else:
        opened = in_bucket(minio, prefix)
    yield opened
    opened.close()


def listed(store: Store, prefix: str = "", after: str = "") -> dict[str, int]:
    return {name: size for page in store.list(prefix, after) for name, size in page}


# -- what every store does -----------------------------------------------------------------------


def test_a_listing_has_names_in_order_and_sizes(store: Store) -> None:
    expected = [(name, len(CONTENTS[name])) for name in sorted(CONTENTS)]
    assert list(listed(store).items()) == expected


@pytest.mark.parametrize("begins", ["a/", "a/2", "a/2/", "a", "z"])
@pytest.mark.parametrize("after", ["", "a/1", "a/2/x", "a-z"])
def test_a_listing_continues_after_a_name(store: Store, begins: str, after: str) -> None:
    expected = [name for name in sorted(CONTENTS) if name.startswith(begins) and name > after]
    assert list(listed(store, begins, after)) == expected


def test_a_listing_reads_all_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_store, "PAGE", 2)
    monkeypatch.setattr(directories, "PAGE", 2)
    assert list(listed(store)) == sorted(CONTENTS)
    assert [len(page) for page in store.list()] == [2, 2, 1]


def test_folders_are_listed(store: Store) -> None:
    assert store.folders() == ["a"]


def test_objects_are_read_in_part_and_whole(store: Store) -> None:
    for name, content in CONTENTS.items():
        assert store.read(name) == content
        assert store.size(name) == len(content)
    assert store.read("a/2/x", 3, 4) == b"3456"
    assert store.read("a/2/x", 3) == b"3456789"
    assert store.read("a/2/x", 3, 0) == b""


def test_an_absent_object_is_missing(store: Store) -> None:
    for name in ("c", "a", "a/2", "b/c"):
        with pytest.raises(ObjectMissing, match=name):
            store.read(name)
        with pytest.raises(ObjectMissing):
            store.size(name)


def test_an_object_that_ends_early_is_damaged(store: Store) -> None:
    for start, length in ((0, 11), (9, 2), (10, 1), (100, 5)):
        with pytest.raises(Damaged, match=TOO_SHORT):
            store.read("a/2/x", start, length)


# -- what is not a store --------------------------------------------------------------------------


def test_an_address_that_cannot_be_a_store_is_refused(tmp_path: Path, minio: MinioServer) -> None:
    with pytest.raises(StoreFailed, match="not a directory"):
        open_store(str(tmp_path / "nowhere"))
    with pytest.raises(StoreFailed, match="BUCKET"):
        open_store("s3:///prefix")
    wrong_key = in_bucket(minio, "x", secret_key="wrong-secret")
    with pytest.raises(StoreFailed, match="secret key is wrong"):
        listed(wrong_key)
    with pytest.raises(StoreFailed, match="access key is unknown"):
        listed(in_bucket(minio, "x", access_key="somebody-else"))


def test_a_missing_bucket_is_not_a_missing_object(minio: MinioServer) -> None:
    options = {
        "endpoint": minio.endpoint,
        "access_key": minio.access_key_id,
        "secret_key": minio.secret_access_key,
    }
    nowhere = open_store("s3://no-such-bucket/x", options)
    for call in (lambda: nowhere.read("a"), lambda: nowhere.size("a"), lambda: listed(nowhere)):
        with pytest.raises(StoreFailed, match="bucket does not exist"):
            call()


def test_credentials_come_from_the_environment(
    minio: MinioServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", minio.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", minio.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", minio.secret_access_key)
    assert open_store(f"s3://{BUCKET}/{prefix}/").read("a/1") == b"first"


# -- outages and damage --------------------------------------------------------------------------

PASSING = [Fault.SLOW_DOWN, Fault.BAD_GATEWAY, Fault.REPLY_LOST, Fault.CUT_SHORT]


@pytest.mark.parametrize("fault", PASSING)
def test_a_short_outage_is_waited_out(
    minio: MinioServer, prefix: str, proxy: S3Proxy, fault: Fault
) -> None:
    store = in_bucket(minio, prefix, proxy.endpoint)
    proxy.fail("GET", *[fault] * 3)
    assert list(listed(store)) == sorted(CONTENTS)
    proxy.fail("GET", *[fault] * 3)
    assert store.read("b") == CONTENTS["b"]
    assert proxy.done[fault] == 6


@pytest.mark.parametrize("fault", PASSING)
def test_a_long_outage_is_neither_damage_nor_an_empty_listing(
    minio: MinioServer, prefix: str, proxy: S3Proxy, fault: Fault
) -> None:
    store = in_bucket(minio, prefix, proxy.endpoint)
    proxy.fail_always("GET", fault)
    with pytest.raises(StoreFailed):
        listed(store)
    with pytest.raises(StoreFailed):
        store.read("b")


def test_a_listing_that_breaks_off_is_an_error(
    minio: MinioServer, prefix: str, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_store, "PAGE", 2)
    monkeypatch.setattr(directories, "PAGE", 2)
    store = in_bucket(minio, prefix, proxy.endpoint)
    pages = store.list()
    assert len(next(pages)) == 2
    proxy.fail_always("GET", Fault.SLOW_DOWN)
    with pytest.raises(StoreFailed):
        list(pages)


def test_a_truncated_body_is_requested_again(
    minio: MinioServer, prefix: str, proxy: S3Proxy
) -> None:
    store = in_bucket(minio, prefix, proxy.endpoint)
    proxy.fail("GET", Fault.SHORT_BODY)
    assert store.read("a/2/x", 0, 10) == CONTENTS["a/2/x"]


@pytest.mark.parametrize("knows_others", [True, False])
def test_an_object_that_has_rotted_in_the_store_is_damaged(
    minio: MinioServer, prefix: str, knows_others: bool
) -> None:
    content = Random(1).randbytes(400_000)
    minio.client().put_object(BUCKET, f"{prefix}/rotten", io.BytesIO(content), len(content))
    store = in_bucket(minio, prefix)
    if knows_others:
        assert store.read("a/1") == b"first"
    for file in minio.files_of(BUCKET, f"{prefix}/rotten"):
        if file.name == "part.1":
            file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(Damaged, match=UNREADABLE):
        store.read("rotten")
    assert store.read("a/1") == b"first"


def test_damage_is_pickled_between_processes() -> None:
    for error in (Damaged(TOO_SHORT, "why", 7), ObjectMissing("name"), StoreFailed("why")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.args) == (type(error), str(error), error.args)
