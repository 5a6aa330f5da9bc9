"""The HTTP/1.1 server: connections, framing, time limits, pressure and draining."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from streamd.http.door.states import State
from tests.http.serving import PATIENCE_S, RawClient, Serving, serving, until

STREAM = "/v1/stream/s"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
TAIL_LIVE = b"GET /v1/stream/s?offset=now&live=%b HTTP/1.1\r\nHost: x\r\n\r\n"


def append(body: bytes, *lines: bytes) -> bytes:
    return post(b"Content-Length: %d" % len(body), *lines) + body


def post(*lines: bytes) -> bytes:
    start = (b"POST /v1/stream/s HTTP/1.1", b"Host: x", b"Content-Type: text/plain")
    return b"\r\n".join((*start, *lines)) + b"\r\n\r\n"


@asynccontextmanager
async def with_stream(tmp_path: Path, **settings: Any) -> AsyncIterator[Serving]:
    """A server with one empty text stream."""
    async with serving(tmp_path, **settings) as server:
        async with server.client() as client:
            await client.put(STREAM, headers={"Content-Type": "text/plain"})
        yield server


async def in_flight_read(server: Serving, client: RawClient, mode: bytes) -> None:
    """Start a live read by `client`; returns once the reader is parked."""
    await client.send(TAIL_LIVE % mode)
    await until(lambda: server.hub.reading_now[mode.decode()] and server.hub.present)


# -- connections and framing ----------------------------------------------------------------------


async def test_a_connection_serves_one_request_after_the_other(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as client:
        for _ in range(3):
            await client.send(HEALTH)
            answer = await client.read_response()
            assert answer.status == 200
            assert "connection" not in answer.headers
        assert len(server.door.connections) == 1


async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    async with with_stream(tmp_path) as server, server.connect() as client:
        requests = b"".join(append(b"%d," % number) + HEALTH for number in range(20))
        await client.send(requests)
        answers = [(await client.read_response()).status for _ in range(40)]
        assert answers == [204, 200] * 20
        assert await server.content(STREAM) == b"".join(b"%d," % number for number in range(20))


async def test_bytes_after_a_refused_request_are_never_parsed(tmp_path: Path) -> None:
    async with with_stream(tmp_path) as server, server.connect() as client:
        await client.send(append(b"one") + b"GET / HTTP/1.1\r\n\r\n" + append(b"two"))
        assert (await client.read_response()).status == 204
        assert (await client.read_response()).status == 400
        assert await client.closed()
        assert await server.content(STREAM) == b"one"


@pytest.mark.parametrize("request_", [b"close", b"Close", b"keep-alive, close", b"x ,close"])
async def test_connection_close_ends_the_connection(request_: bytes, tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as client:
        await client.send(HEALTH[:-2] + b"Connection: %b\r\n\r\n" % request_ + HEALTH)
        answer = await client.read_response()
        assert answer.headers["connection"] == "close"
        assert await client.closed()


async def test_http_1_0_closes_unless_asked_to_keep_alive(tmp_path: Path) -> None:
    old = HEALTH.replace(b"HTTP/1.1", b"HTTP/1.0")
    async with serving(tmp_path) as server, server.connect() as client:
        await client.send(old[:-2] + b"Connection: keep-alive\r\n\r\n")
        assert (await client.read_response()).headers["connection"] == "keep-alive"
        await client.send(old.replace(b"Host: x\r\n", b""))
        answer = await client.read_response()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.closed()


async def test_http_1_0_gets_live_bodies_unframed_until_the_close(tmp_path: Path) -> None:
    async with with_stream(tmp_path) as server, server.connect() as client:
        await client.send((TAIL_LIVE % b"sse").replace(b"HTTP/1.1", b"HTTP/1.0"))
        head = await client.read_head()
        assert "transfer-encoding" not in head.headers
        assert head.headers["connection"] == "close"
        async with server.client() as writer:
            await writer.post(STREAM, headers={"Stream-Closed": "true"})
        assert b'"streamClosed":true' in await client.read_to_end()


async def test_100_continue_is_sent_before_the_body_is(tmp_path: Path) -> None:
    async with with_stream(tmp_path) as server, server.connect() as client:
        for framing, body in (
            (b"Content-Length: 2", b"hi"),
            (b"Transfer-Encoding: chunked", b"2\r\nhi\r\n0\r\n\r\n"),
        ):
            await client.send(post(framing, b"Expect: 100-continue"))
            assert (await client.read_response()).status == 100
            await client.send(body)
            assert (await client.read_response()).status == 204
        assert await server.content(STREAM) == b"hihi"


async def test_100_continue_is_not_sent_when_the_body_has_arrived(tmp_path: Path) -> None:
    async with with_stream(tmp_path) as server, server.connect() as client:
        await client.send(append(b"hi", b"Expect: 100-continue"))
        assert (await client.read_response()).status == 204


async def test_white_space_around_a_header_value_is_ignored(tmp_path: Path) -> None:
    async with with_stream(tmp_path) as server, server.connect() as client:
        await client.send(post(b"Content-Length:\t2 \t", b"Stream-Closed: \ttrue\t ") + b"hi")
        answer = await client.read_response()
        assert (answer.status, answer.headers["stream-closed"]) == (204, "true")


async def test_an_expectation_of_http_1_0_is_ignored(tmp_path: Path) -> None:
    async with with_stream(tmp_path) as server, server.connect() as client:
        head = post(b"Content-Length: 2", b"Expect: 100-continue")
        await client.send(head.replace(b"HTTP/1.1", b"HTTP/1.0"))
        await until(lambda: {each.state for each in server.door.connections} == {State.TASK_BODY})
        await client.send(b"hi")
        assert (await client.read_response()).status == 204


async def test_a_request_may_come_byte_by_byte(tmp_path: Path) -> None:
    whole = append(b"one") + post(b"Transfer-Encoding: chunked")
    whole += b"3;x=y\r\ntwo\r\n0\r\nX-Sum: 1\r\n\r\n" + HEALTH
    async with with_stream(tmp_path) as server, server.connect() as client:
        read = server.node.metrics
        for place in range(len(whole)):
            before = read.bytes_in
            await client.send(whole[place : place + 1])
            await until(lambda before=before: read.bytes_in > before)
        assert [(await client.read_response()).status for _ in range(3)] == [204, 204, 200]
        assert await server.content(STREAM) == b"onetwo"


async def test_a_chunked_body_may_be_split_anywhere(tmp_path: Path) -> None:
    body = b"3;a=b\r\none\r\n0005\r\n,two,\r\n0\r\nX-Sum: 1\r\n\r\n"
    async with with_stream(tmp_path) as server, server.connect() as client:
        read = server.node.metrics
        for place in range(len(body) + 1):
            before = read.bytes_in
            first = post(b"Transfer-Encoding: chunked") + body[:place]
            await client.send(first)
            before += len(first)
            await until(lambda before=before: read.bytes_in >= before)
            await client.send(body[place:])
            assert (await client.read_response()).status == 204
        assert await server.content(STREAM) == b"one,two," * (len(body) + 1)


async def test_head_has_the_length_of_the_body_but_no_body(tmp_path: Path) -> None:
    head = HEALTH.replace(b"GET", b"HEAD")
    missing = head.replace(b"/healthz", b"/v1/stream/none")
    async with serving(tmp_path) as server, server.connect() as client:
        await client.send(head + missing + HEALTH)
        answer = await client.read_response(to_head=True)
        assert answer.status == 200
        assert (await client.read_response(to_head=True)).status == 404
        last = await client.read_response()
        assert answer.headers["content-length"] == str(len(last.body))


async def test_a_live_response_leaves_the_connection_usable(tmp_path: Path) -> None:
    async with with_stream(tmp_path) as server, server.connect() as client:
        await in_flight_read(server, client, b"sse")
        await client.send(HEALTH)
        async with server.client() as writer:
            await writer.post(STREAM, headers={"Stream-Closed": "true"})
        assert (await client.read_response()).headers["transfer-encoding"] == "chunked"
        assert json.loads((await client.read_response()).body) == {"status": "ok"}


# -- time limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"G", HEALTH[:-2]], ids=["its first byte", "all but its end"])
async def test_a_head_that_comes_too_slowly_is_408(sent: bytes, tmp_path: Path) -> None:
    async with serving(tmp_path, header_timeout_ms=300) as server, server.connect() as client:
        await client.send(sent)
        answer = await client.read_response()
        assert (answer.status, answer.code) == (408, "HEADER_TIMEOUT")
        assert answer.headers["connection"] == "close"
        assert await client.closed()


@pytest.mark.parametrize("framing", [b"Content-Length: 9", b"Transfer-Encoding: chunked"])
async def test_a_body_that_comes_too_slowly_is_408(framing: bytes, tmp_path: Path) -> None:
    async with with_stream(tmp_path, body_timeout_ms=300) as server:
        async with server.connect() as client:
            await client.send(post(framing) + b"4")
            answer = await client.read_response()
            assert (answer.status, answer.code) == (408, "BODY_TIMEOUT")
            assert await client.closed()
        await until(lambda: server.door.shared.bodies.held == 0)
        assert await server.content(STREAM) == b""


async def test_a_long_body_may_take_long_if_it_keeps_coming(tmp_path: Path) -> None:
    limits = {"body_timeout_ms": 300, "body_min_bytes_per_s": 1}
    async with with_stream(tmp_path, **limits) as server, server.connect() as client:
        sent = post(b"Content-Length: 31")
        for _ in range(3):
            sweeps = server.door.shared.clock.now
            await client.send(sent + b"x" * 10)
            await until(lambda sweeps=sweeps: server.door.shared.clock.now > sweeps)
            sent = b""
        await client.send(b"y")
        assert (await client.read_response()).status == 204


async def test_an_idle_connection_is_closed_silently(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, idle_timeout_ms=300) as server,
        server.connect() as fresh,
        server.connect() as used,
    ):
        await used.send(HEALTH)
        assert (await used.read_response()).status == 200
        assert await fresh.closed()
        assert await used.closed()
        await until(lambda: not server.door.connections)


async def test_a_waiting_reader_is_not_idle(tmp_path: Path) -> None:
    limits = dict.fromkeys(("idle_timeout_ms", "header_timeout_ms", "body_timeout_ms"), 100)
    async with with_stream(tmp_path, **limits) as server, server.connect() as client:
        await in_flight_read(server, client, b"long-poll")
        sweeps = server.door.shared.clock.now
        await until(lambda: server.door.shared.clock.now > sweeps)
        async with server.client() as writer:
            await writer.post(STREAM, content=b"hi", headers={"Content-Type": "text/plain"})
        assert (await client.read_response()).body == b"hi"


async def test_a_reader_that_takes_nothing_is_disconnected(tmp_path: Path) -> None:
    async with with_stream(tmp_path, write_timeout_ms=200) as server:
        async with server.client() as writer:
            for _ in range(8):
                body = b"x" * 1024 * 1024
                await writer.post(STREAM, content=body, headers={"Content-Type": "text/plain"})
        await until(lambda: not server.door.connections)
        async with server.connect(receive_buffer=4096) as client:
            read = b"GET /v1/stream/s?max_bytes=8388608 HTTP/1.1\r\nHost: x\r\n\r\n"
            await client.send(read)
            await until(lambda: server.door.connections)
            await until(lambda: not server.door.connections)
            assert len(await client.read_to_end()) < 8 * 1024 * 1024


async def test_a_live_reader_that_takes_nothing_is_disconnected(tmp_path: Path) -> None:
    async with (
        with_stream(tmp_path, write_timeout_ms=200) as server,
        server.connect(receive_buffer=4096) as client,
        server.client() as writer,
    ):
        await in_flight_read(server, client, b"sse")
        for _ in range(8):
            body = b"x" * 1024 * 1024
            await writer.post(STREAM, content=body, headers={"Content-Type": "text/plain"})
        await until(lambda: server.hub.reading_now["sse"] == 0)
        assert not server.hub.present


# -- pressure -------------------------------------------------------------------------------------


async def test_a_connection_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, max_connections=2) as server,
        server.connect() as first,
        server.connect() as second,
    ):
        for one in (first, second):  # Without a request they would give way.
            await one.send(HEALTH)
            assert (await one.read_response()).status == 200
        async with server.connect() as third:
            answer = await third.read_response()
            assert (answer.status, answer.code) == (503, "TOO_MANY_CONNECTIONS")
            assert answer.headers["retry-after"] == "1"
            assert await third.closed()
        await second.send(HEALTH)
        assert (await second.read_response()).status == 200
        second.close()
        await until(lambda: len(server.door.connections) == 1)
        async with server.connect() as fourth:
            await fourth.send(HEALTH)
            assert (await fourth.read_response()).status == 200


async def test_bodies_beyond_the_memory_limit_are_refused(tmp_path: Path) -> None:
    limits = {"max_body_bytes": 1000, "max_buffered_bytes": 1500}
    begun = post(b"Content-Length: 1000") + b"x" * 999
    async with with_stream(tmp_path, **limits) as server:
        async with server.connect() as first, server.connect() as second:
            await first.send(begun)
            await until(lambda: server.door.shared.bodies.held)
            await second.send(begun)
            answer = await second.read_response()
            assert (answer.status, answer.code) == (503, "OVERLOADED")
            assert answer.headers["retry-after"] == "1"
            assert await second.closed()
            await first.send(b"x")
            assert (await first.read_response()).status == 204
        await until(lambda: server.door.shared.bodies.held == 0)
        assert await server.content(STREAM) == b"x" * 1000


async def test_a_refused_body_releases_its_room_at_once(tmp_path: Path) -> None:
    limits = {"max_body_bytes": 1000, "max_buffered_bytes": 1500}
    begun = post(b"Transfer-Encoding: chunked") + b"3e8\r\n" + b"x" * 999
    async with (
        with_stream(tmp_path, **limits) as server,
        server.connect() as first,
        server.connect() as second,
    ):
        await first.send(begun)
        await until(lambda: server.door.shared.bodies.held)
        await second.send(begun)
        assert (await second.read_response()).status == 503
        await first.send(b"x\r\n0\r\n\r\n")
        assert (await first.read_response()).status == 204


# -- clients that leave ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /v1",
        post(b"Content-Length: 9") + b"hi",
        post(b"Transfer-Encoding: chunked") + b"2\r\nh",
    ],
    ids=["before a request", "mid-head", "mid-body", "mid-chunk"],
)
async def test_a_client_that_leaves_ends_its_task(sent: bytes, tmp_path: Path) -> None:
    async with with_stream(tmp_path) as server:
        await until(lambda: not server.door.connections)
        read = server.node.metrics
        async with server.connect() as client:
            before = read.bytes_in
            await client.send(sent)
            await until(lambda: server.door.connections and read.bytes_in == before + len(sent))
        await until(lambda: not server.door.connections)
        assert server.door.shared.bodies.held == 0
        assert await server.content(STREAM) == b""


async def test_a_truncated_body_is_not_appended(tmp_path: Path) -> None:
    async with with_stream(tmp_path) as server, server.connect() as client:
        await client.send(post(b"Content-Length: 9") + b"hi")
        client.finish_sending()
        assert await client.closed()
        assert await server.content(STREAM) == b""


@pytest.mark.parametrize("mode", [b"long-poll", b"sse"])
async def test_a_live_reader_that_leaves_is_forgotten(mode: bytes, tmp_path: Path) -> None:
    async with with_stream(tmp_path) as server:
        async with server.connect() as client:
            await in_flight_read(server, client, mode)
        await until(lambda: not any(server.hub.reading_now.values()))
        assert not server.hub.present
        await until(lambda: not server.door.connections)


# -- the way out ----------------------------------------------------------------------------------


async def test_draining_ends_idle_connections_and_takes_no_more(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as client:
        await client.send(HEALTH)
        await client.read_response()
        server.door.drain()
        assert await client.closed()
        try:
            async with server.connect() as late:
                assert await late.closed()
        except OSError:
            pass  # Refused at once, as all are that come a moment later still.


async def test_draining_lets_a_request_in_flight_finish(tmp_path: Path) -> None:
    async with with_stream(tmp_path) as server, server.connect() as client:
        await client.send(post(b"Content-Length: 2") + b"h")
        await until(lambda: server.door.shared.bodies.held == 1)
        server.door.drain()
        await client.send(b"i")
        answer = await client.read_response()
        assert (answer.status, answer.headers["connection"]) == (204, "close")
        assert await client.closed()


@pytest.mark.parametrize(("mode", "status"), [(b"long-poll", 204), (b"sse", 200)])
async def test_draining_ends_live_responses_cleanly(
    mode: bytes, status: int, tmp_path: Path
) -> None:
    async with with_stream(tmp_path) as server, server.connect() as client:
        await in_flight_read(server, client, mode)
        server.hub.drain()
        server.door.drain()
        assert (await client.read_response()).status == status
        assert await client.closed()


async def test_draining_cancels_requests_that_never_finish(tmp_path: Path) -> None:
    async with with_stream(tmp_path, drain_timeout_ms=100) as server, server.connect() as client:
        await client.send(post(b"Content-Length: 2") + b"h")
        await until(lambda: server.door.shared.bodies.held == 1)
        server.door.drain()
        with trio.fail_after(PATIENCE_S):
            assert await client.closed()
