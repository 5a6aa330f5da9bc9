"""Stalled readers while the bytes they read leave the store: never wrong bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import httpx
import pytest

from streamd.config.settings import ColdConfig
from tests.http.serving import RawClient, Serving, serving, until

TEXT = {"Content-Type": "text/plain"}
KEPT = "/bucket/kept"
OTHER = "/bucket/other"
# More in total than the kernel buffers for a reader that takes nothing.
PAIRS = 24
LINES = 44_000


@cache
def content() -> list[bytes]:
    """What each append brings, each line another. Not made before a test wants it."""
    return [b"".join(b"%02d %05d\n" % (pair, n) for n in range(LINES)) for pair in range(PAIRS)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cold"


@asynccontextmanager
async def all_cold(tmp_path: Path, root: Path) -> AsyncIterator[tuple[Serving, list[str]]]:
    """A server with two streams in packs that hold some of both; and the offsets of the first."""
    cold = ColdConfig(
        backend="fs",
        fs_path=str(root),
        # A pair fills a pack, of which less than half is what is kept.
        pack_bytes=1024 * 1024,
        flush_after_ms=1_000_000,
        hot_keep_bytes=1,
        cache_bytes=1,
        gc_interval_ms=50,
        gc_grace_ms=200,
        # Restore points are removed as soon as there is a newer one, which is soon.
        archive_retention_hours=0.00001,
        snapshot_interval_minutes=0.003,
    )
    offsets = []
    async with serving(tmp_path, cold=cold) as server:
        async with server.client() as http:
            await http.put("/bucket")
            for path in (KEPT, OTHER):
                await http.put(path, headers=TEXT)
            for body in content():
                answer = await http.post(KEPT, content=body, headers=TEXT)
                offsets.append(answer.headers["stream-next-offset"])
                await http.post(OTHER, content=b"x" * 700_000, headers=TEXT)
                assert server.node.cold_tier is not None
                server.node.cold_tier.run_now()
                await until(lambda: server.node.group.state.header.hot_bytes == 0)
            await until(lambda: server.node.evictor.held_bytes == 0)
            server.node.group.state.tails.__init__(1)
        yield server, offsets


def packs_in(root: Path) -> set[Path]:
    return set(root.rglob("*.pack"))


async def until_gone(server: Serving, packs: set[Path]) -> None:
    """Wait until packs are removed; writes meanwhile make older restore points removable."""
    async with server.client() as http:
        await http.put("/bucket/busy", headers=TEXT)
        while any(pack.exists() for pack in packs):
            assert (await http.post("/bucket/busy", content=b"x", headers=TEXT)).is_success
            assert server.node.cold_tier is not None
            server.node.cold_tier.run_now()
            await rounds(server, 1)


async def rounds(server: Serving, count: int) -> None:
    wanted = server.node.cold_gc.ended + count
    await until(lambda: server.node.cold_gc.ended >= wanted)


async def events(client: RawClient, seen: bytes) -> tuple[bytes, bool]:
    """The data of events up to the end of the response or of the stream; whether that is all."""
    text = seen
    try:
        while chunk := await client.read_chunk():
            text += chunk
            if b'"upToDate":true' in chunk:
                break
    except AssertionError:
        pass  # The connection broke, visibly to the reader.
    blocks = [one for one in text.split(b"\n\n")[:-1] if one.startswith(b"event: data")]
    data = b""
    for block in blocks:
        lines = block.split(b"\n")[1:]
        data += b"\n".join(line.removeprefix(b"data:") for line in lines)
    return data, b'"upToDate":true' in text


async def delete(http: httpx.AsyncClient, offsets: list[str]) -> None:
    assert (await http.delete(KEPT)).is_success
    assert (await http.delete(OTHER)).is_success


async def trim(http: httpx.AsyncClient, offsets: list[str]) -> None:
    path = f"{KEPT}/snapshot/{offsets[-1]}"
    assert (await http.put(path, content=b"all", headers=TEXT)).is_success
    assert (await http.delete(OTHER)).is_success


async def empty(http: httpx.AsyncClient, offsets: list[str]) -> None:
    assert (await http.delete(OTHER)).is_success


@pytest.mark.parametrize(
    "remove",
    [
        delete,
        pytest.param(trim, marks=pytest.mark.long),
        pytest.param(empty, marks=pytest.mark.long),
    ],
)
async def test_a_tail_of_a_stalled_reader_continues_or_ends(
    tmp_path: Path, root: Path, remove: Callable[..., object]
) -> None:
    async with all_cold(tmp_path, root) as (server, offsets):
        packs = packs_in(root)
        async with server.connect(receive_buffer=4096) as client, server.client() as http:
            await client.send(b"GET /bucket/kept?offset=-1&live=sse HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await client.read_head()).status == 200
            first = await client.read_chunk()
            await remove(http, offsets)
            await until_gone(server, packs)
            data, is_all = await events(client, first)
            assert data
            whole = b"".join(content())
            assert whole.startswith(data)
            assert is_all == (remove is empty)
            if is_all:
                assert data == whole
            else:
                assert len(data) < len(whole)
        assert server.node.cold_tier is not None
        assert not server.node.cold_tier.reader.damaged


async def test_bytes_of_a_bootstrap_stay_until_it_ends(tmp_path: Path, root: Path) -> None:
    async with all_cold(tmp_path, root) as (server, offsets):
        packs = packs_in(root)
        async with server.connect(receive_buffer=4096) as client, server.client() as http:
            await client.send(b"GET /bucket/kept/bootstrap HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await client.read_head()
            assert head.status == 200
            first = await client.read_chunk()
            await delete(http, offsets)
            # The slices of those packs have moved, but a reader still finds them.
            await until_gone(server, packs)
            await rounds(server, 10)
            assert packs_in(root)
            body = first
            while chunk := await client.read_chunk():
                body += chunk
            boundary = head.headers["content-type"].partition("boundary=")[2].encode()
            parts = (b"\r\n" + body).split(b"\r\n--" + boundary)[1:-1]
            records = [part.partition(b"\r\n\r\n")[2] for part in parts][1:]
            assert records == content()
        moved = packs_in(root)
        await until_gone(server, moved)
