"""TLS, and the other server: Hypercorn in front of the same application, with HTTP/2."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import trio

from tests.http.pki import Pki
from tests.http.serving import PATIENCE_S, serving
from tests.support.server_process import ServerProcess
from tests.support.wire import checked_async_client

TEXT = {"Content-Type": "text/plain"}
# A heartbeat would hide appends that wait for it, so none is sent while the tests run.
LIMITS: dict[str, Any] = {
    "max_body_bytes": 1000,
    "long_poll_timeout_ms": 5000,
    "sse_heartbeat_ms": 3_600_000,
}
ENVIRONMENT = {f"STREAMD_SERVER_{name.upper()}": str(value) for name, value in LIMITS.items()}


@pytest.fixture(scope="module")
def plain_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Hypercorn without TLS."""
    data = tmp_path_factory.mktemp("plain") / "data"
    with ServerProcess(data, flags=["--http", "hypercorn"], environment=ENVIRONMENT) as process:
        yield process.url


@pytest.fixture(scope="module")
def secure_url(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[str]:
    """Hypercorn with TLS."""
    process = ServerProcess(
        tmp_path_factory.mktemp("secure") / "data",
        flags=["--http", "hypercorn"],
        environment={
            **ENVIRONMENT,
            "STREAMD_SERVER_TLS_CERT": str(pki.certificate),
            "STREAMD_SERVER_TLS_KEY": str(pki.key),
        },
    )
    process.start()
    url = f"https://127.0.0.1:{process.port}"
    try:
        wait_until_it_answers(process, url, pki)
        yield url
    finally:
        process.kill()


def wait_until_it_answers(process: ServerProcess, url: str, pki: Pki) -> None:
    deadline = time.monotonic() + PATIENCE_S
    with httpx.Client(verify=pki.client) as client:
        while True:
            assert process.process is not None
            assert process.process.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server does not answer"
            try:
                client.get(url + "/readyz/local").raise_for_status()
                return
            except httpx.HTTPError:
                time.sleep(0.02)


def over(url: str, pki: Pki, *, http2: bool) -> httpx.AsyncClient:
    return checked_async_client(base_url=url, verify=pki.client, http2=http2, timeout=PATIENCE_S)


async def tail(client: httpx.AsyncClient, path: str, told: trio.Event) -> str:
    """Read by SSE until the server ends it; `told` is set at the first control event."""
    body = ""
    async with client.stream("GET", f"{path}?offset=-1&live=sse") as response:
        assert response.headers["content-type"] == "text/event-stream"
        async for text in response.aiter_text():
            body += text
            if "upToDate" in body:
                told.set()
    return body


async def a_stream_works(client: httpx.AsyncClient, path: str, version: str) -> None:
    """The life of a stream, with every kind of request once."""
    made = await client.put(path, headers=TEXT)
    assert (made.status_code, made.http_version) == (201, version)
    assert made.headers["location"] == str(client.base_url.join(path))
    appended = await client.post(path, content=b"one", headers=TEXT)
    assert appended.status_code == 204
    read = await client.get(path)
    assert (read.content, read.http_version) == (b"one", version)
    assert read.headers["x-content-type-options"] == "nosniff"
    assert read.headers["access-control-allow-origin"] == "*"
    etag = {"If-None-Match": read.headers["etag"]}
    assert (await client.get(path, headers=etag)).status_code == 304
    head = await client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["stream-next-offset"] == appended.headers["stream-next-offset"]
    empty = await client.get(path + "?offset=now&live=long-poll&timeout=0.05")
    assert empty.status_code == 204
    await readers_are_told(client, path)
    assert (await client.delete(path)).status_code == 204
    assert (await client.get(path)).status_code == 404


async def readers_are_told(client: httpx.AsyncClient, path: str) -> None:
    """One client tails by SSE and one waits, while a third appends and closes."""
    told = trio.Event()
    bodies: list[str] = []
    answers: list[httpx.Response] = []

    async def follow() -> None:
        bodies.append(await tail(client, path, told))

    async def wait(at: str) -> None:
        answers.append(await client.get(f"{path}?offset={at}&live=long-poll"))

    offset = (await client.head(path)).headers["stream-next-offset"]
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            nursery.start_soon(wait, offset)
            await told.wait()
            closing = {**TEXT, "Stream-Closed": "true"}
            await client.post(path, content=b"two", headers=closing)
    assert [answer.content for answer in answers] == [b"two"]
    assert bodies[0].count("event: data") == 2
    assert "data:one\n" in bodies[0]
    assert "data:two\n" in bodies[0]
    assert '"streamClosed":true' in bodies[0]


async def test_the_front_door_serves_tls(pki: Pki, tmp_path: Path) -> None:
    async with (
        serving(tmp_path, ssl_context=pki.server) as server,
        over(server.url, pki, http2=True) as client,
    ):
        await a_stream_works(client, "/v1/stream/s", "HTTP/1.1")


async def test_large_bodies_pass_through_tls(pki: Pki, tmp_path: Path) -> None:
    body = bytes(range(256)) * 16 * 1024
    async with (
        serving(tmp_path, ssl_context=pki.server) as server,
        over(server.url, pki, http2=False) as client,
    ):
        await client.put("/v1/stream/s", content=body, headers=TEXT)
        assert (await client.get("/v1/stream/s?max_bytes=4194304")).content == body


async def test_a_client_without_tls_is_disconnected(pki: Pki, tmp_path: Path) -> None:
    async with serving(tmp_path, ssl_context=pki.server) as server, server.connect() as client:
        await client.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"HTTP/" not in await client.read_to_end()
        async with over(server.url, pki, http2=False) as other:
            assert (await other.get("/healthz")).status_code == 200


async def test_hypercorn_serves_http_2_over_tls(secure_url: str, pki: Pki) -> None:
    async with over(secure_url, pki, http2=True) as client:
        await a_stream_works(client, "/v1/stream/two", "HTTP/2")


async def test_hypercorn_serves_http_1_1_over_tls(secure_url: str, pki: Pki) -> None:
    async with over(secure_url, pki, http2=False) as client:
        await a_stream_works(client, "/v1/stream/one", "HTTP/1.1")


async def test_hypercorn_serves_http_1_1_without_tls(plain_url: str, pki: Pki) -> None:
    async with over(plain_url, pki, http2=False) as client:
        await a_stream_works(client, "/v1/stream/one", "HTTP/1.1")


# -- news ------------------------------------------------------------------------------------------


async def news_comes_at_once(client: httpx.AsyncClient, path: str) -> None:
    """A tailing reader hears an append from a server that cannot write without waiting."""
    await client.put(path, headers=TEXT)
    async with client.stream("GET", f"{path}?offset=-1&live=sse") as response:
        lines = response.aiter_lines()
        while "upToDate" not in await anext(lines):
            pass
        for news in ("one", "two"):
            await client.post(path, content=news.encode(), headers=TEXT)
            with trio.fail_after(PATIENCE_S):
                while await anext(lines) != f"data:{news}":
                    pass


async def test_a_tail_over_tls_hears_an_append_at_once(pki: Pki, tmp_path: Path) -> None:
    async with (
        serving(tmp_path, ssl_context=pki.server, sse_heartbeat_ms=3_600_000) as server,
        over(server.url, pki, http2=False) as client,
    ):
        await news_comes_at_once(client, "/v1/stream/s")


@pytest.mark.parametrize("http2", [True, False])
async def test_a_tail_over_hypercorn_hears_an_append_at_once(
    secure_url: str, pki: Pki, http2: bool
) -> None:
    async with over(secure_url, pki, http2=http2) as client:
        await news_comes_at_once(client, f"/v1/stream/news-{http2}")


# -- snapshots, in and out in pieces ----------------------------------------------------------


@pytest.mark.parametrize("http2", [True, False])
async def test_hypercorn_streams_snapshots_in_and_out(
    secure_url: str, pki: Pki, http2: bool
) -> None:
    content = b"0123456789" * 300_000
    bucket = f"/snapshots-{2 if http2 else 1}"
    async with over(secure_url, pki, http2=http2) as client:
        await client.put(bucket)
        await client.put(f"{bucket}/s", headers=TEXT)
        appended = await client.post(f"{bucket}/s", content=b"one", headers=TEXT)
        at = appended.headers["stream-next-offset"]
        path = f"{bucket}/s/snapshot/{at}"
        published = await client.put(path, content=content, headers=TEXT)
        assert published.status_code == 204
        read = await client.get(path)
        assert (read.content, read.headers["content-length"]) == (content, str(len(content)))
        whole = await client.get(f"{bucket}/s/bootstrap")
        assert content in whole.content
        start = "0000000000000000_0000000000000000"
        refused = await client.put(f"{bucket}/s/snapshot/{start}", content=content, headers=TEXT)
        assert refused.status_code == 410
        # The connection stays usable after the refused body.
        assert (await client.get(path)).status_code == 200


# -- two servers, one answer ----------------------------------------------------------------------


class Probe(NamedTuple):
    """A request to be answered alike; `target` goes out as it is."""

    name: str
    method: str
    target: bytes
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


PROBES = [
    Probe("a body within the limit", "POST", b"/v1/stream/none", tuple(TEXT.items()), b"x" * 1000),
    Probe("a .. segment", "GET", b"/v1/stream/a/../b"),
    Probe("an escaped .. segment", "GET", b"/v1/stream/a/%2e%2E/b"),
    Probe(".. after an escaped slash", "GET", b"/v1/stream/a%2f..%2fb"),
    Probe("an escaped slash", "PUT", b"/v1/stream/privat%2Fdoc"),
    Probe("an escaped slash after the bucket", "PUT", b"/v1/stream/privat/a%2fb"),
    Probe("a malformed escape", "GET", b"/v1/stream/a%zz"),
    Probe("a truncated escape", "GET", b"/v1/stream/a%4"),
    Probe("an escaped NUL", "GET", b"/v1/stream/a%00"),
    Probe("an escaped backslash", "GET", b"/v1/stream/a%5Cb"),
    Probe("an escaped line end", "GET", b"/v1/stream/a%0D%0Ab"),
    Probe("what is not UTF-8", "GET", b"/v1/stream/a%FF"),
    Probe("an empty segment", "GET", b"/v1/stream/a//b"),
    Probe("a reserved bucket", "PUT", b"/admin"),
    Probe("a path too long", "GET", b"/v1/stream/" + b"a" * 1100),
    Probe("two sequence numbers", "GET", b"/v1/stream/a", (("Stream-Seq", "1"),) * 2),
    Probe("a method not allowed", "PATCH", b"/v1/stream/a"),
    Probe("TRACE", "TRACE", b"/v1/stream/a"),
    Probe("a method that is not known", "BREW", b"/v1/stream/a"),
    Probe("a quotation mark", "GET", b'/v1/stream/a"'),
    Probe("a caret", "PUT", b"/v1/stream/a^b"),
    Probe("braces in the query", "GET", b"/v1/stream/a?offset={}"),
    Probe("a target too long", "GET", b"/" + b"a" * 9000),
    Probe("an expectation not known", "GET", b"/v1/stream/a", (("Expect", "x"),)),
    Probe("too many headers", "GET", b"/v1/stream/a", tuple((f"x-{i}", "") for i in range(150))),
    Probe("an absolute target", "GET", b"http://x/v1/stream/none"),
    Probe("no such stream", "GET", b"/v1/stream/none"),
    Probe("no such operation", "GET", b"/cluster/none"),
    Probe("a malformed offset", "GET", b"/v1/stream/a?offset=x"),
]


async def answer(client: httpx.AsyncClient, probe: Probe) -> tuple[int, str, dict[str, str]]:
    """The relevant parts of the answer: status, code, and the headers that clients use."""
    response = await client.request(
        probe.method,
        "/",
        headers=list(probe.headers),
        content=probe.body,
        extensions={"target": probe.target},
    )
    names = ("content-type", "cache-control", "x-content-type-options", "retry-after")
    return (
        response.status_code,
        response.json()["error"]["code"],
        {name: response.headers[name] for name in names if name in response.headers},
    )


@pytest.mark.parametrize("probe", PROBES, ids=[probe.name for probe in PROBES])
async def test_hypercorn_answers_as_the_front_door_does(
    probe: Probe, plain_url: str, secure_url: str, pki: Pki, tmp_path: Path
) -> None:
    async with (
        serving(tmp_path, **LIMITS) as server,
        server.client() as front_door,
        over(plain_url, pki, http2=False) as plain,
        over(secure_url, pki, http2=True) as secure,
    ):
        expected = await answer(front_door, probe)
        assert expected[0] >= 400
        assert await answer(plain, probe) == expected
        assert await answer(secure, probe) == expected


async def test_hypercorn_refuses_a_body_over_the_limit_alike(
    plain_url: str, secure_url: str, pki: Pki, tmp_path: Path
) -> None:
    probe = Probe("a body over the limit", "PUT", b"/v1/stream/new", (), b"x" * 1001)
    async with (
        serving(tmp_path, **LIMITS) as server,
        server.client() as front_door,
        over(plain_url, pki, http2=False) as plain,
        over(secure_url, pki, http2=True) as secure,
    ):
        expected = await answer(front_door, probe)
        assert expected[:2] == (413, "BODY_TOO_LARGE")
        assert await answer(plain, probe) == expected
        assert await answer(secure, probe) == expected


async def test_hypercorn_limits_the_time_and_the_total_size_of_bodies(tmp_path: Path) -> None:
    limits = {"MAX_BODY_BYTES": "1000", "MAX_BUFFERED_BYTES": "1500", "BODY_TIMEOUT_MS": "3000"}
    environment = {f"STREAMD_SERVER_{name}": value for name, value in limits.items()}
    begun = (
        b"POST /v1/stream/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
        b"Content-Length: 1000\r\n\r\n" + b"x" * 999
    )
    with ServerProcess(
        tmp_path / "data", flags=["--http", "hypercorn"], environment=environment
    ) as server:
        with trio.fail_after(PATIENCE_S):
            first = await trio.open_tcp_stream("127.0.0.1", server.port)
            second = await trio.open_tcp_stream("127.0.0.1", server.port)
            answers: list[bytes] = []

            async def send(stream: trio.SocketStream) -> None:
                await stream.send_all(begun)
                answers.append(await stream.receive_some())

            async with first, second, trio.open_nursery() as nursery:
                nursery.start_soon(send, first)
                nursery.start_soon(send, second)
        assert [answer.split()[1] for answer in answers] == [b"503", b"408"]


async def test_an_error_in_one_connection_ends_no_other(plain_url: str, pki: Pki) -> None:
    host, port = plain_url.removeprefix("http://").split(":")
    async with over(plain_url, pki, http2=False) as client:
        for ending in (b"", b"x" * 500):
            stream = await trio.open_tcp_stream(host, int(port))
            await stream.send_all(
                b"PUT /v1/stream/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + ending
            )
            await stream.aclose()
        assert (await client.get("/healthz")).status_code == 200
