"""A server with a cold store: what clients see of bytes that are only there."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import httpx
import pytest
import trio

import streamd
from streamd.config.settings import ColdConfig
from streamd.http.door.connection_task import ConnectionTask
from streamd.streams import keys
from streamd.tiering import eviction
from tests.http.serving import Serving, serving, until
from tests.support.directories import sizes
from tests.support.minio import MinioServer

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
SMALL: dict[str, Any] = {"pack_bytes": 64 * 1024, "flush_after_ms": 100, "hot_keep_bytes": 1}


@pytest.fixture(params=["fs", pytest.param("s3", marks=pytest.mark.long)])
def cold(request: pytest.FixtureRequest, tmp_path: Path) -> ColdConfig:
    """A store with small packs, flushed and evicted at once."""
    if request.param == "fs":
        return ColdConfig(backend="fs", fs_path=str(tmp_path / "cold"), **SMALL)
    minio: MinioServer = request.getfixturevalue("minio")
    return in_minio(minio, request.getfixturevalue("bucket"))


def in_minio(minio: MinioServer, bucket: str, **settings: Any) -> ColdConfig:
    return ColdConfig(
        backend="s3",
        s3_bucket=bucket,
        s3_endpoint=minio.endpoint,
        s3_access_key_id=minio.access_key_id,
        s3_secret_access_key=minio.secret_access_key,
        **{**SMALL, **settings},
    )


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def held(server: Serving) -> list[bytes]:
    """Rows with bytes of streams and snapshots on the node's own disk."""
    store = server.node.stores.state
    rows = [
        store.scan(letter, bytes([letter[0] + 1]), limit=10)
        for letter in (keys.CHUNK, keys.BLOB_PART)
    ]
    return [key for found in rows for key, _ in found]


async def until_cold(server: Serving) -> None:
    """Wait until the node has evicted everything; its memory is cleared by a restart."""
    await until(lambda: server.node.group.state.header.hot_bytes == 0)
    await until(lambda: not held(server))


async def write(http: httpx.AsyncClient, path: str, bodies: list[bytes], kind: str) -> list[str]:
    """Make a stream; returns the offsets after the bodies."""
    headers = {"Content-Type": kind}
    assert (await http.put(path, headers=headers)).status_code == 201
    answers = [await http.post(path, content=body, headers=headers) for body in bodies]
    return [answer.headers["stream-next-offset"] for answer in answers]


LINES = [b"%05d " % number + b"x" * (number * 37 % 4000) + b"\n" for number in range(60)]
MESSAGES = [json.dumps([{"n": n}, {"m": n}]).encode() for n in range(40)]


async def all_of(http: httpx.AsyncClient, path: str, max_bytes: int = 10_000) -> bytes:
    """The whole content, a piece after the other."""
    content, offset = b"", "-1"
    while True:
        answer = await http.get(path, params={"offset": offset, "max_bytes": max_bytes})
        assert answer.status_code == 200, answer.text
        if path.endswith("json"):
            content += answer.content[1:-1] + b","
        else:
            content += answer.content
        offset = answer.headers["stream-next-offset"]
        if "stream-up-to-date" in answer.headers:
            return content


async def test_evicted_bytes_free_disk_space(
    tmp_path: Path, cold: ColdConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "COMPACT_BYTES", 1024 * 1024)
    bodies = [Random(number).randbytes(512 * 1024) for number in range(24)]
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        await write(http, "/v1/stream/large", bodies, "application/octet-stream")
        await until_cold(server)
        state = server.node.stores.data_dir.state
        await until(lambda: sum(sizes(state, "*.ldb").values()) < 3_000_000)


# -- reading ----------------------------------------------------------------------------------


async def test_readers_do_not_notice_where_the_bytes_are(tmp_path: Path, cold: ColdConfig) -> None:
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        ends = await write(http, "/v1/stream/text", LINES, "text/plain")
        await write(http, "/v1/stream/json", MESSAGES, "application/json")
        expected = [await all_of(http, f"/v1/stream/{name}") for name in ("text", "json")]
        assert expected[0] == b"".join(LINES)
        one_record = f"/v1/stream/text?offset={ends[3]}&max_bytes=1"
        etag = (await http.get(one_record)).headers["etag"]
        await until_cold(server)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        assert held(server) == []
        for max_bytes in (1, 5_000, 1_000_000):
            found = [await all_of(http, f"/v1/stream/{n}", max_bytes) for n in ("text", "json")]
            assert found == expected
        for number, end in enumerate(ends[:-1]):
            answer = await http.get(f"/v1/stream/text?offset={end}&max_bytes=1")
            assert answer.content == LINES[number + 1]
        assert (await http.get(one_record)).headers["etag"] == etag
        polled = await http.get(f"/v1/stream/text?offset={ends[58]}&live=long-poll")
        assert polled.content == LINES[59]
        record, _, byte = ends[3].partition("_")
        wrong = f"{record}_{int(byte) - 1:016d}"
        assert code(await http.get(f"/v1/stream/text?offset={wrong}")) == (400, "INVALID_OFFSET")


async def test_a_cold_read_is_twelve_calls_deep_at_most(tmp_path: Path) -> None:
    cold = ColdConfig(backend="fs", fs_path=str(tmp_path / "cold"), **SMALL)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        await write(http, "/v1/stream/text", LINES, "text/plain")
        await until_cold(server)
    package = str(Path(streamd.__file__).parent)
    deepest: list[str] = []

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal deepest
        if event == "call" and _serves_a_request():
            stack: list[str] = []
            at: FrameType | None = frame
            while at is not None:
                if at.f_code.co_filename.startswith(package):
                    stack.insert(0, at.f_code.co_qualname)
                at = at.f_back
            deepest = max(deepest, stack, key=len)

    async with serving(tmp_path, cold=cold) as server, server.connect() as client:
        sys.setprofile(note)
        try:
            await client.send(b"GET /v1/stream/text?max_bytes=9999 HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await client.read_response()
        finally:
            sys.setprofile(None)
        assert b"".join(LINES).startswith(answer.body)
        assert answer.body
        assert server.node.cold_tier is not None
        assert server.node.cold_tier.reader.misses, "it was read from the cold store"
    assert deepest[0] == ConnectionTask.run.__qualname__
    assert len(deepest) <= 12, deepest


def _serves_a_request() -> bool:
    try:
        return ConnectionTask.run.__qualname__ in trio.lowlevel.current_task().name
    except RuntimeError:  # no task runs
        return False


async def test_events_lead_from_cold_records_to_new_ones(tmp_path: Path, cold: ColdConfig) -> None:
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        ends = await write(http, "/v1/stream/text", LINES, "text/plain")
        await until_cold(server)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        async with server.connect() as reader:
            path = f"/v1/stream/text?offset={ends[5]}&live=sse"
            await reader.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
            assert (await reader.read_head()).status == 200
            old = await reader.read_through(b"00059 ")
            await http.post("/v1/stream/text", content=b"news", headers=TEXT)
            new = await reader.read_through(b"news")
        lines = [line for line in (old + new).split(b"\n") if line.startswith(b"data:0")]
        assert len(lines) == 54
        assert await all_of(http, "/v1/stream/text") == b"".join(LINES) + b"news"


async def test_a_fork_may_begin_in_evicted_bytes(tmp_path: Path, cold: ColdConfig) -> None:
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        ends = await write(http, "/v1/stream/text", LINES, "text/plain")
        messages = await write(http, "/v1/stream/json", MESSAGES, "application/json")
        await until_cold(server)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:

        async def fork(name: str, source: str, offset: str, sub: int) -> httpx.Response:
            headers = {
                "Stream-Forked-From": f"/v1/stream/{source}",
                "Stream-Fork-Offset": offset,
                "Stream-Fork-Sub-Offset": str(sub),
            }
            return await http.put(f"/v1/stream/{name}", headers=headers)

        assert (await fork("a", "text", ends[9], 5)).status_code == 201
        assert await all_of(http, "/v1/stream/a") == b"".join(LINES[:10]) + LINES[10][:5]
        assert (await fork("b-json", "json", messages[1], 1)).status_code == 201
        answer = await http.get("/v1/stream/b-json")
        assert answer.json() == [{"n": 0}, {"m": 0}, {"n": 1}, {"m": 1}, {"n": 2}]
        assert code(await fork("c", "text", ends[9], 5_000)) == (400, "INVALID_OFFSET")
        wrong = ends[9][:-1] + str((int(ends[9][-1]) + 1) % 10)
        assert code(await fork("c", "text", wrong, 0)) == (400, "INVALID_OFFSET")
        # The fork has bytes of its own, which go to the cold store after its source's.
        await http.post("/v1/stream/a", content=b"own", headers=TEXT)
        await http.delete("/v1/stream/text")
        await until_cold(server)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        assert await all_of(http, "/v1/stream/a") == b"".join(LINES[:10]) + LINES[10][:5] + b"own"


async def test_snapshots_and_bootstrap_read_evicted_bytes(tmp_path: Path, cold: ColdConfig) -> None:
    state = bytes(range(256)) * 3000  # several parts
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        assert (await http.put("/bucket")).status_code == 201
        ends = await write(http, "/bucket/s", LINES, "text/plain")
        await until_cold(server)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        wrong = ends[9][:-1] + str((int(ends[9][-1]) + 1) % 10)
        refused = await http.put(f"/bucket/s/snapshot/{wrong}", content=state, headers=TEXT)
        assert code(refused) == (400, "INVALID_OFFSET")
        done = await http.put(f"/bucket/s/snapshot/{ends[9]}", content=state, headers=TEXT)
        assert done.status_code == 204, done.text
        await until_cold(server)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        assert (await http.get(f"/bucket/s/snapshot/{ends[9]}")).content == state
        answer = await http.get("/bucket/s/bootstrap")
        boundary = answer.headers["content-type"].partition("boundary=")[2].encode()
        parts = (b"\r\n" + answer.content).split(b"\r\n--" + boundary)[1:-1]
        bodies = [part.partition(b"\r\n\r\n")[2] for part in parts]
        assert bodies == [state, *LINES[10:]]
        assert code(await http.get(f"/bucket/s?offset={ends[2]}")) == (410, "STREAM_OFFSET_GONE")


async def test_a_stream_takes_appends_while_it_is_flushed(tmp_path: Path, cold: ColdConfig) -> None:
    expected = b""
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        await http.put("/v1/stream/s", headers=TEXT)
        for number in range(300):
            body = b"%d," % number * 400
            assert (await http.post("/v1/stream/s", content=body, headers=TEXT)).status_code == 204
            expected += body
            if number == 150:
                await until(lambda: server.node.group.state.header.flushed_bytes > 0)
        assert await all_of(http, "/v1/stream/s", 100_000) == expected
        await until_cold(server)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        assert await all_of(http, "/v1/stream/s", 100_000) == expected


@pytest.mark.long
async def test_many_small_streams_share_a_few_packs(tmp_path: Path) -> None:
    root = tmp_path / "cold"
    # Nothing is due until the flush is requested, however long the writing takes.
    cold = ColdConfig(backend="fs", fs_path=str(root), **{**SMALL, "flush_after_ms": 10**9})
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        for number in range(200):
            await http.put(f"/v1/stream/{number}", content=b"%d" % number, headers=TEXT)
        server.node.flusher.ask()
        await until_cold(server)
        assert len(list(root.rglob("*.pack"))) == 1
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        for number in range(200):
            assert (await http.get(f"/v1/stream/{number}")).content == b"%d" % number


# -- damage and outages -----------------------------------------------------------------------


def flip(pack: Path) -> None:
    content = bytearray(pack.read_bytes())
    content[len(content) // 3] ^= 4
    pack.write_bytes(content)


@pytest.mark.parametrize("damage", [Path.unlink, flip])
async def test_damage_is_an_error_and_never_wrong_bytes(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    root = tmp_path / "cold"
    cold = ColdConfig(backend="fs", fs_path=str(root), **SMALL)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        await http.put("/bucket")
        await write(http, "/bucket/s", [b"x" * 1000], "text/plain")
        await until_cold(server)
    [pack] = root.rglob("*.pack")
    damage(pack)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        assert code(await http.get("/bucket/s")) == (500, "COLD_DATA_DAMAGED")
        assert code(await http.get("/bucket/s?live=sse&offset=-1")) == (500, "COLD_DATA_DAMAGED")
        assert server.node.cold_tier is not None
        assert server.node.cold_tier.reader.damaged == 2
        # Reads that do not need it succeed.
        assert (await http.post("/bucket/s", content=b"y", headers=TEXT)).status_code == 204
        assert (await http.get("/bucket/s?offset=now")).status_code == 200


async def test_damage_in_the_store_is_harmless_while_the_node_has_the_bytes(tmp_path: Path) -> None:
    root = tmp_path / "cold"
    cold = ColdConfig(backend="fs", fs_path=str(root), **{**SMALL, "hot_keep_bytes": 1 << 30})
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        await write(http, "/v1/stream/s", [b"x" * 1000], "text/plain")
        await until(lambda: server.node.group.state.header.hot_bytes == 0)
    shutil.rmtree(root)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        assert (await http.get("/v1/stream/s")).content == b"x" * 1000


@pytest.mark.long
async def test_bytes_are_refused_at_the_hot_limit_until_the_store_is_back(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, minio: MinioServer, bucket: str
) -> None:
    cold = in_minio(minio, bucket, hot_limit_bytes=200_000, timeout_ms=2_000)
    path = "/v1/stream/s"
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        await http.put(path, headers=TEXT)
        await http.post(path, content=b"old", headers=TEXT)
        await until_cold(server)
        minio.kill()
        try:
            written = 1
            while True:
                answer = await http.post(path, content=b"x" * 10_000, headers=TEXT)
                if answer.status_code != 204:
                    break
                written += 1
                assert written < 100
            assert code(answer) == (503, "UNAVAILABLE")
            assert int(answer.headers["retry-after"]) >= 1
            # Commands without bytes are accepted, and local bytes are read.
            assert (await http.put("/v1/stream/t", headers=TEXT)).status_code == 201
            assert len((await http.get(path)).content) == 3 + 10_000 * (written - 1)
        finally:
            await trio.to_thread.run_sync(minio.start)
        await until(lambda: not server.node.group.admission.is_full)
        assert (await http.post(path, content=b"new", headers=TEXT)).status_code == 204
        await until_cold(server)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        content = await all_of(http, path)
        assert content == b"old" + b"x" * 10_000 * (written - 1) + b"new"


async def test_an_outage_is_503_for_cold_bytes_only(
    tmp_path: Path, minio: MinioServer, bucket: str
) -> None:
    cold = in_minio(minio, bucket, timeout_ms=2_000)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        await write(http, "/v1/stream/s", [b"x" * 1000], "text/plain")
        await until_cold(server)
    minio.kill()
    try:
        # It starts without the store, and serves what it has.
        async with serving(tmp_path, cold=cold) as server, server.client() as http:
            answer = await http.get("/v1/stream/s")
            assert code(answer) == (503, "COLD_UNAVAILABLE")
            assert answer.headers["retry-after"] == "5"
            await http.put("/v1/stream/t", content=b"hot", headers=TEXT)
            assert (await http.get("/v1/stream/t")).content == b"hot"
            await trio.to_thread.run_sync(minio.start)
            assert (await http.get("/v1/stream/s")).content == b"x" * 1000
    finally:
        minio.kill()
        await trio.to_thread.run_sync(minio.start)


async def test_an_operator_sees_the_cold_status(cold: ColdConfig, tmp_path: Path) -> None:
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        await write(http, "/v1/stream/a", LINES, "text/plain")
        await until_cold(server)
        command = [sys.executable, "-m", "streamd", "cold", "--url", server.url, "status"]
        told = (await trio.run_process(command, capture_stdout=True)).stdout.decode()
    assert "packs" in told
    assert "through entry" in told
