"""Streams read from a cold store without a server, record by record as the server returns them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict

from streamd.config.settings import ColdConfig
from streamd.spark.errors import StoreChanged, StreamMissing, Trimmed
from streamd.spark.materialized import MaterializedSource
from streamd.spark.options import BadOption
from streamd.spark.source import StreamdSource
from tests.http.serving import serving
from tests.spark.buckets import AUTH, JSON, Author, Place, write_up_to_newest_state
from tests.spark.conftest import BUCKET
from tests.spark.reading import InProcess
from tests.spark.subscribed_authors import Subscriber
from tests.spark.test_materialized import gone, put
from tests.support.minio import MinioServer

pytestmark = pytest.mark.long

RAW = T.StructType().add("stream", "string").add("offset", "string").add("record", "binary")

Rows = list[dict[str, Any]]


def ask(schema: T.StructType = RAW, source: Any = StreamdSource, **options: str) -> Rows:
    """The rows that a query would have; everything sent to tasks goes through pickle."""
    reader = source(CaseInsensitiveDict(options)).reader(schema)
    reader, parts = pickle.loads(pickle.dumps((reader, reader.partitions())))
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


async def asked(schema: T.StructType = RAW, source: Any = StreamdSource, **options: str) -> Rows:
    """As `ask`, while a server runs in this thread."""
    return await trio.to_thread.run_sync(lambda: ask(schema, source, **options))


def directory(path: Path) -> ColdConfig:
    return ColdConfig(
        backend="fs",
        fs_path=str(path),
        pack_bytes=64 * 1024,
        flush_after_ms=10**9,
        snapshot_interval_minutes=10,
        archive_retention_hours=1000,
        hot_keep_bytes=1,
        gc_interval_ms=10**9,
    )


async def test_every_stream_is_read_from_the_store_as_from_the_server(tmp_path: Path) -> None:
    """Forks cut inside records, forks of what is deleted, trimmed streams, those that are partly in
    packs and partly in rows of the state, in no bucket, created again, closed, empty."""
    root = tmp_path / "store"
    serve = serving(tmp_path / "node", cold=directory(root), auth=AUTH)
    async with serve as server, server.client() as http:
        author = Author(server, http)
        await author.create("/v1/stream/alone", JSON, b'[1, "two"]')
        await author.create("/v1/stream/empty/one", JSON)
        await write_up_to_newest_state(author, Subscriber(author))
        url = f"http://127.0.0.1:{server.port}"
        every: dict[str, Any] = {"on_trimmed": "snapshot"}
        for bucket in ("agents", "free", "empty"):
            told = await asked(url=url, bucket=bucket, **every)
            assert ask(store=str(root), bucket=bucket, **every) == told
            assert bool(told) == (bucket != "empty")
            cut = ask(store=str(root), bucket=bucket, partition_bytes="900", **every)
            assert sorted(cut, key=tuple_of) == sorted(told, key=tuple_of)
        alone = ask(store=str(root), stream="alone")
        assert alone == await asked(url=url, stream="alone")
        wakes = ask(store=str(root), stream="wakes")
        assert wakes
        assert ask(store=str(root), bucket="_default") == alone + wakes
    # Without a server, as the bucket is all that is left.
    inside = ask(store=str(root), stream="agents/inside")
    assert len(inside) == 10
    second = inside[1]["offset"]
    assert ask(store=str(root), stream="agents/inside", starting_offset=second) == inside[1:]
    assert ask(store=str(root), stream="agents/inside", ending_offset=second) == inside[:1]
    with pytest.raises(Trimmed, match="agents/story begins at"):
        ask(store=str(root), stream="agents/story")
    with pytest.raises(StreamMissing, match="no stream agents/short in the newest state"):
        ask(store=str(root), stream="agents/short")
    with pytest.raises(BadOption, match="not an offset of it"):
        ask(store=str(root), stream="agents/inside", ending_offset=second[:-1] + "0")
    source = StreamdSource(CaseInsensitiveDict({"store": str(root), "stream": "agents/events"}))
    assert source.schema()["record"].dataType.simpleString() == "struct<n:bigint,part:bigint>"
    for pack in root.rglob("*.pack"):
        pack.unlink()
    with pytest.raises(StoreChanged, match=r"there is no object .* is gone since"):
        ask(store=str(root), stream="agents/inside")


@pytest.mark.usefixtures("spark")
async def test_records_appended_after_the_newest_state_are_read_from_the_log(
    tmp_path: Path,
) -> None:
    """With a retry, which adds no record to the stream."""
    root = tmp_path / "store"
    async with serving(tmp_path / "node", cold=directory(root)) as server, server.client() as http:
        author = Author(server, http)
        await author.create("/v1/stream/a/b", JSON, b'["before"]')
        await author.snapshot()
        for _ in range(2):
            await author.append(
                "/v1/stream/a/b",
                b'"after"',
                JSON,
                Producer_Id="p",
                Producer_Epoch="0",
                Producer_Seq="0",
            )
        await author.archived()
    store: dict[str, Any] = {"store": str(root)}
    assert [row["record"] for row in ask(stream="a/b", **store)] == [b'"before"']
    newest = max(row["index"] for row in InProcess("streamd_manifests", None, store).rows())
    log = InProcess("streamd_log", None, store).rows()
    later = [row["payload"] for row in log if row["index"] > newest and row["kind"] == "append"]
    assert later == [b'"after",'] * 2


def tuple_of(row: dict[str, Any]) -> tuple[str, str]:
    return row["stream"], row["offset"]


async def test_a_table_is_read_from_a_bucket(tmp_path: Path, minio: MinioServer) -> None:
    place = Place(minio, BUCKET, "tables")
    async with serving(tmp_path / "node", cold=place.cold()) as server, server.client() as http:
        author = Author(server, http)
        events = [put("t", str(n % 50), n) for n in range(400)]
        await http.put("/v1/stream/app/state", headers=JSON, json=events)
        await author.flushed()
        await http.post("/v1/stream/app/state", headers=JSON, json=[gone("t", "7")])
        await author.snapshot()
    values = T.StructType().add("key", "string").add("value", "long")
    reached_by = {
        "endpoint": minio.endpoint,
        "access_key": minio.access_key_id,
        "secret_key": minio.secret_access_key,
    }
    found = ask(
        values, MaterializedSource, store=place.url, stream="app/state", type="t", **reached_by
    )
    expected = {str(n % 50): n for n in range(400) if n % 50 != 7}
    assert {row["key"]: row["value"] for row in found} == expected


def test_wrong_requests_to_a_store_are_refused(tmp_path: Path) -> None:
    (tmp_path / "1f0c4a57-6b1e-4f6e-9d0a-3c2b1a000001").mkdir()
    store: dict[str, Any] = {"store": str(tmp_path), "stream": "a/b"}
    with pytest.raises(StreamMissing, match="has no state of cluster 1f0c4a57"):
        ask(**store)
    with pytest.raises(BadOption, match="option cacert cannot be combined with option store"):
        ask(**store, cacert="x")
    with pytest.raises(BadOption, match=r"url, servers separated .*, not with both"):
        ask(**store, url="http://127.0.0.1:1")
    with pytest.raises(BadOption, match="a store has no live streams"):
        StreamdSource(CaseInsensitiveDict(store)).streamReader(RAW)
    (tmp_path / "1f0c4a57-6b1e-4f6e-9d0a-3c2b1a000002").mkdir()
    with pytest.raises(Exception, match=r"several clusters are in .*, choose one: 1f0c4a57-"):
        ask(**store)
