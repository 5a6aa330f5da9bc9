"""``/cluster/stream``: what a node knows of a stream besides its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from streamd.http.admin.streams import MAX_PRODUCERS
from tests.http.serving import serving

TEXT = {"Content-Type": "text/plain"}


async def inside(client: httpx.AsyncClient, path: str) -> Any:
    answer = await client.get("/cluster/stream", params={"stream_path": path})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_producers_and_their_last_requests(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        for name in ("a", "b"):
            await client.put(f"/v1/stream/made/{name}", headers=TEXT)
        for number in range(MAX_PRODUCERS + 1):
            stamp = {"Producer-Id": f"p{number:03}", "Producer-Epoch": "2", "Producer-Seq": "0"}
            await client.post("/v1/stream/made/a", headers={**TEXT, **stamp}, content=b"x")
        found = await inside(client, "/v1/stream/made/a")
        assert found["producers"][0] == {"id": "p000", "epoch": 2, "seq": 0}
        assert len(found["producers"]) == MAX_PRODUCERS
        assert found["more_producers"]
        assert (found["hot_bytes"], found["cold_bytes"]) == (MAX_PRODUCERS + 1, 0)
        other = await inside(client, "/v1/stream/made/b")
        assert (other["producers"], other["more_producers"]) == ([], False)


async def test_what_a_stream_was_forked_from(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await client.put("/v1/stream/tree/a", headers=TEXT, content=b"one")
        for source, fork in (("a", "b"), ("b", "c")):
            headers = {**TEXT, "Stream-Forked-From": f"/v1/stream/tree/{source}"}
            await client.put(f"/v1/stream/tree/{fork}", headers=headers)
            await client.post(f"/v1/stream/tree/{fork}", headers=TEXT, content=b"more")
        found = await inside(client, "/v1/stream/tree/c")
        assert found["sources"] == [
            {"name": "tree/a", "end_record": 1},
            {"name": "tree/b", "end_record": 2},
        ]
        assert (found["forks"], found["hot_bytes"]) == (0, len(b"more"))
        assert (await inside(client, "/v1/stream/tree/a"))["forks"] == 1

        await client.delete("/v1/stream/tree/a")
        await client.put("/v1/stream/tree/a", headers=TEXT)
        found = await inside(client, "/v1/stream/tree/b")
        assert found["sources"] == [{"name": None, "end_record": 0}]


async def test_what_is_no_stream_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        for path, status, code in (
            ("/v1/stream/no/such", 404, "STREAM_NOT_FOUND"),
            ("/tree/no", 404, "STREAM_NOT_FOUND"),
            ("", 400, "INVALID_REQUEST"),
            ("/tree", 400, "INVALID_REQUEST"),
            ("/cluster/status", 400, "INVALID_REQUEST"),
        ):
            answer = await client.get("/cluster/stream", params={"stream_path": path})
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), path
