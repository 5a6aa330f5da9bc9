"""How many connections an address gets, and how fast."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import trio
import trio.testing

from streamd.config.settings import ServerConfig
from streamd.http.door.newcomers import ConnectionsByClient
from tests.http.serving import RawClient, serving, until

STRANGER = "127.0.0.2"


async def use(client: RawClient) -> None:
    """Send a request: a connection without one gives way to others."""
    await client.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await client.read_response()).status == 200


async def test_an_address_leaves_connections_to_others(tmp_path: Path) -> None:
    async with serving(tmp_path, max_connections=6) as server, AsyncExitStack() as stack:
        for _ in range(4):
            await use(await stack.enter_async_context(server.connect(source=STRANGER)))
        await until(lambda: server.connections == 4)
        async with server.connect(source=STRANGER) as client:
            answer = await client.read_response()
            assert (answer.status, answer.code) == (503, "TOO_MANY_CONNECTIONS")
        async with server.client() as client:
            assert (await client.get("/healthz")).status_code == 200
        await stack.aclose()
        await until(lambda: not server.connections)
        async with server.client(source=STRANGER) as client:
            assert (await client.get("/healthz")).status_code == 200


async def test_the_connections_of_an_address_can_be_set(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, max_connections_per_address=1) as server,
        server.connect() as first,
    ):
        await use(first)
        async with server.connect() as second:
            assert (await second.read_response()).status == 503


async def test_an_address_makes_connections_no_faster_than_it_may(
    mock_clock: trio.testing.MockClock,
) -> None:
    clients = ConnectionsByClient(ServerConfig(max_new_connections_per_address_per_s=5))
    for _ in range(3):
        entered = [clients.enter("a") for _ in range(7)]
        assert entered == [True] * 5 + [False] * 2
        assert clients.enter("b"), "others may"
        for _ in range(5):
            clients.leave("a")
        clients.leave("b")
        mock_clock.jump(1)


async def test_connections_that_end_make_room(mock_clock: trio.testing.MockClock) -> None:
    clients = ConnectionsByClient(ServerConfig(max_connections=3))
    assert [clients.enter("a") for _ in range(3)] == [True, True, False]
    clients.leave("a")
    assert clients.enter("a")
