"""One client's traffic, however slow, fragmented or large, costs others next to nothing.

What only HTTP/2 can do is in `test_http2_clients` and `test_http2_frames`.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from streamd.http.door.listeners import ACCEPTS_PER_TURN
from streamd.http.door.states import State
from tests.http.serving import PATIENCE_S, RawClient, Serving, serving, until

MIB = 1024 * 1024


async def test_many_connections_are_accepted_in_few_turns_of_the_loop(tmp_path: Path) -> None:
    many = 256
    async with serving(tmp_path) as server:
        with ExitStack() as clients, trio.fail_after(PATIENCE_S):
            for _ in range(many):
                clients.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            accepted = [0]
            while accepted[-1] < many:
                await trio.lowlevel.checkpoint()
                accepted.append(server.connections)
    in_each = [after - before for before, after in pairwise(accepted)]
    # Between two checks the accepting task may have run twice.
    assert max(in_each) <= 2 * ACCEPTS_PER_TURN, "connected clients wait for new ones"
    assert len(in_each) < many / 4, f"{many} connections waited for {len(in_each)} turns"


# -- what slow clients hold ------------------------------------------------------------------------

STRANGER = "127.0.0.2"
BINARY = {"Content-Type": "application/octet-stream"}
APPEND = (
    b"POST /v1/stream/s HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n"
    b"Content-Length: %d\r\n\r\n"
)
STREAM = "/bucket/s"


@asynccontextmanager
async def slow_clients(
    server: Serving, count: int, request: bytes, *, source: str = STRANGER
) -> AsyncIterator[list[RawClient]]:
    """`count` connections of a client that reads little, with `request` sent on each."""
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(count):
            connect = server.connect(receive_buffer=4096, source=source)
            clients.append(await stack.enter_async_context(connect))
            await clients[-1].send(request)
        yield clients


async def test_announced_bodies_that_never_come_cost_nothing(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"max_body_bytes": 100_000, "max_buffered_bytes": 1_000_000}
    async with serving(tmp_path, **limits) as server, server.client() as client:
        await client.put("/v1/stream/s", headers=BINARY)
        async with slow_clients(server, 20, APPEND % 100_000 + b"x", source="127.0.0.1"):
            await until(lambda: server.bodies.held == 20)
            for _ in range(3):
                answer = await client.post("/v1/stream/s", content=b"y" * 100_000, headers=BINARY)
                assert answer.status_code == 204


async def test_unfinished_bodies_leave_room_for_other_clients(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"max_body_bytes": 100_000, "max_buffered_bytes": 1_000_000}
    most = limits["max_buffered_bytes"] // 2
    async with serving(tmp_path, **limits) as server, server.client() as client:
        await client.put("/v1/stream/s", headers=BINARY)
        seen = [0]

        async def watch() -> None:
            while True:
                seen.append(server.bodies.held)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            async with slow_clients(server, 20, APPEND % 100_000 + b"x" * 90_000):
                await until(lambda: server.bodies.held >= most - 90_000)
                answers = []

                async def append() -> None:
                    answers.append(
                        await client.post("/v1/stream/s", content=b"y" * 80_000, headers=BINARY)
                    )

                async with trio.open_nursery() as appending:
                    for _ in range(3):
                        appending.start_soon(append)
                assert [answer.status_code for answer in answers] == [204] * 3
            nursery.cancel_scope.cancel()
        assert max(seen) <= limits["max_buffered_bytes"]


async def test_slow_uploads_leave_slots_to_other_clients(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, max_snapshot_uploads=8) as server,
        server.client() as client,
    ):
        at = await prepare_snapshots(client)
        begun = f"PUT {STREAM}/snapshot/{at} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx"
        refused = []

        async def await_answer(stranger: RawClient) -> None:
            refused.append((await stranger.read_response()).code)

        async with (
            slow_clients(server, 8, begun.encode()) as strangers,
            trio.open_nursery() as nursery,
        ):
            for stranger in strangers:
                nursery.start_soon(await_answer, stranger)
            await until(lambda: server.service.uploads.held + len(refused) == 8)
            published = await client.put(f"{STREAM}/snapshot/{at}", content=b"state")
            assert published.status_code == 204
            assert refused == ["TOO_MANY_UPLOADS"] * 4
            nursery.cancel_scope.cancel()
        await until(lambda: server.service.uploads.held == 0)


async def prepare_snapshots(client: httpx.AsyncClient) -> str:
    """Make a stream with one record, and return the offset after it."""
    await client.put("/bucket")
    await client.put(STREAM, headers=BINARY)
    appended = await client.post(STREAM, content=b"one", headers=BINARY)
    return str(appended.headers["stream-next-offset"])


async def test_slow_downloads_leave_slots_to_other_clients(tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000
    async with (
        serving(tmp_path, max_snapshot_downloads=8) as server,
        server.client() as client,
    ):
        path = f"{STREAM}/snapshot/{await prepare_snapshots(client)}"
        assert (await client.put(path, content=content)).status_code == 204
        get = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        async with slow_clients(server, 8, get) as strangers:
            answers = [(await stranger.read_head()).status for stranger in strangers]
            assert sorted(answers) == [200] * 4 + [503] * 4
            assert (await client.get(path)).content == content
            bootstrap = await client.get(f"{STREAM}/bootstrap")
            assert content in bootstrap.content
        await until(lambda: server.service.downloads.held == 0)


async def test_untaken_reads_leave_room_for_other_clients(tmp_path: Path) -> None:
    record = b"r" * 8 * MIB  # More than the system's buffers hold.
    limits: dict[str, Any] = {"max_body_bytes": 8 * MIB, "max_buffered_bytes": 32 * MIB}
    async with serving(tmp_path, **limits) as server, server.client() as client:
        for number in range(7):
            made = await client.put(f"/v1/stream/{number}", content=record, headers=BINARY)
            assert made.status_code == 201
        answers = []
        async with AsyncExitStack() as connections:
            for number in range(6):
                get = b"GET /v1/stream/%d HTTP/1.1\r\nHost: x\r\n\r\n" % number
                [stranger] = await connections.enter_async_context(slow_clients(server, 1, get))
                answers.append((await stranger.read_head()).status)
            assert answers == [200] * 2 + [503] * 4
            assert (await client.get("/v1/stream/6")).content == record


# -- how slow a client may be ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["append", "chunked append", "snapshot"])
async def test_a_fast_start_does_not_pay_for_silence(kind: str, tmp_path: Path) -> None:
    """At the required rate, the first bytes would pay for longer than this test may take."""
    limits: dict[str, Any] = {"body_timeout_ms": 1000, "body_min_bytes_per_s": 1024}
    body = b"x" * 200_000
    async with serving(tmp_path, **limits) as server, server.client() as client:
        at = await prepare_snapshots(client)
        begun = {
            "append": APPEND % 300_000 + body,
            "chunked append": APPEND.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked")
            + b"%x\r\n%b" % (300_000, body),
            "snapshot": f"PUT {STREAM}/snapshot/{at} HTTP/1.1\r\nHost: x\r\n".encode()
            + b"Content-Length: 300000\r\n\r\n"
            + body,
        }[kind]
        async with server.connect() as stranger:
            await stranger.send(begun)
            answer = await stranger.read_response()
            assert (answer.status, answer.code) == (408, "BODY_TIMEOUT")


async def test_a_reader_that_takes_nothing_is_disconnected(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, write_timeout_ms=300) as server,
        server.client() as client,
    ):
        await client.put("/v1/stream/s", content=b"r" * 8 * MIB, headers=BINARY)
        await until(lambda: server.connections == 1)
        get = b"GET /v1/stream/s HTTP/1.1\r\nHost: x\r\n\r\n"
        async with slow_clients(server, 1, get) as [stranger]:
            await stranger.read_head()
            await until(lambda: server.connections == 1)


async def test_a_client_that_left_no_longer_counts(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        for request in (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"):
            async with server.connect() as client:
                await client.send(request)
                if request:
                    await client.read_response()
                await until(lambda: server.connections == 1)
            await until(lambda: server.connections == 0)


# -- the work of one turn of the loop --------------------------------------------------------------


MOST_CHUNKS = 500


class MostInATurn(trio.abc.Instrument):
    """The most that `count` grows in one step of a task."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self._before = count()
        self.most = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._before = self._count()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.most = max(self.most, self._count() - self._before)


async def test_a_body_of_tiny_chunks_is_read_in_many_turns(tmp_path: Path) -> None:
    size = 10_000
    async with serving(tmp_path) as server, server.connect() as client:
        async with server.client() as other:
            await other.put("/v1/stream/s", headers=BINARY)
        instrument = MostInATurn(lambda: server.bodies.held)
        trio.lowlevel.add_instrument(instrument)
        await client.send(
            APPEND.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked")
            + b"1\r\nx\r\n" * size
            + b"0\r\n\r\n"
        )
        assert (await client.read_response()).status == 204
        trio.lowlevel.remove_instrument(instrument)
        assert 0 < instrument.most <= MOST_CHUNKS
        assert await server.content("/v1/stream/s") == b"x" * size


async def test_a_snapshot_of_tiny_chunks_is_read_in_many_turns(tmp_path: Path) -> None:
    size = 100_000
    async with serving(tmp_path) as server, server.client() as client:
        path = f"{STREAM}/snapshot/{await prepare_snapshots(client)}"
        sent = b"1\r\nx\r\n" * size + b"0\r\n\r\n"
        async with server.connect() as raw:
            await raw.send(f"PUT {path} HTTP/1.1\r\nHost: x\r\n".encode())
            await raw.send(b"Transfer-Encoding: chunked\r\n\r\n")
            await until(lambda: server.service.uploads.held == 1)
            [connection] = [
                each for each in server.door.connections if each.state is State.TASK_BUSY
            ]
            metrics = server.node.metrics
            instrument = MostInATurn(lambda: metrics.bytes_in - len(connection.buffer))
            trio.lowlevel.add_instrument(instrument)
            await raw.send(sent)
            assert (await raw.read_response()).status == 204
            trio.lowlevel.remove_instrument(instrument)
        assert 0 < instrument.most <= MOST_CHUNKS * len(b"1\r\nx\r\n")
        assert (await client.get(path)).content == b"x" * size
