"""Responses are framed so that a client never takes part of one for the whole, whichever server
carries them."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from streamd.config.settings import ServerConfig
from streamd.http.door.front_door import FrontDoor
from streamd.http.door.listeners import listen
from streamd.http.http2.asgi import AsgiApplication
from streamd.http.http2.hypercorn_server import HypercornHttp2
from streamd.http.protocol.application import Begun, Later
from streamd.http.protocol.connections import Channel, ClientGone
from streamd.http.protocol.messages import LateAnswer, LiveResponse, Parked, Request, Response
from streamd.process.metrics import Metrics
from tests.http.pki import Pki
from tests.http.serving import PATIENCE_S, RawClient, serving, until
from tests.support.wire import ResponseCheck, checked_async_client

STREAM = "/v1/stream/s"
STACKS = ["the front door", "Hypercorn", "Hypercorn, HTTP/2"]
# Around what is sent at once and what is cut into pieces, and multiples of 3, which base64 takes
# without a rest.
SIZES = [1, 3, 49_151, 49_152, 49_153, 65_535, 65_536, 65_537, 65_538, 98_304, 98_305, 200_001]


@asynccontextmanager
async def stack(
    name: str, tmp_path: Path, pki: Pki
) -> AsyncIterator[Callable[[], httpx.AsyncClient]]:
    """A server of the kind `name`, and a factory of clients that speak its newest HTTP."""
    settings: dict[str, Any] = {} if name == STACKS[0] else {"http": "hypercorn"}
    if "HTTP/2" in name:
        settings |= {"tls_cert": str(pki.certificate), "tls_key": str(pki.key)}
    async with serving(tmp_path, **settings) as server:
        yield partial(
            checked_async_client,
            base_url=server.url,
            verify=pki.client,
            http2="HTTP/2" in name,
            timeout=PATIENCE_S,
        )


def record(content_type: str, size: int) -> bytes:
    """A record of `size` bytes as it is stored, without the comma after JSON."""
    if content_type == "application/json":
        return b'"%b"' % (b"j" * max(1, size - 3))
    return bytes(range(33, 127)) * (size // 94) + b"x" * (size % 94)


def decoded(content_type: str, data: str) -> bytes:
    if content_type == "application/json":
        return b",".join(json.dumps(message).encode() for message in json.loads(data))
    return data.encode() if content_type == "text/plain" else b64decode(data)


class Tail:
    """A reader by SSE, which follows a stream to its end."""

    def __init__(self, content_type: str) -> None:
        self.content_type = content_type
        self.records: list[bytes] = []
        self.controls: list[dict[str, object]] = []
        self._news = trio.Event()

    async def follow(self, client: httpx.AsyncClient) -> None:
        async with client.stream("GET", f"{STREAM}?offset=-1&live=sse") as response:
            body = ""
            async for text in response.aiter_text():
                body += text
                *events, body = body.split("\n\n")
                for event in events:
                    self._take(event)
        assert not body, "the response ended inside an event"

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition():
                await self._news.wait()

    def _take(self, event: str) -> None:
        kind, _, data = event.partition("\ndata:")
        if kind == "event: control":
            self.controls.append(json.loads(data))
        else:
            assert kind == "event: data"
            self.records.append(decoded(self.content_type, data))
        self._news.set()
        self._news = trio.Event()


@pytest.mark.parametrize("content_type", ["text/plain", "application/json", "image/png"])
@pytest.mark.parametrize("name", STACKS)
async def test_records_of_any_size_are_read_by_sse_to_the_end(
    name: str, content_type: str, tmp_path: Path, pki: Pki
) -> None:
    headers = {"Content-Type": content_type}
    records = [record(content_type, size) for size in SIZES]
    # httpx may wait for ever where streams of one HTTP/2 connection wait for each other.
    async with stack(name, tmp_path, pki) as connect, connect() as client, connect() as reader:
        await client.put(STREAM, headers=headers)
        before, live = Tail(content_type), Tail(content_type)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live.follow, reader)
            await live.until(lambda: bool(live.controls))
            for body in records:
                appended = await client.post(STREAM, content=body, headers=headers)
                at = appended.headers["stream-next-offset"]
                await live.until(lambda at=at: live.controls[-1]["streamNextOffset"] == at)
            await client.post(STREAM, headers={"Stream-Closed": "true"})
            nursery.start_soon(before.follow, reader)
    assert live.records == records
    assert live.controls[-1]["streamClosed"] is True
    joint = b"," if content_type == "application/json" else b""
    assert joint.join(before.records) == joint.join(records)
    assert before.controls[-1] == live.controls[-1]


class WithEmptyPieces:
    """An application whose responses have empty pieces everywhere."""

    def refusal(self, request: Request) -> None:
        return None

    async def foreseen(self, request: Request) -> None:
        return None

    def takes_pieces(self, path: bytes) -> bool:
        return False

    def begin(self, requests: Sequence[Request], later: Later) -> Sequence[Begun]:
        return [Begun.MUST_WAIT for _ in requests]

    async def handle(self, request: Request) -> LiveResponse:
        return LiveResponse(200, b"Content-Type: text/plain\r\n", self._run)

    def resume(self, parked: Parked) -> None:
        raise AssertionError("its responses never wait")

    async def go_on(self, parked: Parked) -> None:
        self.resume(parked)

    async def _run(self, channel: Channel) -> None:
        for piece in (b"", b"one,", b"", b"", b"two,", memoryview(b""), b"three"):
            await channel.send(piece)
        channel.try_send(b"")
        await channel.flush()
        channel.try_send(b",four")
        channel.try_send(b"")
        await channel.flush()


@pytest.mark.parametrize("http2", [False, True])
async def test_an_empty_piece_does_not_end_a_response(http2: bool) -> None:
    config = ServerConfig(data_dir="unused")
    listeners = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listeners[0].getsockname()[1]}"
    hypercorn = HypercornHttp2(AsgiApplication(WithEmptyPieces(), config), config)
    door = FrontDoor(WithEmptyPieces(), config, Metrics(), http2=hypercorn)
    async with (
        trio.open_nursery() as nursery,
        checked_async_client(base_url=url, http1=not http2, http2=http2) as client,
    ):
        nursery.start_soon(door.serve, listeners)
        for _ in range(2):
            assert (await client.get("/")).content == b"one,two,three,four"
        nursery.cancel_scope.cancel()


class Patient(WithEmptyPieces):
    """An application that waits in the connection's task, as that of a worker does for the node."""

    def __init__(self) -> None:
        self.waiting: list[trio.CancelScope] = []

    async def handle(self, request: Request) -> Any:
        with trio.CancelScope() as scope:
            self.waiting.append(scope)
            await request.channel.wait_disconnected()
        if not scope.cancelled_caught:
            raise ClientGone
        return Response(200, b"Content-Type: text/plain\r\n", request.query)


async def test_an_application_may_wait_in_a_task_until_its_client_leaves() -> None:
    config = ServerConfig(data_dir="unused")
    listeners = listen("127.0.0.1", 0)
    application = Patient()
    door = FrontDoor(application, config, Metrics())
    with trio.socket.socket() as sock:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(door.serve, listeners)
            await sock.connect(listeners[0].getsockname())
            client = RawClient(sock)
            asking = b"GET /v1/stream/s?%d HTTP/1.1\r\nHost: x\r\n\r\n"
            await client.send(asking % 1)
            await until(lambda: len(application.waiting) == 1)
            await client.send(asking % 2)
            for number in (1, 2):
                await until(lambda wanted=number: len(application.waiting) == wanted)
                application.waiting[-1].cancel()
                assert (await client.read_response()).body == b"%d" % number
            await client.send(asking % 3)
            await until(lambda: len(application.waiting) == 3)
            client.close()
            await until(lambda: not door.connections)
            nursery.cancel_scope.cancel()


class LateRefuser(WithEmptyPieces):
    """An application that refuses a body which it may receive in pieces, after a while."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    def takes_pieces(self, path: bytes) -> bool:
        return True

    async def handle(self, request: Request) -> Any:
        self.heard.append(request.path)
        return LateAnswer(Response(429, b"Retry-After: 1\r\n"), trio.current_time() + 0.1)

    def resume(self, parked: Parked) -> Any:
        return parked.resume()


async def test_an_answer_that_comes_late_to_a_body_left_unread_ends_the_connection() -> None:
    application = LateRefuser()
    listeners = listen("127.0.0.1", 0)
    door = FrontDoor(application, ServerConfig(data_dir="unused"), Metrics())
    with trio.socket.socket() as sock:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(door.serve, listeners)
            await sock.connect(listeners[0].getsockname())
            client = RawClient(sock)
            body = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
            head = b"PUT /upload HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
            await client.send(head % (len(body) + 1) + body)
            answer = await client.read_response()
            assert (answer.status, answer.headers.get("connection")) == (429, "close")
            assert await client.closed()
            client.close()
            await until(lambda: not door.connections)
            nursery.cancel_scope.cancel()
    assert application.heard == [b"/upload"]


# -- the check that every test's client makes ------------------------------------------------------

_LIVE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_DATA, _CONTROL = b"event: data\ndata:x\n\n", b"event: control\ndata:{}\n\n"
_END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def received(wire: bytes, size: int) -> None:
    check = ResponseCheck()
    check.sent(b"GET / HTTP/1.1\r\n\r\n")
    for start in range(0, len(wire), size):
        check.received(wire[start : start + size])


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_the_check_accepts_well_framed_responses(size: int) -> None:
    received(_LIVE + chunk(_DATA) + chunk(_CONTROL + b":\n\n") + _END, size)
    received(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", size)


@pytest.mark.parametrize(
    "wire",
    [
        _LIVE + chunk(_DATA[:-1]) + _END,
        _LIVE + chunk(_DATA) + _END,
        _LIVE + chunk(_DATA + _CONTROL) + _END + chunk(_DATA),
        _LIVE + chunk(_DATA + _CONTROL) + _END + _LIVE,
        _LIVE + chunk(_DATA + _CONTROL)[:-2] + b"x\r\n" + _END,
        _LIVE + b"0" + chunk(_DATA + _CONTROL) + _END,
        _LIVE + chunk(b"event: news\ndata:x\n\n") + _END,
        b"HTTP/1.1 204 No Content\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi!",
    ],
)
@pytest.mark.parametrize("size", [1, 10_000])
def test_the_check_finds_badly_framed_responses(wire: bytes, size: int) -> None:
    with pytest.raises(AssertionError):
        received(wire, size)
