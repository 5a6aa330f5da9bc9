"""The object store without blocking: it retries where that helps, and never returns wrong bytes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio
from crc32c import crc32c

from streamd.config.settings import ColdConfig
from streamd.objectstore.errors import ColdRefused, ColdUnavailable, ObjectCorrupt, ObjectMissing
from streamd.objectstore.fs import FsStore
from streamd.objectstore.names import digest_of
from streamd.objectstore.objects import MAX_PAGE
from streamd.process.threads import in_thread
from streamd.tiering import async_store
from streamd.tiering.async_store import MAX_ATTEMPTS, AsyncObjectStore, open_object_store
from tests.support.flaky_store import FlakyStore

CONTENT = bytes(range(256)) * 100


@pytest.fixture
def store(tmp_path: Path) -> FlakyStore:
    return FlakyStore(tmp_path)


@pytest.fixture
def cold(store: FlakyStore) -> AsyncObjectStore:
    return AsyncObjectStore(store, run_blocking=in_thread, random=Random(1), max_requests=2)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_store, "FIRST_PAUSE_S", 0.001)


async def test_a_short_outage_is_not_noticed(cold: AsyncObjectStore, store: FlakyStore) -> None:
    store.failures = [ColdUnavailable("busy")] * (MAX_ATTEMPTS - 1)
    await cold.put("a", CONTENT)
    assert store.calls == MAX_ATTEMPTS
    assert cold.health.retries == MAX_ATTEMPTS - 1
    assert await cold.get("a", 5, 10, crc=crc32c(CONTENT[5:15])) == CONTENT[5:15]


async def test_the_caller_gets_the_error_after_the_last_attempt(
    cold: AsyncObjectStore, store: FlakyStore
) -> None:
    store.failures = [ColdUnavailable("away")] * 100
    with pytest.raises(ColdUnavailable, match="away"):
        await cold.put("a", CONTENT)
    assert store.calls == MAX_ATTEMPTS


@pytest.mark.parametrize("error", [ColdRefused("denied"), ObjectMissing("gone")])
async def test_permanent_errors_are_not_retried(
    error: Exception, cold: AsyncObjectStore, store: FlakyStore
) -> None:
    store.failures = [error]
    with pytest.raises(type(error)):
        await cold.get("a", 0, 1)
    assert store.calls == 1


async def test_bytes_damaged_in_transit_are_read_again(
    cold: AsyncObjectStore, store: FlakyStore
) -> None:
    await cold.put("a", CONTENT)
    store.damaged_reads = 1
    assert await cold.get("a", 0, 100, crc=crc32c(CONTENT[:100])) == CONTENT[:100]
    assert cold.health.retries == 1


async def test_bytes_damaged_in_the_store_are_never_returned(
    cold: AsyncObjectStore, store: FlakyStore
) -> None:
    await cold.put("a", CONTENT)
    store.damaged_reads = 100
    with pytest.raises(ObjectCorrupt, match=r"a in the directory .* the checksum is wrong"):
        await cold.get("a", 0, 100, crc=crc32c(CONTENT[:100]))


async def test_a_shortened_object_is_damaged(cold: AsyncObjectStore, tmp_path: Path) -> None:
    await cold.put("a", CONTENT)
    (tmp_path / "a").write_bytes(CONTENT[:50])
    with pytest.raises(ObjectCorrupt, match="ends before 100"):
        await cold.get("a", 0, 100, crc=0)


async def test_the_digest_is_that_of_the_stored_bytes(
    cold: AsyncObjectStore, tmp_path: Path
) -> None:
    await cold.put("a", CONTENT)
    assert await cold.digest("a") == (digest_of(CONTENT), len(CONTENT))
    (tmp_path / "a").write_bytes(b"something else")
    assert await cold.digest("a") == (digest_of(b"something else"), 14)


async def test_an_object_counts_as_stored_once_it_was_read_back(
    cold: AsyncObjectStore, store: FlakyStore
) -> None:
    await cold.put_verified("a", CONTENT)
    store.damaged_reads = 1
    with pytest.raises(ObjectCorrupt, match="does not hold the bytes just written"):
        await cold.put_verified("a", CONTENT)


async def test_objects_are_deleted_in_pages(cold: AsyncObjectStore, store: FlakyStore) -> None:
    for name in ("a", "b"):
        await cold.put(name, b"x")
    before = store.calls
    await cold.delete(["a", *(f"never-{number}" for number in range(MAX_PAGE)), "b"])
    assert store.calls == before + 2
    assert await cold.page("") == []


async def test_concurrent_calls_are_limited(tmp_path: Path) -> None:
    under_way: list[int] = []
    most = 0

    class Slow(FsStore):
        def put(self, name: str, content: bytes) -> None:
            nonlocal most
            under_way.append(1)
            most = max(most, len(under_way))
            super().put(name, content)
            under_way.pop()

    cold = AsyncObjectStore(
        Slow(tmp_path), run_blocking=in_thread, random=Random(1), max_requests=2
    )
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(cold.put, f"o/{number}", CONTENT)
    assert most <= 2
    assert len(await cold.page("o/")) == 20


async def test_the_check_reports_what_does_not_work(
    cold: AsyncObjectStore, store: FlakyStore
) -> None:
    await cold.check()
    store.failures = [ColdRefused("nobody may")]
    with pytest.raises(ColdRefused, match=r"the directory .* cannot be written: nobody may"):
        await cold.check()
    assert await cold.page("") == []


def test_the_configuration_says_where_objects_go(tmp_path: Path) -> None:
    inside = open_object_store(ColdConfig(backend="fs"), tmp_path)
    inside.put("c1/a", b"x")
    assert (tmp_path / "cold" / "c1" / "a").exists()
    elsewhere = open_object_store(ColdConfig(backend="fs", fs_path="/cold"), tmp_path)
    assert elsewhere.place == "the directory /cold"
    s3 = ColdConfig(backend="s3", s3_bucket="b-1", s3_prefix="dev/", s3_endpoint="http://h:9000")
    at_s3 = open_object_store(s3, tmp_path)
    assert at_s3.place == "the bucket b-1/dev/ at http://h:9000"
