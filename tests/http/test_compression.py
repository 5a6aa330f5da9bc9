"""Compression of answers: when it is used, and its effect on tags and caches."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import trio
import zstandard

from streamd.http.protocol import compression
from streamd.http.protocol.compression import LEAST_BYTES, choose, pays
from tests.http.serving import Serving, serving

TEXT = {"Content-Type": "text/plain"}
STREAM = "/v1/stream/s"
LONG = b"all work and no play " * 200

DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": lambda body: zstandard.ZstdDecompressor().decompress(body),
    "gzip": lambda body: zlib.decompress(body, 31),
    "deflate": zlib.decompress,
}


async def fetch(
    server: Serving, path: str = STREAM, **headers: str
) -> tuple[httpx.Response, bytes]:
    """A response and its body as received, requested with `headers` alone."""
    async with server.client(headers={"Accept-Encoding": ""}) as client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with client.stream("GET", path, headers=named) as response:
            return response, b"".join([piece async for piece in response.aiter_raw()])


async def put(server: Serving, body: bytes = LONG, path: str = STREAM, **headers: str) -> None:
    async with server.client() as client:
        made = await client.put(path, content=body, headers={**TEXT, **headers})
        assert made.status_code == 201


# -- which answers are compressed -----------------------------------------------------------------


@pytest.mark.parametrize("coding", list(DECODERS))
@pytest.mark.parametrize("size", [LEAST_BYTES + 1, 10_000, 300_000])
async def test_a_client_that_accepts_compression_gets_the_same_content_in_fewer_bytes(
    coding: str, size: int, tmp_path: Path
) -> None:
    content = (LONG * (size // len(LONG) + 1))[:size]
    async with serving(tmp_path) as server:
        await put(server, content)
        response, body = await fetch(server, accept_encoding=coding)
        assert response.headers["content-encoding"] == coding
        assert response.headers["vary"] == "Accept-Encoding"
        assert int(response.headers["content-length"]) == len(body) < size
        assert response.headers["stream-up-to-date"] == "true"
        assert DECODERS[coding](body) == content


async def test_other_clients_get_plain_bytes_with_a_vary_header(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await put(server)
        for accepted in ("", "identity", "br", "gzip;q=0", "*;q=0"):
            response, body = await fetch(server, accept_encoding=accepted)
            assert "content-encoding" not in response.headers
            assert response.headers["vary"] == "Accept-Encoding"
            assert body == LONG


async def test_small_answers_are_sent_as_they_are(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await put(server, b"x" * LEAST_BYTES)
        response, body = await fetch(server, accept_encoding="gzip")
        assert "content-encoding" not in response.headers
        assert "vary" not in response.headers
        assert len(body) == LEAST_BYTES


async def test_an_incompressible_body_is_sent_as_it_is(tmp_path: Path) -> None:
    noise = os.urandom(5000)
    async with serving(tmp_path) as server:
        await put(server, noise, Content_Type="application/octet-stream")
        response, body = await fetch(server, accept_encoding="gzip, zstd")
        assert "content-encoding" not in response.headers
        assert not response.headers["etag"].endswith('-zstd"')
        assert body == noise


async def test_already_compressed_types_are_left_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        async with server.client() as client:
            await client.put(STREAM, content=LONG, headers={"Content-Type": "image/png"})
        response, body = await fetch(server, accept_encoding="gzip")
        assert "content-encoding" not in response.headers
        assert "vary" not in response.headers
        assert body == LONG


async def test_json_streams_listings_and_metrics_are_compressed(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await client.put("/bucket")
        for number in range(20):
            await client.put(f"/bucket/a-stream-{number}", headers=TEXT)
        messages = json.dumps([{"number": number} for number in range(500)])
        kind = {"Content-Type": "application/json"}
        await client.put(STREAM, content=messages, headers=kind)
        for path in (STREAM, "/bucket/streams", "/metrics"):
            plain, body = await fetch(server, path)
            response, compressed = await fetch(server, path, accept_encoding="gzip")
            assert response.headers["content-encoding"] == "gzip", path
            assert response.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
            assert len(compressed) < len(body) / 2
            if path != "/metrics":
                assert zlib.decompress(compressed, 31) == body


async def test_live_events_are_never_compressed(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await put(server, Stream_Closed="true")
        async with server.client() as client:
            await client.post(STREAM, headers={"Stream-Closed": "true"})
        response, body = await fetch(
            server, STREAM + "?offset=-1&live=sse", accept_encoding="gzip, zstd"
        )
        assert "content-encoding" not in response.headers
        assert body.count(b"all work and no play") == 200


async def test_a_long_poll_with_news_is_compressed(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await put(server)
        response, body = await fetch(
            server, STREAM + "?offset=-1&live=long-poll", accept_encoding="gzip"
        )
        assert response.headers["content-encoding"] == "gzip"
        assert "stream-cursor" in response.headers
        assert zlib.decompress(body, 31) == LONG


async def test_errors_and_empty_answers_are_left_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await put(server, b"")
        for path in (STREAM, STREAM + "?offset=now&live=long-poll&timeout=0", "/v1/stream/none"):
            response, _ = await fetch(server, path, accept_encoding="gzip")
            assert "content-encoding" not in response.headers


async def test_answers_go_uncompressed_when_too_many_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "_MOST_WAITING", 0)
    async with serving(tmp_path) as server:
        await put(server, LONG * 100)
        response, body = await fetch(server, accept_encoding="gzip")
        assert "content-encoding" not in response.headers
        assert body == LONG * 100


async def test_many_concurrent_readers_each_get_the_whole_body(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await put(server, LONG * 50)

        async def one(coding: str) -> None:
            response, body = await fetch(server, accept_encoding=coding)
            if "content-encoding" in response.headers:
                body = DECODERS[coding](body)
            assert body == LONG * 50

        async with trio.open_nursery() as nursery:
            for coding in list(DECODERS) * 5:
                nursery.start_soon(one, coding)


# -- tags -----------------------------------------------------------------------------------------


async def test_each_coding_has_its_own_tag_and_each_tag_revalidates(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await put(server)
        tags = {}
        for coding in ("", "zstd", "gzip", "deflate"):
            response, _ = await fetch(server, accept_encoding=coding)
            tags[coding] = response.headers["etag"]
        assert len(set(tags.values())) == 4
        for tag in tags.values():
            for accepted in ("", "gzip"):
                for form in (tag, f"W/{tag}", f'"other", {tag}'):
                    response, body = await fetch(
                        server, accept_encoding=accepted, if_none_match=form
                    )
                    assert (response.status_code, body) == (304, b"")
                    assert response.headers["etag"] == tag, "a cache knows by it what it has"
                    assert response.headers["vary"] == "Accept-Encoding"
                    assert "content-encoding" not in response.headers


async def test_a_compressed_tag_changes_with_the_stream(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await put(server)
        before, _ = await fetch(server, accept_encoding="gzip")
        async with server.client() as client:
            await client.post(STREAM, headers={"Stream-Closed": "true"})
        after, _ = await fetch(server, accept_encoding="gzip", if_none_match=before.headers["etag"])
        assert after.status_code == 200
        assert after.headers["etag"].endswith(':c-gzip"')


# -- negotiation ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        (b"gzip", b"gzip"),
        (b"GZIP", b"gzip"),
        (b"x-gzip", b"gzip"),
        (b"gzip, deflate, br, zstd", b"zstd"),
        (b"deflate, gzip", b"gzip"),
        (b"gzip;q=0.5, deflate;q=0.8", b"deflate"),
        (b"gzip;q=0.001", b"gzip"),
        (b"gzip ; q=1.000", b"gzip"),
        (b"gzip;Q=0.5", b"gzip"),
        (b"*", b"zstd"),
        (b"*, zstd;q=0", b"gzip"),
        (b"gzip;q=0.2, *;q=0.1", b"gzip"),
        (b"identity;q=0.5, gzip;q=0.4", None),
        (b"identity;q=0, gzip", b"gzip"),
        (b"identity", None),
        (b"gzip;q=0", None),
        (b"gzip;q=0.000", None),
        (b"*;q=0", None),
        (b"br", None),
        (b"", None),
        (b"gzip;q=2", None),
        (b"gzip;q=x", None),
        (b"gzip;level=9", None),
        (b",,gzip,,", b"gzip"),
    ],
)
def test_the_clients_preference_decides_and_then_ours(
    accepted: bytes, coding: bytes | None
) -> None:
    assert choose(accepted) == coding


def test_types_worth_compressing() -> None:
    for kind in (
        "text/plain", "application/json", "application/octet-stream", "image/svg+xml",
        "application/x-protobuf", "application/zipper+json",
    ):  # fmt: skip
        assert pays(kind), kind
    for kind in (
        "image/png", "IMAGE/JPEG", "video/mp4", "audio/ogg; codecs=opus", "application/zip",
        "application/gzip;x=y", "font/woff2", "application/pdf",
    ):  # fmt: skip
        assert not pays(kind), kind
