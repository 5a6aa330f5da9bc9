"""With Hypercorn for HTTP/2, the front door still serves HTTP/1.1: nothing is repaired, and nothing
is upgraded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import h2.config
import h2.connection
import h2.events
import pytest
import trio
import trio.testing

from tests.http.serving import PATIENCE_S, RawClient, Serving, serving
from tests.http.test_malformed import LIMITS, VECTORS, get, make_witness, post

HEALTH = get(b"/healthz")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


@asynccontextmanager
async def hypercorn(tmp_path: Path, **settings: Any) -> AsyncIterator[Serving]:
    async with serving(tmp_path, http="hypercorn", **settings) as server:
        yield server


async def test_malformed_requests_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async with hypercorn(tmp_path, **LIMITS) as server:
        tail = await make_witness(server)
        for vector in VECTORS:
            if vector.raw == PREFACE:
                continue
            async with server.connect() as client:
                await client.send(vector.raw)
                answer = await client.read_response()
                assert (answer.status, answer.code) == vector[2:4], vector.name
                assert await client.closed(), vector.name
        assert await server.tail("/v1/stream/witness") == tail


@pytest.mark.parametrize(
    "lines",
    [
        (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"),
        (
            b"Connection: Upgrade",
            b"Upgrade: websocket",
            b"Sec-WebSocket-Version: 13",
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ),
    ],
    ids=["h2c", "websocket"],
)
async def test_an_upgrade_is_declined_by_silence(lines: tuple[bytes, ...], tmp_path: Path) -> None:
    asked = b"\r\n".join((b"GET /healthz HTTP/1.1", b"Host: x", *lines, b"\r\n"))
    async with hypercorn(tmp_path) as server, server.connect() as client:
        await client.send(asked + HEALTH)
        for _ in range(2):
            answer = await client.read_response()
            assert (answer.status, "upgrade" in answer.headers) == (200, False)


async def test_a_head_that_trickles_in_is_refused(tmp_path: Path) -> None:
    async def trickle(client: RawClient) -> None:
        await client.send(b"GET /healthz HTTP/1.1\r\nX-A: ")
        while True:
            await client.send(b"a")
            await trio.sleep(0.05)

    async with (
        hypercorn(tmp_path, header_timeout_ms=500) as server,
        server.connect() as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(trickle, client)
        assert (await client.read_response()).code == "HEADER_TIMEOUT"
        nursery.cancel_scope.cancel()


async def test_more_than_a_thousand_requests_may_be_pipelined(tmp_path: Path) -> None:
    async with (
        hypercorn(tmp_path) as server,
        server.connect() as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(client.send, HEALTH * 1500)
        for _ in range(1500):
            assert (await client.read_response()).status == 200


async def test_a_body_with_two_lengths_closes_the_connection(tmp_path: Path) -> None:
    async with hypercorn(tmp_path) as server, server.connect() as client:
        both = post(b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n")
        await client.send(both + HEALTH)
        assert (await client.read_response()).status == 400
        assert await client.closed()


# -- HTTP/2 by prior knowledge --------------------------------------------------------------------


async def test_the_preface_may_come_byte_by_byte(tmp_path: Path) -> None:
    async with hypercorn(tmp_path) as server, server.connect() as client:
        for place in range(len(PREFACE)):
            await client.send(PREFACE[place : place + 1])
            await trio.testing.wait_all_tasks_blocked()
        await client.send(SETTINGS)
        assert (await client.receive_some())[3] == 4, "a SETTINGS frame"


async def test_only_the_start_of_a_connection_is_a_preface(tmp_path: Path) -> None:
    async with hypercorn(tmp_path) as server, server.connect() as client:
        await client.send(HEALTH + PREFACE + SETTINGS)
        assert (await client.read_response()).status == 200
        assert (await client.read_response()).code == "METHOD_UNKNOWN"
        assert await client.closed()


async def test_the_front_door_alone_refuses_a_preface(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as client:
        await client.send(PREFACE + SETTINGS)
        assert (await client.read_response()).code == "METHOD_UNKNOWN"


@pytest.mark.parametrize("protocol", [None, "websocket"])
async def test_a_connect_request_opens_no_tunnel(protocol: str | None, tmp_path: Path) -> None:
    connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="ascii"))
    connection.initiate_connection()
    headers = [(":method", "CONNECT"), (":authority", "x")]
    if protocol is not None:
        headers += [(":protocol", protocol), (":scheme", "http"), (":path", "/healthz")]
        headers += [("sec-websocket-version", "13")]
    async with hypercorn(tmp_path) as server, server.connect() as client:
        connection.send_headers(1, headers)
        await client.send(connection.data_to_send())
        assert await status_of(connection, client) == "405"


async def status_of(connection: h2.connection.H2Connection, client: RawClient) -> str | None:
    """The status of the first response; None when the server ends the connection."""
    while data := await client.receive_some():
        for event in connection.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                return cast("dict[str, str]", dict(event.headers))[":status"]
    return None


@pytest.mark.long
async def test_one_connection_serves_more_than_a_thousand_requests(tmp_path: Path) -> None:
    async with hypercorn(tmp_path) as server, server.client(http1=False, http2=True) as client:
        used = set()
        for _ in range(1100):
            answer = await client.get("/v1/stream/none")
            assert answer.status_code == 404
            used.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
        assert len(used) == 1


async def test_an_http_2_client_counts_as_a_connection_until_it_leaves(tmp_path: Path) -> None:
    async with hypercorn(tmp_path) as server:
        async with server.client(http1=False, http2=True) as client:
            assert (await client.get("/healthz")).http_version == "HTTP/2"
            assert server.connections == 1
        with trio.fail_after(PATIENCE_S):
            while server.connections:  # noqa: ASYNC110
                await trio.sleep(0.002)
