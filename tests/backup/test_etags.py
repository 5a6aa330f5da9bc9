"""ETags do not outlive the history that issued them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import httpx

from streamd.backup.base import Choice
from streamd.config.settings import ColdConfig
from streamd.process.threads import in_thread
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.tier import open_cold
from tests.backup.test_archive import archived
from tests.http.serving import serving
from tests.support.archived import restored

TEXT = {"Content-Type": "text/plain"}
STREAM = "/v1/stream/s"


async def store_of(config: ColdConfig, data: Path) -> AsyncObjectStore:
    return await open_cold(config, data, run_blocking=in_thread, random=Random(3))


async def tags(http: httpx.AsyncClient) -> set[str]:
    """Everything that a client can read of the stream."""
    answers = [await http.head(STREAM), await http.get(STREAM)]
    return {answer.headers["etag"] for answer in answers}


async def test_no_earlier_tag_matches_other_bytes_after_a_restore(tmp_path: Path) -> None:
    config = ColdConfig(backend="fs", fs_path=str(tmp_path / "store"))
    old: set[str] = set()
    async with serving(tmp_path / "lost", cold=config) as server, server.client() as http:
        await http.put(STREAM, headers=TEXT)
        await http.post(STREAM, headers=TEXT, content=b"kept")
        kept_index = server.node.group.state.header.applied_index
        old |= await tags(http)
        appended = await http.post(STREAM, headers=TEXT, content=b"lost")
        old |= {appended.headers["etag"]} | await tags(http)
        await archived(server.node)
    cold = await store_of(config, tmp_path)
    data = tmp_path / "restored" / "data"
    data.parent.mkdir()
    await restored(cold, data, Choice(index=kept_index))

    async with serving(tmp_path / "restored", cold=config) as server, server.client() as http:
        again = await http.post(STREAM, headers=TEXT, content=b"new!")
        assert again.headers["stream-next-offset"] == appended.headers["stream-next-offset"]
        for tag in old:
            for method in ("GET", "HEAD"):
                answer = await http.request(method, STREAM, headers={"If-None-Match": tag})
                assert answer.status_code == 200, (method, tag)
            for method in ("POST", "PUT", "DELETE"):
                body = b"x" if method == "POST" else b""
                headers = {**TEXT, "If-Match": tag}
                answer = await http.request(method, STREAM, headers=headers, content=body)
                assert answer.status_code == 412, (method, tag)
                assert answer.headers["etag"] == again.headers["etag"]
        assert (await http.get(STREAM)).content == b"keptnew!"
        fresh = {again.headers["etag"]} | await tags(http)
        assert len(fresh) == 1
        for tag in fresh:
            assert (await http.get(STREAM, headers={"If-None-Match": tag})).status_code == 304
            headers = {**TEXT, "If-Match": tag}
            assert (await http.post(STREAM, headers=headers, content=b"x")).status_code == 204


async def test_each_restore_gives_its_own_tags(tmp_path: Path) -> None:
    config = ColdConfig(backend="fs", fs_path=str(tmp_path / "store"))
    found: set[str] = set()
    async with serving(tmp_path / "lost", cold=config) as server, server.client() as http:
        await http.put(STREAM, headers=TEXT, content=b"x")
        found |= await tags(http)
        await archived(server.node)
        cluster_id = server.node.stores.data_dir.identity.cluster_id
    cold = await store_of(config, tmp_path)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        await restored(cold, tmp_path / name / "data", Choice(cluster_id=cluster_id))
        async with serving(tmp_path / name, cold=config) as server, server.client() as http:
            before = len(found)
            found |= await tags(http)
            assert len(found) == before + 1
