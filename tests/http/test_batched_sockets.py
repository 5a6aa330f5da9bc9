"""What arrives at many sockets in one batch is served as if it had come alone."""

from __future__ import annotations

import gc
import re
import socket
import struct
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from streamd.http.door.connection import Connection
from streamd.http.sockets.transports import SocketTransport
from tests.http.serving import PATIENCE_S, RawClient, Serving, serving, until
from tests.support.seeds import seeds
from tests.support.tools import COMPILER, NEEDS

HEAD = b"Host: x\r\nContent-Type: text/plain\r\n"
CREATE = b"PUT /v1/stream/s HTTP/1.1\r\n" + HEAD + b"\r\n"
APPEND = b"POST /v1/stream/s HTTP/1.1\r\n" + HEAD + b"Content-Length: 5\r\n\r\nhello"
READ = b"GET /v1/stream/s HTTP/1.1\r\nHost: x\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
WAIT = READ.replace(b"/s ", b"/s?offset=now&live=long-poll ")
CHUNKED = (
    b"POST /v1/stream/s HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n0\r\n\r\n"
)
MALFORMED = b"POST /v1/stream/s HTTP/1.1\r\nHost : x\r\n\r\n"
TOO_LARGE = APPEND.replace(b": 5\r\n", b": 999999999\r\n")
UNKNOWN = READ.replace(b"GET", b"QUERY")


@pytest.fixture(params=["_batch_io", "batch_io_twin"], ids=["C", "Python"], autouse=True)
def language(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip(f"streamd.http.sockets.{request.param}", reason=NEEDS + COMPILER)
    monkeypatch.setattr("streamd.http.door.reactor.receive_ready", module.receive_ready)


async def exchange(client: RawClient, request: bytes, status: int) -> None:
    await client.send(request)
    assert (await client.read_response()).status == status


async def clients(stack: AsyncExitStack, server: Serving, count: int) -> list[RawClient]:
    return [await stack.enter_async_context(server.connect()) for _ in range(count)]


async def test_a_request_may_be_cut_anywhere(tmp_path: Path) -> None:
    """Each client gets its bytes in two batches, cut at another place; the head is known."""
    async with serving(tmp_path) as server, AsyncExitStack() as stack:
        [first] = await clients(stack, server, 1)
        await exchange(first, CREATE, 201)
        await exchange(first, APPEND, 204)
        request = APPEND + READ
        cut = await clients(stack, server, len(request))
        for place, client in enumerate(cut):
            await client.send(request[:place])
        await trio.testing.wait_all_tasks_blocked()
        for place, client in enumerate(cut):
            await client.send(request[place:])
        for client in cut:
            assert (await client.read_response()).status == 204
            assert (await client.read_response()).status == 200
        assert await server.content("/v1/stream/s") == b"hello" * (1 + len(request))


async def test_a_body_over_the_limit_is_refused_although_its_head_is_known(tmp_path: Path) -> None:
    async with serving(tmp_path, max_body_bytes=5) as server, AsyncExitStack() as stack:
        client, *others = await clients(stack, server, 4)
        await exchange(client, CREATE, 201)
        await exchange(client, APPEND, 204)
        for other in others:
            await other.send(APPEND.replace(b": 5\r\n", b": 6\r\n") + b"o")
            assert (await other.read_response()).code == "BODY_TOO_LARGE"
        await exchange(client, APPEND, 204)


async def test_requests_that_come_whole_are_received_in_batches_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server, AsyncExitStack() as stack:
        client, *others = await clients(stack, server, 4)
        await exchange(client, CREATE, 201)
        monkeypatch.delattr(SocketTransport, "receive_now")
        for _ in range(5):
            for other in others:
                await exchange(other, APPEND, 204)
                await exchange(other, READ, 200)


async def test_what_follows_a_request_under_way_stays_in_the_socket(tmp_path: Path) -> None:
    async with serving(tmp_path, long_poll_timeout_ms=200) as server, server.connect() as client:
        await exchange(client, CREATE, 201)
        [connection] = server.door.connections
        await client.send(WAIT)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(10):
            await client.send(APPEND)
            await trio.testing.wait_all_tasks_blocked()
        assert connection.buffer == b""
        assert (await client.read_response()).status == 204
        for _ in range(10):
            assert (await client.read_response()).status == 204


async def test_a_client_that_resets_its_connection_is_forgotten(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as other:
        await exchange(other, CREATE, 201)
        for _ in range(20):
            for request in (APPEND, READ, APPEND[:-1], READ + APPEND, WAIT, b""):
                hasty = socket.create_connection(("127.0.0.1", server.port))
                await until(lambda: server.connections == 2)
                hasty.sendall(request)
                hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                hasty.close()
                await until(lambda: server.connections == 1)
        await exchange(other, APPEND, 204)


async def test_half_of_a_connection_suffices_for_its_answers(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as client:
        await client.send(CREATE + APPEND + READ)
        client.finish_sending()
        answers = await client.read_to_end()
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"201", b"204", b"200"]


def at_first_arrival(monkeypatch: pytest.MonkeyPatch, do: Callable[[Connection], None]) -> None:
    """Do something once, in a batch, before its first arrival is served."""
    take = Connection.take
    done = False

    def taken(connection: Connection, data: bytes) -> None:
        nonlocal done
        if not done:
            done = True
            do(connection)
        take(connection, data)

    monkeypatch.setattr(Connection, "take", taken)


async def test_a_connection_that_another_one_ends_in_the_same_batch_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a client get its bytes that is accepted in its place, with the same descriptor."""
    async with serving(tmp_path) as server, server.connect() as client:
        await exchange(client, CREATE, 201)
        batch = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
        await until(lambda: server.connections == 6)
        spare: list[socket.socket] = []
        accepted: list[socket.socket] = []

        def replace_the_others(first: Connection) -> None:
            for one in server.door.connections - {first}:
                assert isinstance(one.transport, SocketTransport)
                descriptor = one.transport.fileno()
                one.end()
                ours, theirs = socket.socketpair()
                while ours.fileno() != descriptor:
                    spare.extend((ours, theirs))
                    ours, theirs = socket.socketpair()
                accept(server, ours)
                accepted.append(theirs)

        at_first_arrival(monkeypatch, replace_the_others)
        for sock in batch:
            sock.sendall(APPEND)  # The server does not run in between: this is one batch.
        await until(lambda: len(accepted) == 5)
        for sock in accepted:
            sock.sendall(READ)
        for sock in accepted:
            assert (await received(sock)).count(b"HTTP/1.1 200") == 1
        answers = [await received(sock) for sock in batch]
        assert sorted(answer[:12] for answer in answers) == [b""] * 4 + [b"HTTP/1.1 204"]
        assert await server.content("/v1/stream/s") == b"hello"
        for sock in (*batch, *spare, *accepted):
            sock.close()


async def received(sock: socket.socket) -> bytes:
    """What comes next; empty at the end."""
    with trio.fail_after(PATIENCE_S):
        await trio.lowlevel.wait_readable(sock)
    return sock.recv(10_000)


def accept(server: Serving, sock: socket.socket) -> None:
    """Let the front door serve a socket, as if it had accepted it."""
    sock.setblocking(False)
    assert server.door.clients.enter("new")
    transport = SocketTransport(sock, 1.0)
    server.door.reactor.watch(server.door._connection(transport, "new"), transport)


async def test_ended_connections_are_forgotten(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        async with server.connect() as client:
            await exchange(client, CREATE, 201)
        for requests in (APPEND * 3, WAIT + APPEND, APPEND[:-1], HEALTH + WAIT, MALFORMED, b""):
            async with server.connect() as client:
                await client.send(requests)
                await trio.testing.wait_all_tasks_blocked()
                await client.send(b"more")
                await trio.testing.wait_all_tasks_blocked()
        await until(lambda: server.connections == 0)
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        assert [one for one in gc.get_objects() if isinstance(one, Connection)] == []


def generated(random: Random) -> list[bytes]:
    """Requests in pieces, of which a malformed one may be the last."""
    requests = [CREATE]
    requests += random.choices([APPEND, READ, HEALTH, CHUNKED, UNKNOWN, b"\r\n"], k=30)
    requests += random.choices([MALFORMED, TOO_LARGE, APPEND[:-2], b"\0", b""])
    stream = b"".join(requests)
    cuts = sorted(random.sample(range(len(stream)), 20))
    return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, None], strict=True)]


async def answers(server: Serving, pieces: list[bytes], random: Random) -> bytes:
    async with server.connect() as client:
        for piece in pieces:
            await client.send(piece)
            if random.random() < 0.7:
                await trio.testing.wait_all_tasks_blocked()
        client.finish_sending()
        text = await client.read_to_end()
    return re.sub(rb"Date: [^\r]*", b"", text)


@pytest.mark.parametrize("seed", seeds(3))
async def test_generated_requests_are_answered_alike_by_both(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[bytes] = []
    for name in ("_batch_io", "batch_io_twin"):
        module: Any = import_module(f"streamd.http.sockets.{name}")
        monkeypatch.setattr("streamd.http.door.reactor.receive_ready", module.receive_ready)
        random = Random(seed)
        async with serving(tmp_path / name) as server:
            heard.append(await answers(server, generated(random), random))
    assert heard[0] == heard[1]
    assert heard[0].count(b"HTTP/1.1 2") > 10
