"""Connections in their normal way share one task; what must wait for a client has one of its own.

That both ways answer alike is shown by the other tests of this directory: each of them takes the
way that its request has.
"""

from __future__ import annotations

import socket
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from streamd.group.applying import Applier
from streamd.http.application import HttpApplication
from streamd.http.dispatcher import Dispatcher
from streamd.http.door import reactor
from streamd.http.door.connection import Connection
from streamd.http.door.connection_task import ConnectionTask
from streamd.http.door.states import State
from streamd.http.sockets.transports import RECEIVE_BYTES
from streamd.process.exits import errors_in
from streamd.storage.errors import StorageError
from streamd.storage.log_store import LogStore
from streamd.streams.keys import stream_key
from streamd.streams.offsets import START
from tests.http.serving import PATIENCE_S, RawClient, Serving, serving, until

HEAD = b"Host: x\r\nContent-Type: text/plain\r\n"
CREATE = b"PUT /v1/stream/s HTTP/1.1\r\n" + HEAD + b"\r\n"
APPEND = b"POST /v1/stream/s HTTP/1.1\r\n" + HEAD + b"Content-Length: 1\r\n\r\nx"
READ = b"GET /v1/stream/s HTTP/1.1\r\nHost: x\r\n\r\n"
TAIL = b"HEAD /v1/stream/s HTTP/1.1\r\nHost: x\r\n\r\n"
SNAPSHOT = b"PUT /bucket/s/snapshot/%b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
RACE = 50


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def exchange(client: RawClient, request: bytes, status: int) -> None:
    await client.send(request)
    assert (await client.read_response()).status == status


async def clients(stack: AsyncExitStack, server: Serving, count: int) -> list[RawClient]:
    return [await stack.enter_async_context(server.connect()) for _ in range(count)]


async def test_connections_cost_no_tasks(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, AsyncExitStack() as stack:
        [first] = await clients(stack, server, 1)
        await exchange(first, CREATE, 201)
        before = tasks()
        for client in await clients(stack, server, 50):
            await exchange(client, APPEND, 204)
            assert tasks() == before


@pytest.mark.parametrize(
    ("start", "end", "status"),
    [(APPEND[:-1], APPEND[-1:], 204), (b"", HEALTH, 200), (TAIL[:20], TAIL[20:], 200)],
    ids=["a body in pieces", "a handler that waits", "a head in pieces"],
)
async def test_a_connection_that_had_a_task_needs_none_afterwards(
    start: bytes, end: bytes, status: int, tmp_path: Path
) -> None:
    async with serving(tmp_path) as server, server.connect() as client:
        await exchange(client, CREATE, 201)
        before = tasks()
        for _ in range(3):
            await client.send(start)
            await trio.testing.wait_all_tasks_blocked()
            await client.send(end)
            assert (await client.read_response(to_head=start == TAIL[:20])).status == status
            await exchange(client, APPEND, 204)
            await until(lambda: tasks() == before)


async def test_a_connection_keeps_its_task_while_its_requests_need_one(tmp_path: Path) -> None:
    spawned: list[str] = []

    class Watch(trio.abc.Instrument):
        def task_spawned(self, task: trio.lowlevel.Task) -> None:
            spawned.append(task.name)

    async with serving(tmp_path) as server, server.connect() as client:
        await exchange(client, CREATE, 201)
        before = tasks()
        watch = Watch()
        trio.lowlevel.add_instrument(watch)
        for _ in range(5):
            await exchange(client, HEALTH, 200)
        assert sum(ConnectionTask.run.__qualname__ in name for name in spawned) == 1
        await until(lambda: tasks() == before)  # An idle connection has none.
        await exchange(client, HEALTH, 200)
        assert sum(ConnectionTask.run.__qualname__ in name for name in spawned) == 2
        trio.lowlevel.remove_instrument(watch)


async def test_answers_keep_their_order_whichever_way_the_requests_went(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as client:
        pipelined = (CREATE + HEALTH + APPEND + READ + HEALTH + APPEND) * 10
        await client.send(pipelined)
        statuses = [(await client.read_response()).status for _ in range(60)]
    assert statuses[:6] == [201, 200, 204, 200, 200, 204]
    assert statuses[6:] == [200, 200, 204, 200, 200, 204] * 9


async def test_a_client_that_pipelines_does_not_keep_others_waiting(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as hasty, server.connect() as other:
        await exchange(other, CREATE, 201)
        await hasty.send(b"".join(APPEND for _ in range(RACE)))
        await exchange(other, APPEND, 204)
        seen = await server.content("/v1/stream/s")
        for _ in range(RACE):
            assert (await hasty.read_response()).status == 204
    assert len(seen) < RACE, "all that came before was served first"


class Turns(trio.abc.Instrument):
    """Notes how much a count grew in each turn of the loop."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self._last = count()
        self.grew: list[int] = []

    def before_io_wait(self, timeout: float) -> None:
        now = self._count()
        self.grew.append(now - self._last)
        self._last = now


async def test_a_client_has_one_request_served_in_a_turn_however_its_bytes_come(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server, server.connect() as client:
        await exchange(client, CREATE, 201)
        turns = Turns(lambda: server.node.metrics.requests.get(("stream", "HEAD", 200), 0))
        trio.lowlevel.add_instrument(turns)
        await client.send(TAIL * RACE)
        # Each of these bytes is reported while requests before it wait for their turns.
        for byte in TAIL:
            await client.send(bytes((byte,)))
        for _ in range(RACE + 1):
            await client.read_response(to_head=True)
        trio.lowlevel.remove_instrument(turns)
    assert sum(turns.grew) >= RACE, "all but the last turn are noted"
    # The last one by what was due, and the next one because its bytes came then.
    assert max(turns.grew) <= 2


async def test_a_turn_sends_a_bounded_number_of_the_answers_that_are_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reactor, "CALLS_PER_TURN", 8)
    async with serving(tmp_path) as server, AsyncExitStack() as stack:
        writers = await clients(stack, server, 40)
        await exchange(writers[0], CREATE, 201)
        group = server.node.group
        with monkeypatch.context() as patch:
            patch.setattr(group, "_propose_pending", lambda: None)
            for writer in writers:
                await writer.send(APPEND)
            await until(lambda: group._queue.held[0].now == 40)
        turns = Turns(lambda: server.node.metrics.requests.get(("stream", "POST", 204), 0))
        trio.lowlevel.add_instrument(turns)
        for writer in writers:
            assert (await writer.read_response()).status == 204
        trio.lowlevel.remove_instrument(turns)
    assert sum(turns.grew) == 40
    assert max(turns.grew) == 8


async def test_pipelined_requests_stay_in_the_socket_until_their_turn(tmp_path: Path) -> None:
    padded = APPEND.replace(HEAD, HEAD + b"X-Padding: " + b"x" * 4000 + b"\r\n")
    count = 4 * RECEIVE_BYTES // len(padded)
    async with serving(tmp_path) as server, server.connect() as client:
        await exchange(client, CREATE, 201)
        [connection] = server.door.connections
        largest = 0

        async def watch() -> None:
            nonlocal largest
            while True:
                largest = max(largest, len(connection.buffer))
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            nursery.start_soon(client.send, padded * count)
            for _ in range(count):
                assert (await client.read_response()).status == 204
            nursery.cancel_scope.cancel()
    assert largest < RECEIVE_BYTES + len(padded)


async def test_a_client_that_takes_no_answers_holds_up_only_itself(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, AsyncExitStack() as stack:
        [other] = await clients(stack, server, 1)
        await exchange(other, CREATE, 201)
        await exchange(other, APPEND.replace(b": 1\r\n", b": 50000\r\n") + b"x" * 49_999, 204)
        greedy = await stack.enter_async_context(server.connect(receive_buffer=4096))
        before = tasks()
        await greedy.send(READ * 400)
        await until(lambda: tasks() == before + 1)  # It waits for its socket in a task.
        await exchange(other, APPEND, 204)
        for _ in range(400):
            assert len((await greedy.read_response()).body) >= 50_000


@pytest.mark.parametrize("requests", [CREATE, CREATE + APPEND, CREATE + APPEND[:30], b""])
async def test_the_end_of_the_input_is_noticed_although_it_came_with_the_last_bytes(
    requests: bytes, tmp_path: Path
) -> None:
    async with serving(tmp_path) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            await until(lambda: server.connections == 1)
            # Without a wait in between: the server gets both at once.
            client.sendall(requests)
            client.shutdown(socket.SHUT_WR)
            await until(lambda: server.connections == 0)
            answers = client.recv(RECEIVE_BYTES)
    assert answers.count(b"HTTP/1.1 20") == requests.count(b"\r\n\r\n")


async def test_a_head_that_is_not_whole_has_its_time_limit(tmp_path: Path) -> None:
    async with serving(tmp_path, header_timeout_ms=50) as server, server.connect() as client:
        await exchange(client, CREATE, 201)
        await client.send(APPEND + APPEND[:30])
        assert (await client.read_response()).status == 204
        late = await client.read_response()
        assert (late.status, late.code) == (408, "HEADER_TIMEOUT")
        assert await client.closed()


class Fault(Exception):
    """What no handler raises by itself."""


PARTS = {
    "begin": (HttpApplication, "_refused"),
    "finish": (Dispatcher, "count_alike"),
    "in a task": (HttpApplication, "_operate"),
}


@pytest.mark.parametrize("at", ["begin", "finish"])
async def test_a_bug_costs_one_client_its_answer(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server, AsyncExitStack() as stack:
        unlucky, other = await clients(stack, server, 2)
        await exchange(other, CREATE, 201)
        await exchange(unlucky, APPEND, 204)
        with monkeypatch.context() as patch, capture_logs() as logged:
            patch.setattr(*PARTS[at], _fail)
            await unlucky.send(APPEND)
            answer = await unlucky.read_response()
            assert (answer.status, answer.code) == (500, "INTERNAL")
            failed = [entry for entry in logged if entry["event"] == "handler failed"]
            assert [entry["method"] for entry in failed] == ["POST"]
            assert await unlucky.closed()
        await exchange(other, APPEND, 204)


def _fail(*_: Any) -> Any:
    raise Fault


@pytest.mark.parametrize(
    ("at", "request_"), [("begin", APPEND), ("finish", APPEND), ("in a task", HEALTH)]
)
async def test_a_storage_error_ends_the_server_wherever_a_request_meets_it(
    at: str, request_: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise StorageError("the disk failed")

    async def serve() -> None:
        async with serving(tmp_path) as server, server.connect() as client:
            await exchange(client, CREATE, 201)
            monkeypatch.setattr(*PARTS[at], fail)
            await client.send(request_)
            assert await client.closed()
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as raised:
        await serve()
    assert {type(error) for error in errors_in(raised.value)} == {StorageError}


async def test_a_storage_error_in_a_turn_of_the_reactor_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed_in: list[list[str]] = []

    def fail(*_: Any) -> Any:
        failed_in.append([frame.name for frame in traceback.extract_stack()])
        raise StorageError("the disk failed")

    async def serve() -> None:
        async with serving(tmp_path) as server, server.connect() as client:
            await exchange(client, CREATE, 201)
            monkeypatch.setattr(Applier, "rows_wanted", fail)
            await client.send(APPEND)
            assert await client.closed()
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as raised:
        await serve()
    assert {type(error) for error in errors_in(raised.value)} == {StorageError}
    assert len(failed_in) == 1
    assert reactor.Reactor._turn.__name__ in failed_in[0]


async def test_an_append_under_way_is_answered_before_a_drained_connection_ends(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server, server.connect() as client:
        await exchange(client, CREATE, 201)
        [connection] = server.door.connections
        await client.send(APPEND * 2)
        with trio.fail_after(PATIENCE_S):
            while connection.state is not State.ANSWERING:
                await trio.lowlevel.checkpoint()
        server.door.drain()
        answer = await client.read_response()
        assert answer.status == 204
        assert answer.headers["connection"] == "close"
        assert await client.closed()


async def test_a_refused_client_can_read_why_although_the_server_drains(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as client:
        await exchange(client, HEALTH, 200)
        await client.send(b"malformed\r\n\r\n")
        assert (await client.read_response()).code == "BAD_REQUEST"
        server.door.drain()
        await trio.testing.wait_all_tasks_blocked()
        assert server.connections == 1, "a close now could become a reset"
        client.finish_sending()
        await until(lambda: server.connections == 0)


async def test_reads_of_recent_records_need_no_task(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as client:
        await exchange(client, CREATE, 201)
        await exchange(client, APPEND, 204)
        spawned: list[str] = []

        class Watch(trio.abc.Instrument):
            def task_spawned(self, task: trio.lowlevel.Task) -> None:
                spawned.append(task.name)

        watch = Watch()
        trio.lowlevel.add_instrument(watch)
        for request in (READ, READ.replace(b"/s ", b"/s?offset=now ")):
            await client.send(request)
            await client.read_response()
        await client.send(TAIL)
        assert (await client.read_response(to_head=True)).status == 200
        trio.lowlevel.remove_instrument(watch)
    assert not [name for name in spawned if ConnectionTask.run.__qualname__ in name]


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (APPEND.replace(b": 1\r\n", b": %d\r\n" % (len(APPEND) + 1))[:-1] + APPEND, b"x"),
        (SNAPSHOT % (START.token(), len(APPEND) + 1) + APPEND, b"x"),
    ],
    ids=["a body", "a body taken in pieces"],
)
async def test_what_a_task_reads_is_not_for_the_reactor(
    start: bytes, end: bytes, tmp_path: Path
) -> None:
    async with serving(tmp_path) as server, server.connect() as client:
        await exchange(client, CREATE, 201)
        await exchange(client, CREATE.replace(b"v1/stream/s", b"bucket"), 201)
        await exchange(client, CREATE.replace(b"v1/stream/s", b"bucket/s"), 201)
        [connection] = server.door.connections
        before = tasks()
        await client.send(start)
        await until(lambda: tasks() > before)
        await trio.testing.wait_all_tasks_blocked()
        await client.send(end)
        # As a call does that was due when the task took over.
        connection.advance()
        assert (await client.read_response()).status in (204, 201)
        await exchange(client, APPEND, 204)
        await until(lambda: tasks() == before)


async def test_a_request_that_waits_for_its_turn_is_not_served_once_its_connection_ended(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server, server.connect() as client:
        await exchange(client, CREATE, 201)
        [connection] = server.door.connections
        await client.send(APPEND * RACE)
        with trio.fail_after(PATIENCE_S):
            while connection.state is not State.IDLE or not connection.buffer:
                await trio.lowlevel.checkpoint()
        server.door.drain()
        answers = (await client.read_to_end()).count(b"HTTP/1.1 204")
        stream = await server.node.reads.stream(stream_key(b"_default", b"s"))
        await trio.testing.wait_all_tasks_blocked()
        assert stream is not None
        assert 0 < answers == stream.records < RACE


async def test_idle_connections_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server, AsyncExitStack() as stack:
        busy, *idle = await clients(stack, server, 301)
        await exchange(busy, CREATE, 201)
        for client in idle:
            await exchange(client, TAIL.replace(b"HEAD", b"GET"), 200)
        looked_at: Counter[Connection] = Counter()
        take, advance = Connection.take, Connection.advance

        def counted_take(connection: Connection, data: bytes) -> None:
            looked_at[connection] += 1
            take(connection, data)

        def counted(connection: Connection) -> None:
            looked_at[connection] += 1
            advance(connection)

        monkeypatch.setattr(Connection, "take", counted_take)
        monkeypatch.setattr(Connection, "advance", counted)
        for _ in range(10):
            await exchange(busy, APPEND, 204)
    assert len(looked_at) == 1
    assert looked_at.total() <= 20


async def test_a_write_may_end_after_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs may take longer than the drain does."""
    disk_goes_on = threading.Event()
    append = LogStore.append

    def append_late(*args: Any) -> None:
        assert disk_goes_on.wait(PATIENCE_S)
        append(*args)

    async with serving(tmp_path, drain_timeout_ms=50) as server, server.connect() as client:
        await exchange(client, CREATE, 201)
        monkeypatch.setattr(LogStore, "append", append_late)
        applied = server.node.group.view.applied_index
        await client.send(APPEND)
        await until(lambda: server.node.group.view.last_index > applied)
        server.door.drain()
        assert await client.closed()
        disk_goes_on.set()
        await until(lambda: server.node.group.view.applied_index > applied)
        assert await server.node.group.storage.compact() > applied
