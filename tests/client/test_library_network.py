"""`streamd.client` over servers that die, connections that are cut, and tokens that change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import pytest

import streamd.client as library
from streamd.client import Client, connecting
from tests.client.drivers import KINDS, connected
from tests.http.authorized import authorized
from tests.jepsen_like.cluster_processes import ClusterProcesses
from tests.support.breaking_off import breaking_off
from tests.support.cutting_proxy import CuttingProxy
from tests.support.server_process import ServerProcess


@contextmanager
def elsewhere(redirects_to: str = "") -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A web server of somebody else, and the headers that it receives."""
    received: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            received.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response_only(307 if redirects_to else 200)
            if redirects_to:
                self.send_header("Location", redirects_to + self.path)
            self.send_header("Stream-Next-Offset", "0")
            self.send_header("Stream-Up-To-Date", "true")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("kind", KINDS)
def test_a_redirect_to_a_stranger_takes_no_credentials_along(kind: str) -> None:
    with elsewhere() as (stranger, leaked), elsewhere(stranger) as (trusted, seen):
        credentials = {"token": "sd_secret", "headers": {"X-Key": "also-secret"}}
        with connected(kind, trusted, **credentials) as client:
            list(client.stream("x").read())
    assert [(got.get("authorization"), got.get("x-key")) for got in seen] == [
        ("Bearer sd_secret", "also-secret")
    ]
    assert len(leaked) == 1
    assert not {"authorization", "x-key"} & set(leaked[0])
    assert "secret" not in str(leaked)


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_function_is_asked_again_when_its_token_ended(kind: str, tmp_path: Path) -> None:
    with authorized("HTTP/1.1", tmp_path) as server:
        former = server.token("create:demo/*", "append:demo/*", "read:demo/*")
        planned = [former]
        with connected(kind, server.urls, token=lambda: planned.pop(0)) as client:
            stream = client.stream("demo/x")
            stream.create("application/json")
            path = f"/auth/tokens/{server.named(former)}/rotate"
            renewed = server.ask("POST", path, json={"overlap_s": 0}).json()["token"]
            planned += [former, renewed]
            stream.append_json(1)
            assert planned == [], "the former token was refused, and the renewed one accepted"
        with (
            connected(kind, server.urls, token=former) as client,
            pytest.raises(library.NotAuthenticated) as refused,
        ):
            client.stream("demo/x").head()
        assert (refused.value.status, refused.value.code) == (401, "INVALID_TOKEN")


def test_an_asynchronous_token_function_is_awaited() -> None:
    async def token() -> str:
        return "sd_awaited"

    for kind in ("asyncio", "trio"):
        with elsewhere() as (url, seen), connected(kind, url, token=token) as client:
            list(client.stream("x").read())
        assert seen[0]["authorization"] == "Bearer sd_awaited"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_follower_misses_nothing_however_its_connections_are_cut(
    tmp_path: Path, kind: str, live: library.Live
) -> None:
    seed = 7
    random = Random(seed)
    print("seed", seed)
    with (
        ServerProcess(tmp_path / "data") as server,
        CuttingProxy(server.port, lambda: random.randrange(1, 6000)) as proxy,
        Client(server.url) as direct,
    ):
        stream = direct.stream("demo/news")
        stream.create("application/json")
        with connected(kind, proxy.url, retry_for_s=60) as client:
            got = []
            messages = client.stream("demo/news").follow_json(live=live)
            for number in range(40):
                stream.append_json(*[[number, each] for each in range(3)], close=number == 39)
                if number % 3 == 0:
                    got.append(next(messages))
            got += list(messages)
        assert got == [[number, each] for number in range(40) for each in range(3)]
        assert proxy.cuts > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_read_returns_each_byte_once_however_its_connections_are_cut(
    tmp_path: Path, kind: str
) -> None:
    seed = 5
    random = Random(seed)
    print("seed", seed)
    content = random.randbytes(40_000)
    with (
        ServerProcess(tmp_path / "data") as server,
        CuttingProxy(server.port, lambda: random.randrange(1, 8000)) as proxy,
        Client(server.url) as direct,
    ):
        stream = direct.stream("demo/news")
        stream.create("application/octet-stream")
        for start in range(0, len(content), 1000):
            stream.append(content[start : start + 1000])
        with connected(kind, proxy.url, retry_for_s=60) as client:
            chunks = client.stream("demo/news").read(max_bytes=3000)
            assert b"".join(chunk.data for chunk in chunks) == content
        assert proxy.cuts > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_follower_survives_the_death_of_its_server(tmp_path: Path, kind: str) -> None:
    with ServerProcess(tmp_path / "data") as server, Client(server.url, retry_for_s=60) as direct:
        stream = direct.stream("demo/news")
        stream.create("application/json", data=b"[0]")
        with connected(kind, server.url) as client:
            messages = client.stream("demo/news").follow_json()
            assert next(messages) == 0
            for number in range(1, 4):
                server.kill()
                server.start()
                server.wait_ready()
                stream.append_json(number)
                assert next(messages) == number
            stream.close()
            assert list(messages) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_follower_of_a_cluster_continues_when_the_leader_dies(tmp_path: Path, kind: str) -> None:
    with ClusterProcesses(tmp_path, proxied=False) as cluster:
        leader = cluster.leader()
        nodes = [leader, *(node for node in cluster.alive if node is not leader)]
        with connected(kind, [node.url for node in nodes]) as client:
            stream = client.stream("demo/news")
            stream.create("application/json", data=b"[0]")
            messages = stream.follow_json()
            assert next(messages) == 0
            leader.kill()
            stream.append_json(1, close=True)
            assert list(messages) == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_an_append_whose_answer_is_cut_off_is_not_sent_twice(tmp_path: Path, kind: str) -> None:
    """Wherever a connection is cut, an append is stored once and reported, or at most once and its
    outcome is unknown."""
    with ServerProcess(tmp_path / "data") as server, Client(server.url) as direct:
        direct.stream("demo/log").create("application/json")
        budgets = iter(range(1, 700, 23))
        appended, doubtful = [], []
        with CuttingProxy(server.port, lambda: next(budgets, None)) as proxy:
            with connected(kind, proxy.url, retry_for_s=60) as client:
                stream = client.stream("demo/log")
                for number in range(40):
                    try:
                        stream.append_json(number)
                        appended.append(number)
                    except library.OutcomeUnknown:
                        doubtful.append(number)
            assert proxy.cuts > 0
        stored = list(direct.stream("demo/log").read_json())
    assert doubtful, "some answers were cut off"
    assert stored == sorted(set(stored)), "in order, and nothing twice"
    assert set(appended) <= set(stored) <= set(appended) | set(doubtful)


def test_an_interrupted_wait_may_be_repeated(tmp_path: Path) -> None:
    anyio = pytest.importorskip("anyio")

    async def run(url: str) -> None:
        async with library.AsyncClient(url) as client:
            stream = client.stream("demo/news")
            await stream.create("application/json", data=b"[1]")
            messages = stream.follow_json()
            assert await messages.__anext__() == 1
            with anyio.move_on_after(0.05) as scope:
                await messages.__anext__()
            assert scope.cancelled_caught
            await stream.append_json(2, close=True)
            assert [message async for message in messages] == [2]

    with ServerProcess(tmp_path / "data") as server:
        for backend in ("asyncio", "trio"):
            anyio.run(run, server.url, backend=backend)
            with Client(server.url) as client:
                client.stream("demo/news").delete()


@pytest.mark.parametrize("kind", KINDS)
def test_a_follower_that_is_abandoned_gives_its_connection_back(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "_MAX_CONNECTIONS", 2)
    with (
        ServerProcess(tmp_path / "data") as server,
        connected(kind, server.url, timeout_s=5) as client,
    ):
        stream = client.stream("demo/news")
        stream.create("application/json", data=b"[1]")
        for number in range(6):
            with stream.follow_json(live="sse") as messages:
                assert next(messages) == 1
                stream.append_json(number)
                assert next(message for message in messages if message == number) == number
        stream.delete()


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_answer_that_breaks_off_is_asked_for_again(kind: str) -> None:
    """The address is not wrong: a server has begun to answer there."""
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nStream-Next-Offset: 5\r\n"
        b"Stream-Up-To-Date: true\r\nContent-Length: 5\r\n\r\n"
    )
    with (
        breaking_off(head + b"h", head + b"hello") as (url, asked),
        connected(kind, url) as client,
    ):
        assert [chunk.data for chunk in client.stream("demo/x").read()] == [b"hello"]
    assert len(asked) == 2
