"""A MinIO that accepts requests and no longer answers them."""

from __future__ import annotations

from pathlib import Path

import httpx
import trio
from msgspec.structs import replace
from structlog.testing import capture_logs

from tests.http.serving import Serving, serving, until
from tests.objectstore.test_serving import code, in_minio, until_cold
from tests.support.minio import MinioServer
from tests.support.s3_proxy import Fault, S3Proxy

STREAMS = 12
TEXT = {"Content-Type": "text/plain"}


async def get_all(server: Serving) -> list[httpx.Response]:
    """Read all streams at once."""
    answers: list[httpx.Response] = []
    async with server.client() as http, trio.open_nursery() as nursery:

        async def get(number: int) -> None:
            answers.append(await http.get(f"/v1/stream/{number}"))

        for number in range(STREAMS):
            nursery.start_soon(get, number)
    return answers


async def test_readers_of_a_hung_store_get_503_and_are_served_when_it_answers_again(
    tmp_path: Path, minio: MinioServer, bucket: str, proxy: S3Proxy
) -> None:
    settings = {"timeout_ms": 1500, "max_requests": 2, "cache_bytes": 1}
    cold = replace(in_minio(minio, bucket, **settings), s3_endpoint=proxy.endpoint)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        for number in range(STREAMS):
            await http.put(f"/v1/stream/{number}", content=b"%d" % number, headers=TEXT)
        await until_cold(server)
    with capture_logs() as told:
        async with serving(tmp_path, cold=cold) as server, server.client() as http:
            assert server.node.cold_tier is not None
            health = server.node.cold_tier.cold.health
            proxy.fail_all(Fault.LATE)
            for _ in range(2):
                for answer in await get_all(server):
                    assert code(answer) == (503, "COLD_UNAVAILABLE")
                    assert int(answer.headers["retry-after"]) > 0
            status = (await http.get("/cluster/cold")).json()
            assert status["unavailable_ms"] > 0
            assert "streamd_cold_unavailable 1" in (await http.get("/metrics")).text
            assert (await http.put("/v1/stream/new", headers=TEXT)).status_code == 201
            proxy.heal()
            await until(lambda: health.away_s is None)
            assert [answer.status_code for answer in await get_all(server)] == [200] * STREAMS
            assert (await http.get("/cluster/cold")).json()["unavailable_ms"] is None
    events = [one["event"] for one in told]
    assert events.count("the cold store does not answer") == 1
    assert events.count("the cold store answers again") == 1
