"""Buckets over HTTP: every status of sections 1.1 to 1.6 of the extensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from streamd.group import state_flusher
from tests.http.serving import Serving, serving, until

TEXT = {"Content-Type": "text/plain"}


async def make(client: httpx.AsyncClient, *paths: str, **headers: str) -> None:
    for path in paths:
        made = await client.put(path, headers={**TEXT, **headers})
        assert made.status_code == 201, (path, made.text)


async def listed(client: httpx.AsyncClient, path: str) -> list[str]:
    found = (await client.get(path)).json()["streams"]
    return [stream["stream_id"] for stream in found]


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


# -- 1.1 identifiers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["abc", "a" * 65, "Bucket", "buck.et", "b%C3%A9ta", "a%2Fbcd", "_default", "__ds",
             "healthz%20", "admin", "buck%65t%00"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
async def test_1_1_a_bad_bucket_id_is_400(name: str, method: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        for path in (f"/{name}", f"/{name}/streams", f"/{name}/s"):
            assert (await client.request(method, path)).status_code == 400, path


async def test_1_1_the_stream_id_streams_is_reserved(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(client, "/bucket")
        for method in ("PUT", "POST", "DELETE"):
            for path in ("/bucket/streams", "/bucket/%73treams"):
                refused = await client.request(method, path, headers=TEXT, content=b"x")
                assert code(refused) == (400, "INVALID_STREAM_ID")
        assert code(await client.post("/bucket/streams/append-batch"))[0] == 400


async def test_1_1_bucket_and_stream_ids_have_122_bytes_together(tmp_path: Path) -> None:
    bucket = "b" * 60
    async with serving(tmp_path) as server, server.client() as client:
        await make(client, f"/{bucket}", f"/{bucket}/" + "s" * 61, f"/{bucket}/" + "%C3%A9" * 30)
        for name in ("s" * 62, "%C3%A9" * 31):
            refused = await client.put(f"/{bucket}/{name}", headers=TEXT)
            assert code(refused) == (400, "INVALID_STREAM_ID")


# -- all buckets ----------------------------------------------------------------------------------


async def test_all_buckets_are_listed_in_pages_also_those_that_paths_created(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(
            client, "/agents", "/agents/a", "/agents/b", "/v1/stream/chat", "/v1/stream/ab/x"
        )
        first = (await client.get("/?limit=2")).json()
        assert [(one["bucket_id"], one["streams"]) for one in first["buckets"]] == [
            ("_default", 1),
            ("ab", 1),
        ]
        assert (first["has_more"], first["next_cursor"]) == (True, "ab")
        assert first["buckets"][0]["created_at_ms"] > 0
        rest = (await client.get("/?limit=2&after=ab")).json()
        assert [one["bucket_id"] for one in rest["buckets"]] == ["agents"]
        assert (rest["has_more"], rest["next_cursor"]) == (False, None)
        found = (await client.get("/?prefix=ag&consistency=local")).json()
        assert [one["bucket_id"] for one in found["buckets"]] == ["agents"]
        assert (await client.head("/")).status_code == 200
        assert code(await client.get("/?limit=0")) == (400, "INVALID_REQUEST")
        assert code(await client.put("/")) == (405, "METHOD_NOT_ALLOWED")


async def test_a_page_of_buckets_has_what_was_acknowledged(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        for number in range(5):
            await make(client, f"/bucket-{number}")
            assert len((await client.get("/")).json()["buckets"]) == number + 1


@pytest.mark.parametrize(
    ("path", "bucket"),
    [("/v1/stream/chat", "_default"), ("/v1/stream/ab/chat", "ab"),
     ("/v1/stream/Caf%C3%A9%20x/chat", "Caf%C3%A9%20x"), ("/v1/stream/admin/chat", "admin")],
)  # fmt: skip
async def test_streams_are_listed_whatever_the_name_of_their_bucket(
    path: str, bucket: str, tmp_path: Path
) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(client, path)
        assert await listed(client, f"/{bucket}/streams") == ["chat"]
        [stream] = (await client.get(f"/{bucket}/streams")).json()["streams"]
        assert (await client.get(stream["path"])).status_code == 200
        assert code(await client.get(f"/{bucket}")) == (400, "INVALID_BUCKET_ID")


# -- 1.2 create, 1.3 look at, 1.5 delete ----------------------------------------------------------


async def test_1_2_201_when_a_bucket_is_created_409_when_it_exists(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        made = await client.put("/bucket")
        assert (made.status_code, made.headers["location"]) == (201, f"{server.url}/bucket")
        assert code(await client.put("/bucket")) == (409, "BUCKET_EXISTS")


async def test_1_2_a_stream_does_not_create_its_bucket(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        assert code(await client.put("/nowhere/s")) == (404, "BUCKET_NOT_FOUND")
        assert (await client.get("/nowhere")).status_code == 404


async def test_1_3_200_with_the_number_of_streams(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(client, "/bucket")
        for count, path in enumerate(("/bucket/a", "/bucket/b", "/v1/stream/bucket/c/d")):
            body = (await client.get("/bucket")).json()
            assert (body["bucket_id"], body["streams"]) == ("bucket", count)
            assert body["created_at_ms"] > 0
            await make(client, path)
        await client.delete("/bucket/a")
        assert (await client.get("/bucket")).json()["streams"] == 2
        assert (await client.head("/bucket")).status_code == 200


async def test_1_3_deleted_streams_that_forks_keep_are_not_counted(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(client, "/bucket", "/other", "/bucket/s")
        await make(client, "/other/f", **{"Stream-Forked-From": "/bucket/s"})
        await client.delete("/bucket/s")
        assert (await client.get("/bucket")).json()["streams"] == 0
        assert await listed(client, "/bucket/streams") == []
        assert code(await client.delete("/bucket")) == (409, "BUCKET_NOT_EMPTY")
        await client.delete("/other/f")
        assert (await client.delete("/bucket")).status_code == 204


async def test_1_3_404_when_there_is_no_bucket(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        assert code(await client.get("/nowhere")) == (404, "BUCKET_NOT_FOUND")
        assert (await client.head("/nowhere")).status_code == 404


async def test_1_5_204_once_the_bucket_is_empty_409_before_404_after(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(client, "/bucket", "/bucket/s")
        assert code(await client.delete("/bucket")) == (409, "BUCKET_NOT_EMPTY")
        await client.delete("/bucket/s")
        gone = await client.delete("/bucket")
        assert (gone.status_code, gone.content) == (204, b"")
        assert code(await client.delete("/bucket")) == (404, "BUCKET_NOT_FOUND")
        await make(client, "/bucket", "/bucket/s")


async def test_1_5_expired_streams_do_not_keep_a_bucket(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(client, "/bucket")
        await make(client, *(f"/bucket/{n}" for n in range(5)), **{"Stream-TTL": "60"})
        server.clock.ahead_ms += 61_000
        assert (await client.delete("/bucket")).status_code == 204


async def test_1_6_404_for_every_operation_where_there_is_no_bucket(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        for method in ("PUT", "POST", "GET", "HEAD", "DELETE"):
            for condition in ({}, {"If-Match": "*"}):
                body = b"x" if method == "POST" else b""
                answer = await client.request(
                    method, "/nowhere/s", headers={**TEXT, **condition}, content=body
                )
                assert answer.status_code == 404, (method, condition)
        batch = await client.post("/nowhere/s/append-batch", headers=TEXT, content=b"\0\0\0\1x")
        assert batch.status_code == 404


# -- 1.4 list -------------------------------------------------------------------------------------


async def test_1_4_200_with_the_metadata_of_each_stream(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(client, "/bucket", "/bucket/user-1", "/bucket/other")
        tail = (await client.post("/bucket/user-1", content=b"hello", headers=TEXT)).headers
        await client.post("/bucket/other", headers={"Stream-Closed": "true"})
        answer = await client.get("/bucket/streams?prefix=user-")
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "no-store"
        body: dict[str, Any] = answer.json()
        [stream] = body.pop("streams")
        assert body == {
            "bucket_id": "bucket",
            "prefix": "user-",
            "stream_count": 1,
            "next_cursor": "user-1",
            "has_more": False,
        }
        assert 0 < stream.pop("created_at_ms") <= stream.pop("last_write_at_ms")
        assert stream == {
            "stream_id": "user-1",
            "status": "open",
            "content_type": "text/plain",
            "tail_offset": 5,
            "next_offset": tail["stream-next-offset"],
            "path": "/v1/stream/bucket/user-1",
            "etag": tail["etag"],
        }
        [other] = (await client.get("/bucket/streams?prefix=other")).json()["streams"]
        assert other["status"] == "closed"


async def test_1_4_an_empty_bucket_has_an_empty_listing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(client, "/bucket")
        body = (await client.get("/bucket/streams")).json()
        assert (body["streams"], body["has_more"], body["next_cursor"]) == ([], False, None)
        assert (await client.head("/bucket/streams")).status_code == 200


async def test_1_4_a_listing_shows_every_write_acknowledged_before(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(client, "/bucket")
        for number in range(10):
            await make(client, f"/bucket/s{number}")
            await client.post(f"/bucket/s{number}", content=b"x" * number + b"y", headers=TEXT)
            found = (await client.get("/bucket/streams")).json()["streams"]
            assert [one["tail_offset"] for one in found] == [n + 1 for n in range(number + 1)]
        for number in range(10):
            await client.delete(f"/bucket/s{number}")
            assert len(await listed(client, "/bucket/streams")) == 9 - number


async def test_1_4_pages_follow_each_other_exactly(tmp_path: Path) -> None:
    names = sorted(["a", "ab", "b c", "é", "d+e", "f%g", "h&i=j", "日本"], key=str.encode)
    async with serving(tmp_path) as server, server.client() as client:
        await make(client, "/bucket")
        for name in names:
            await make(
                client,
                str(httpx.URL(server.url, path=f"/bucket/{name}"))
                .replace(server.url, "")
                .replace("f%g", "f%25g"),
            )
        seen: list[str] = []
        query: dict[str, str] = {"limit": "3"}
        while True:
            body = (await client.get("/bucket/streams", params=query)).json()
            assert body["stream_count"] == len(body["streams"])
            seen += [stream["stream_id"] for stream in body["streams"]]
            if not body["has_more"]:
                break
            assert body["stream_count"] == 3
            query["after"] = body["next_cursor"]
        assert seen == names


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=-1", "limit=", "limit=ten", "limit=1&limit=2", "limit=1.0",
     "prefix=%FF", "after=%FF", "prefix=a&prefix=b", "consistency=some"],
)  # fmt: skip
async def test_1_4_bad_parameters_are_400(query: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(client, "/bucket")
        assert code(await client.get(f"/bucket/streams?{query}")) == (400, "INVALID_REQUEST")


async def test_1_4_404_when_there_is_no_bucket(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        assert code(await client.get("/nowhere/streams")) == (404, "BUCKET_NOT_FOUND")


async def test_1_4_an_expired_stream_is_not_listed_and_does_not_return(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(client, "/bucket", "/bucket/kept")
        await make(client, "/bucket/brief", "/bucket/read", **{"Stream-TTL": "60"})
        server.clock.ahead_ms += 50_000
        await client.get("/bucket/read")
        server.clock.ahead_ms += 15_000
        assert await listed(client, "/bucket/streams") == ["kept", "read"]
        server.clock.ahead_ms -= 65_000
        assert await listed(client, "/bucket/streams") == ["kept", "read"], "a clock set back"


async def test_1_4_odd_cursors_and_prefixes_find_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(client, "/bucket", "/bucket/m")
        for query in ("after=z", "prefix=z", "prefix=a&after=z", "prefix=m&after=m", "prefix=%00"):
            body = (await client.get(f"/bucket/streams?{query}")).json()
            assert (body["streams"], body["has_more"]) == ([], False), query
        for query in ("after=a/b", "after=%00", "prefix=&after=", "prefix=m&after=a"):
            assert await listed(client, f"/bucket/streams?{query}") == ["m"], query


async def test_listing_in_a_loop_forces_few_synced_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each listing waits until acknowledged writes are stored; concurrent listings share the
    flushes."""
    monkeypatch.setattr(state_flusher, "AWAITED_INTERVAL_S", 0.2)
    monkeypatch.setattr(state_flusher, "FLUSH_INTERVAL_S", 10.0)
    async with serving(tmp_path) as server, server.client() as client:
        await make(client, "/bucket", "/bucket/s")
        await listed(client, "/bucket/streams")
        flushes, started = server.node.group.state.flushes, trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(_write_and_list, server)
        allowed = (trio.current_time() - started) / 0.2 + 1
        assert server.node.group.state.flushes - flushes <= allowed


async def _write_and_list(server: Serving) -> None:
    async with server.client() as client:
        for _ in range(3):
            await client.post("/bucket/s", content=b"x", headers=TEXT)
            assert await listed(client, "/bucket/streams") == ["s"]


async def test_a_listing_of_stored_streams_waits_for_no_flush(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(client, "/bucket", "/bucket/s")
        await until(lambda: not server.node.group.state.unstored)
        flushes = server.node.group.state.flushes
        for _ in range(20):
            assert await listed(client, "/bucket/streams") == ["s"]
        assert server.node.group.state.flushes == flushes
