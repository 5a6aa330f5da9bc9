"""Live reads that wait for their stream are values of the reactor: they need no task."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from streamd.http.door.connection_task import ConnectionTask
from streamd.http.door.parking import Deadlines, wait
from streamd.http.protocol.application import Begun
from streamd.http.protocol.messages import Request, Response
from streamd.http.streams.tailing import _SseTail
from tests.http.serving import PATIENCE_S, RawClient, Serving, serving, until

HEAD = b"Host: x\r\nContent-Type: text/plain\r\n"
CREATE = b"PUT /v1/stream/s HTTP/1.1\r\n" + HEAD + b"\r\n"
APPEND = b"POST /v1/stream/s HTTP/1.1\r\n" + HEAD + b"Content-Length: 4\r\n\r\nnews"
LIVE = b"GET /v1/stream/s?offset=now&live=%b HTTP/1.1\r\nHost: x\r\n\r\n"
MODES = [b"long-poll", b"sse"]
MANY = 30


class Spawned(trio.abc.Instrument):
    """Counts the tasks that connections get."""

    def __init__(self) -> None:
        self.count = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.count += ConnectionTask.run.__qualname__ in task.name


def readers(server: Serving) -> int:
    return sum(server.hub.reading_now.values())


@asynccontextmanager
async def waiting(
    tmp_path: Path, mode: bytes, count: int = 1, **settings: Any
) -> AsyncIterator[tuple[Serving, RawClient, list[RawClient]]]:
    """A server, a writer that has created the stream, and so many readers that wait."""
    async with serving(tmp_path, **settings) as server, AsyncExitStack() as stack:
        writer = await stack.enter_async_context(server.connect())
        await writer.send(CREATE)
        assert (await writer.read_response()).status == 201
        clients = []
        for number in range(count):
            client = await stack.enter_async_context(server.connect())
            await client.send(LIVE % mode)
            if mode == b"sse":
                await client.read_head()
                assert b"upToDate" in await client.read_chunk()
            await until(lambda wanted=number + 1: len(server.door.parked) == wanted)
            clients.append(client)
        yield server, writer, clients


class Patient:
    """A client that waits for ever."""

    async def wait_disconnected(self) -> None:
        await trio.sleep_forever()


async def append(writer: RawClient) -> None:
    await writer.send(APPEND)
    assert (await writer.read_response()).status == 204


async def receive(client: RawClient, mode: bytes) -> None:
    """The news, by either mode."""
    if mode == b"sse":
        assert b"data:news\n" in await client.read_chunk()
    else:
        assert (await client.read_response()).body == b"news"


@pytest.mark.parametrize("mode", MODES)
async def test_a_reader_that_waits_has_no_task_nor_needs_one_for_news(
    mode: bytes, tmp_path: Path
) -> None:
    async with waiting(tmp_path, mode, MANY) as (server, writer, clients):
        assert readers(server) == MANY
        await until(lambda: trio.lowlevel.current_statistics().tasks_living < MANY)
        spawned = Spawned()
        trio.lowlevel.add_instrument(spawned)
        await append(writer)
        for client in clients:
            await receive(client, mode)
        trio.lowlevel.remove_instrument(spawned)
        assert spawned.count == 0


async def test_heartbeats_need_no_task(tmp_path: Path) -> None:
    async with waiting(tmp_path, b"sse", sse_heartbeat_ms=20) as (_, writer, [client]):
        spawned = Spawned()
        trio.lowlevel.add_instrument(spawned)
        for _ in range(3):
            assert await client.read_chunk() == b":\n\n"
        trio.lowlevel.remove_instrument(spawned)
        assert spawned.count == 0
        await append(writer)
        assert b"data:news\n" in await client.read_through(b"upToDate")


async def test_events_take_the_place_of_heartbeats(tmp_path: Path) -> None:
    async with waiting(tmp_path, b"sse", sse_heartbeat_ms=200) as (_, writer, [client]):
        received = b""
        began = trio.current_time()
        while trio.current_time() < began + 0.6:
            await append(writer)
            received += await client.read_chunk()
    assert b":\n\n" not in received


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("many", [1, 300], ids=["in the socket", "more than is received at once"])
async def test_what_a_client_sends_meanwhile_waits_until_its_read_is_over(
    many: int, mode: bytes, tmp_path: Path
) -> None:
    async with (
        serving(tmp_path, long_poll_timeout_ms=200, sse_lifetime_ms=200) as server,
        server.connect() as client,
    ):
        await client.send(CREATE + LIVE % mode + APPEND * many)
        assert (await client.read_response()).status == 201
        live = await client.read_response()
        assert b"news" not in live.body
        assert live.status == (200 if mode == b"sse" else 204)
        for _ in range(many):
            assert (await client.read_response()).status == 204


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_has_left_already_is_not_waited_for(
    mode: bytes, tmp_path: Path
) -> None:
    async with serving(tmp_path) as server, server.connect() as client:
        await client.send(CREATE + LIVE % mode)
        client.finish_sending()
        await until(lambda: server.node.metrics.requests.get(("stream", "PUT", 201)))
        await until(lambda: not server.connections)
        assert readers(server) == len(server.door.parked) == 0
        assert not server.hub.present


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_leaves_is_noticed_whatever_it_sent_before(
    mode: bytes, tmp_path: Path
) -> None:
    async with waiting(tmp_path, mode) as (server, _, [client]):
        await client.send(b"x" * 50_000)
        client.close()
        await until(lambda: server.connections == 1)
        assert readers(server) == len(server.door.parked) == 0


@pytest.mark.parametrize("mode", MODES)
async def test_many_are_woken_a_few_in_each_turn(
    mode: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.http.door.reactor.CALLS_PER_TURN", 4)
    async with waiting(tmp_path, mode, MANY) as (server, _, clients):
        answered: list[int] = []

        class Turns(trio.abc.Instrument):
            def before_io_wait(self, timeout: float) -> None:
                answered.append(readers(server))

        turns = Turns()
        trio.lowlevel.add_instrument(turns)
        server.hub.drain()
        for client in clients:
            if mode == b"sse":
                assert await client.read_chunk() == b""
            else:
                assert (await client.read_response()).status == 204
        trio.lowlevel.remove_instrument(turns)
    ended = [before - after for before, after in pairwise(answered)]
    assert 0 < max(ended) <= 4


async def test_a_change_reaches_a_few_readers_in_each_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.http.streams.live.READERS_PER_TURN", 4)
    async with waiting(tmp_path, b"sse", MANY) as (server, writer, clients):
        sent: list[int] = []

        class Turns(trio.abc.Instrument):
            def before_io_wait(self, timeout: float) -> None:
                sent.append(server.node.metrics.bytes_out)

        turns = Turns()
        trio.lowlevel.add_instrument(turns)
        await append(writer)
        for client in clients:
            event = await client.read_chunk()
            assert b"data:news\n" in event
        trio.lowlevel.remove_instrument(turns)
    grew = [after - before for before, after in pairwise(sent)]
    assert sum(grew) >= MANY * len(event)
    assert max(grew) < 8 * len(event), "four events, or the writer's answer"


async def test_readers_that_come_meanwhile_miss_nothing_and_get_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.http.streams.live.READERS_PER_TURN", 2)
    numbers = b"".join(b"<%03d>" % number for number in range(100))

    async def write(writer: RawClient, stream: bytes) -> None:
        head = b"POST /v1/stream/%b HTTP/1.1\r\n%bContent-Length: 5\r\n\r\n" % (stream, HEAD)
        for place in range(0, len(numbers), 5):
            await writer.send(head + numbers[place : place + 5])
            assert (await writer.read_response()).status == 204

    async def follow(server: Serving, stream: bytes, after: int) -> None:
        await until(lambda: server.node.metrics.requests.get(("stream", "POST", 204), 0) >= after)
        async with server.connect() as client:
            await client.send((LIVE % b"sse").replace(b"/s?offset=now", b"/%b?offset=-1" % stream))
            await client.read_head()
            body = await client.read_through(numbers[-5:])
        assert b"".join(re.findall(rb"data:(<.*)\n", body)) == numbers

    async with serving(tmp_path) as server, AsyncExitStack() as stack:
        writers = {}
        for stream in (b"s", b"t"):
            writers[stream] = await stack.enter_async_context(server.connect())
            await writers[stream].send(CREATE.replace(b"/s ", b"/%b " % stream))
            assert (await writers[stream].read_response()).status == 201
        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(follow, server, (b"s", b"t")[number % 2], number * 3)
            await until(lambda: server.hub.present)
            for stream, writer in writers.items():
                nursery.start_soon(write, writer, stream)


class Fault(Exception):
    """What no reader raises by itself."""


@pytest.mark.parametrize("part", ["resume", "go_on"])
async def test_a_bug_ends_one_event_stream(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise Fault

    async with (
        waiting(tmp_path, b"sse") as (server, writer, [other]),
        server.connect() as unlucky,
    ):
        await writer.send(CREATE.replace(b"/s ", b"/t "))
        assert (await writer.read_response()).status == 201
        await unlucky.send(LIVE.replace(b"/s?", b"/t?") % b"sse")
        await until(lambda: len(server.door.parked) == 2)
        with monkeypatch.context() as patch, capture_logs() as logged:
            patch.setattr(_SseTail, part, fail)
            await writer.send(b"DELETE /v1/stream/t HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await writer.read_response()).status == 204
            body = await unlucky.read_to_end()
        assert not body.endswith(b"0\r\n\r\n"), "the body is not ended as if it were whole"
        assert ("handler failed", "GET") in [(one["event"], one.get("method")) for one in logged]
        assert server.connections == 2
        await append(writer)
        await receive(other, b"sse")


# -- deadlines ------------------------------------------------------------------------------------


async def test_deadlines_are_kept_in_order_and_none_early(
    autojump_clock: trio.testing.MockClock,
) -> None:
    seed = 13
    print(f"seed {seed}")
    random = Random(seed)
    called: list[tuple[float, float]] = []
    unset = set()
    deadlines: Deadlines[float] = Deadlines(lambda due: called.append((due, trio.current_time())))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        for _ in range(200):
            due = trio.current_time() + random.uniform(0, 2)
            slot = deadlines.set(due, due)
            if random.random() < 0.3:
                deadlines.unset(slot, due)
                unset.add(due)
            await trio.sleep(random.choice((0, 0.003, 0.1)))
        await trio.sleep(3)
        nursery.cancel_scope.cancel()
    assert len(called) == 200 - len(unset)
    assert not unset & {due for due, _ in called}
    assert all(-1e-6 <= at - due <= 0.011 for due, at in called)


async def test_news_that_come_before_a_long_poll_is_waited_for_are_not_lost(tmp_path: Path) -> None:
    """A worker's request begins in one turn, and the task that waits for it in another."""
    channel: Any = Patient()
    settings = {"long_poll_timeout_ms": 600_000}
    async with waiting(tmp_path, b"long-poll", 0, **settings) as (server, writer, _):
        application = server.door.shared.application
        query = b"offset=now&live=long-poll"
        request = Request("GET", b"/v1/stream/s", query, {b"host": b"x"}, b"", channel)
        [begun] = application.begin([request], lambda *_: None)
        assert not isinstance(begun, Response | Begun | Exception)
        await append(writer)
        await until(lambda: not server.hub.present)
        with trio.fail_after(PATIENCE_S):
            answer = await wait(application, begun, channel)
        assert isinstance(answer, Response)
        assert answer.status == 200
