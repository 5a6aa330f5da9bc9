"""Objects that have rotted on the disks under MinIO, for which it answers with its own errors:
damage is distinguished from an outage everywhere."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import trio
from structlog.testing import capture_logs

from streamd.config.settings import ColdConfig
from streamd.objectstore.errors import ColdUnavailable, ObjectCorrupt, ObjectMissing
from streamd.objectstore.s3 import S3Store
from streamd.process.threads import in_thread
from streamd.tiering import async_store
from streamd.tiering.async_store import AsyncObjectStore
from tests.backup.test_archive import archived
from tests.http.serving import serving
from tests.objectstore.test_serving import all_of, code, in_minio, until_cold, write
from tests.support.minio import MinioServer

PREFIX = "some/where/"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_store, "FIRST_PAUSE_S", 0.01)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def cut(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def clear(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


ROT = [(file, spoil) for file in ("xl.meta", "part.1") for spoil in (flip, cut, clear, Path.unlink)]


def cold_over(store: S3Store) -> AsyncObjectStore:
    return AsyncObjectStore(store, run_blocking=in_thread, random=Random(1), max_requests=4)


@pytest.mark.parametrize(("file", "spoil"), ROT)
@pytest.mark.parametrize("knows_others", [True, False])
async def test_rotten_objects_are_damage_and_not_an_outage(
    minio: MinioServer,
    bucket: str,
    s3: S3Store,
    file: str,
    spoil: Callable[[Path], None],
    knows_others: bool,
) -> None:
    cold = cold_over(s3)
    content = Random(1).randbytes(300_000)
    await cold.put("other", b"x")
    await cold.put("rotten", content)
    if knows_others:
        assert await cold.get("other", 0, 1) == b"x"
    [rotten] = [path for path in minio.files_of(bucket, f"{PREFIX}rotten") if path.name == file]
    spoil(rotten)
    with pytest.raises((ObjectCorrupt, ObjectMissing), match="rotten"):
        await cold.get("rotten", 0, len(content))
    with pytest.raises((ObjectCorrupt, ObjectMissing), match="rotten"):
        await cold.digest("rotten")
    assert cold.health.away_s is None


async def test_a_killed_store_is_an_outage_and_not_damage(minio: MinioServer, s3: S3Store) -> None:
    cold = cold_over(s3)
    await cold.put("a", b"x" * 100)
    await cold.get("a", 0, 100)
    minio.kill()
    try:
        with pytest.raises(ColdUnavailable):
            await cold.get("a", 0, 100)
        assert cold.health.away_s is not None
    finally:
        await trio.to_thread.run_sync(minio.start)
    assert await cold.get("a", 0, 100) == b"x" * 100
    assert cold.health.away_s is None


async def test_readers_of_a_rotten_pack_get_500_and_the_log_names_it(
    tmp_path: Path, minio: MinioServer, bucket: str
) -> None:
    cold: ColdConfig = in_minio(minio, bucket)
    # One record, so one pack: MinIO keeps small objects in the file that lists them.
    bodies = [Random(1).randbytes(480_000)]
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        await write(http, "/v1/stream/rotten", bodies, "application/octet-stream")
        await until_cold(server)
        rotten = minio.client().list_objects(bucket, recursive=True)
        names = [item.object_name or "" for item in rotten if ".pack" in (item.object_name or "")]
        await write(http, "/v1/stream/whole", bodies, "application/octet-stream")
        await until_cold(server)
    for name in names:
        for path in minio.files_of(bucket, name):
            if path.name != "xl.meta":
                flip(path)
    with capture_logs() as told:
        async with serving(tmp_path, cold=cold) as server, server.client() as http:
            for _ in range(3):
                answer = await http.get("/v1/stream/rotten")
                assert code(answer) == (500, "COLD_DATA_DAMAGED")
            assert await all_of(http, "/v1/stream/whole", 1_000_000) == b"".join(bodies)
            metrics = (await http.get("/metrics")).text
            found = re.search(r'streamd_cold_total{what="damaged_reads"} (\d+)', metrics)
            assert found is not None
            assert int(found[1]) >= 3
            assert "streamd_cold_unavailable 0" in metrics
    damaged = [one for one in told if one["event"] == "records in the cold store are damaged"]
    assert [one["object"] in names for one in damaged] == [True]


@pytest.mark.long
async def test_verify_continues_after_rotten_objects_and_names_them_all(
    tmp_path: Path, minio: MinioServer, bucket: str
) -> None:
    cold = in_minio(minio, bucket)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        for name in ("a", "b", "c"):
            await write(http, f"/v1/stream/{name}", [Random(1).randbytes(300_000)], "x/y")
            await until_cold(server)
            await archived(server.node)
    objects = [item.object_name or "" for item in minio.client().list_objects(bucket, "", True)]
    # Small objects are in xl.meta; when that is damaged, MinIO does not even list them.
    large = [name for name in objects if minio.files_of(bucket, name)[0].name == "part.1"]
    packs = [name for name in large if name.endswith(".pack")]
    segments = [name for name in large if name.endswith(".segment")]
    rotten = [*packs[:2], segments[-1]]
    for name in rotten:
        flip(minio.files_of(bucket, name)[0])
    command = [sys.executable, "-m", "streamd", "backup", "verify", "--from", f"s3://{bucket}"]
    environment = {
        **os.environ,
        "STREAMD_COLD_S3_ENDPOINT": minio.endpoint,
        "STREAMD_COLD_S3_ACCESS_KEY_ID": minio.access_key_id,
        "STREAMD_COLD_S3_SECRET_ACCESS_KEY": minio.secret_access_key,
    }
    done = await trio.run_process(command, capture_stdout=True, check=False, env=environment)
    assert done.returncode == 1
    told = done.stdout.decode()
    for name in rotten:
        assert name in told
