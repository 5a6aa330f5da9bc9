"""``streamd cold scrub`` reads everything in a MinIO and reports what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
import trio

from streamd.backup import scrub as scrubbing
from tests.backup.test_archive import archived
from tests.http.serving import Serving, serving
from tests.objectstore.test_bit_rot import flip
from tests.objectstore.test_serving import in_minio, until_cold, write
from tests.support import prefork
from tests.support.minio import MinioServer


class Ran(NamedTuple):
    exit_code: int
    stdout: str


async def scrub(server: Serving, *arguments: str) -> Ran:
    command = ("cold", "--url", server.url, "scrub", *arguments)
    done = await trio.to_thread.run_sync(prefork.run_text, *command)
    return Ran(done.returncode, done.stdout)


@pytest.fixture(autouse=True)
def look_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "FIRST_LOOK_S", 0.0)
    monkeypatch.setattr(scrubbing, "LOOK_INTERVAL_S", 0.0)


async def test_rotten_and_missing_objects_are_named_and_set_the_exit_status(
    tmp_path: Path, minio: MinioServer, bucket: str
) -> None:
    cold = in_minio(minio, bucket, scrub_bytes_per_s=10**9)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        for name in ("a", "b"):
            await write(http, f"/v1/stream/{name}", [Random(1).randbytes(300_000)], "x/y")
            await until_cold(server)
        await archived(server.node)
        well = await scrub(server, "start", "--wait", "--json")
        assert well.exit_code == 0
        assert json.loads(well.stdout)["passes"] == 1

        objects = minio.client().list_objects(bucket, recursive=True)
        packs = [one.object_name or "" for one in objects if ".pack" in (one.object_name or "")]
        flip(minio.files_of(bucket, packs[0])[0])
        for one in minio.client().list_objects(bucket, recursive=True):
            if one.object_name != packs[0]:
                minio.client().remove_object(bucket, one.object_name or "")
        found = await scrub(server, "start", "--wait")
        assert found.exit_code == 1
        for name in packs:
            assert name in found.stdout
        assert "entries 1 to " in found.stdout
        told = json.loads((await scrub(server, "status", "--json")).stdout)
        assert (told["damaged"], told["missing_objects"]) == (packs[:1], len(packs))
        metrics = (await http.get("/metrics")).text
        assert f"streamd_cold_missing_objects {len(packs)}" in metrics
        assert "streamd_cold_damaged_objects 1" in metrics
