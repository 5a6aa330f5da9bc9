"""A server, a network and a clock of the test's own: waits take no time, whatever they last.

`Server` keeps streams and answers as the protocol says; `AsyncNetwork` and `Network` stand where
httpx opens connections. Connections take time, and fail, at moments that a seed chooses.
"""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from random import Random
from typing import Any

import anyio
import httpx
import trio.testing

from streamd.client import AsyncClient, Client

URL = "http://server"
_CHUNK = 3
_LONG_POLL_S = 30.0
_HEARTBEAT_S = 15.0
_CONNECTION_S = 60.0


class _JumpingSelector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            return super().select(None)
        found = super().select(0)
        if not found:
            self.now += timeout
        return found


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop of asyncio whose clock jumps to the next timer."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(backend: str, main: Callable[[], Awaitable[None]]) -> None:
    """Run on a clock that jumps."""
    options: dict[str, Any] = {"loop_factory": JumpingLoop}
    if backend == "trio":
        options = {"clock": trio.testing.MockClock(autojump_threshold=0)}
    anyio.run(main, backend=backend, backend_options=options)


class Server:
    """Streams of JSON by their paths, and what of them changes the answers to requests."""

    def __init__(self) -> None:
        self.records: dict[str, list[Any]] = {}
        self.closed: set[str] = set()
        self.producers: dict[tuple[str, str], tuple[int, int]] = {}
        self.download = bytes(range(256)) * 8
        self.requests = 0

    def append(self, path: str, *records: Any) -> None:
        self.records.setdefault(path, []).extend(records)

    def head(self, path: str, next_: int) -> dict[str, str]:
        """The headers of an answer that ends at a record."""
        at_end = next_ == len(self.records[path])
        closed = at_end and path in self.closed
        headers = {
            "Content-Type": "application/json",
            "Stream-Next-Offset": f"{next_:016d}_{next_:016d}",
            "ETag": f'"1:{0:016d}_{0:016d}:{next_:016d}_{next_:016d}{":c" if closed else ""}"',
        }
        return (
            headers
            | ({"Stream-Up-To-Date": "true"} if at_end else {})
            | ({"Stream-Closed": "true"} if closed else {})
        )

    def piece(self, path: str, start: int) -> tuple[bytes, int]:
        """A few records from one on, and the number of the next."""
        records = self.records[path][start : start + _CHUNK]
        return json.dumps(records).encode(), start + len(records)

    def post(self, path: str, headers: httpx.Headers, body: bytes) -> tuple[int, dict[str, str]]:
        """Append what a request has, unless it repeats one."""
        status = 204
        if "Producer-Id" in headers:
            key = path, headers["Producer-Id"]
            epoch, seq = int(headers["Producer-Epoch"]), int(headers["Producer-Seq"])
            last = self.producers.get(key, (-1, -1))
            if epoch < last[0]:
                return 403, {"Producer-Epoch": str(last[0])}
            expected = last[1] + 1 if epoch == last[0] else 0
            if seq < expected:
                return 204, self.head(path, len(self.records[path]))
            if seq > expected:
                return 409, {"Producer-Expected-Seq": str(expected)}
            self.producers[key], status = (epoch, seq), 200
        if body:
            found = json.loads(body)
            self.append(path, *(found if isinstance(found, list) else [found]))
        if headers.get("Stream-Closed") == "true":
            self.closed.add(path)
        return status, self.head(path, len(self.records[path]))

    def answer(self, request: httpx.Request) -> tuple[int, dict[str, str], bytes] | None:
        """Status, headers and body at once; None for requests that wait for news."""
        self.requests += 1
        path, params = request.url.path, request.url.params
        if path == "/download":
            return 200, {}, self.download
        if path.endswith("/snapshot"):
            headers = {"Content-Type": "application/json", "Stream-Snapshot-Offset": "-1"}
            return 200, headers, b"[]"
        if path.endswith("/bootstrap"):
            return self._bootstrap(path.removesuffix("/bootstrap"))
        if path not in self.records:
            return 404, {}, b'{"error":{"code":"STREAM_NOT_FOUND","message":"so"}}'
        if request.method == "POST":
            return *self.post(path, request.headers, request.content), b""
        if request.method == "HEAD":
            return 200, self.head(path, len(self.records[path])), b""
        start = position(params["offset"])
        if "live" in params and start == len(self.records[path]) and path not in self.closed:
            return None
        if params.get("live") == "sse":
            return None
        body, next_ = self.piece(path, start)
        return 200, self.head(path, next_), body

    def _bootstrap(self, path: str) -> tuple[int, dict[str, str], bytes]:
        records = self.records["/v1/stream" + path]
        parts = [b"{}", *(json.dumps(record).encode() for record in records)]
        body = b"".join(b"--x\r\nContent-Type: application/json\r\n\r\n%b\r\n" % p for p in parts)
        headers = self.head("/v1/stream" + path, len(records))
        headers |= {"Content-Type": "multipart/mixed; boundary=x", "Stream-Snapshot-Offset": "-1"}
        return 200, headers, body + b"--x--\r\n"


def position(offset: str) -> int:
    return 0 if offset == "-1" else int(offset.partition("_")[0])


class AsyncNetwork(httpx.AsyncBaseTransport):
    """Connections to a server that take up to 2 s, of which `faults` of a hundred fail."""

    def __init__(self, server: Server, random: Random, faults: int = 0) -> None:
        self._server = server
        self._random = random
        self._faults = faults
        self.open = 0

    async def _pass(self) -> None:
        await anyio.sleep(self._random.choice([0.0, 0.01, 0.3, 2.0]))

    def _fails(self) -> bool:
        return self._random.randrange(100) < self._faults

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await anyio.sleep(self._random.choice([0.2, 2.0]))
        if self._fails():
            raise httpx.ConnectError("refused")
        await request.aread()
        found = self._server.answer(request)
        await self._pass()
        if self._fails():
            raise httpx.ReadError("cut")
        if found is None:
            return await self._live(request)
        status, headers, body = found
        return httpx.Response(status, headers=headers, stream=_Stream(self, self._parts(body)))

    async def _parts(self, body: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(body), 100):
            await self._pass()
            if self._fails():
                raise httpx.ReadError("cut")
            yield body[start : start + 100]

    async def _live(self, request: httpx.Request) -> httpx.Response:
        path, start = request.url.path, position(request.url.params["offset"])
        if request.url.params["live"] == "sse":
            headers = {"Content-Type": "text/event-stream"}
            return httpx.Response(
                200, headers=headers, stream=_Stream(self, self._sse(path, start))
            )
        await self._news(path, start, _LONG_POLL_S)
        body, next_ = self._server.piece(path, start)
        headers = self._server.head(path, next_)
        is_news = next_ > start or path in self._server.closed
        return httpx.Response(
            200 if is_news else 204, headers=headers, content=body if is_news else b""
        )

    async def _sse(self, path: str, start: int) -> AsyncIterator[bytes]:
        until = anyio.current_time() + _CONNECTION_S
        while anyio.current_time() < until:
            body, next_ = self._server.piece(path, start)
            head = self._server.head(path, next_)
            control = {
                "streamNextOffset": head["Stream-Next-Offset"],
                "upToDate": "Stream-Up-To-Date" in head,
                "streamClosed": "Stream-Closed" in head,
            }
            if next_ > start:
                yield b"event: data\ndata: " + body[:2]
                await self._pass()
                yield body[2:] + b"\n\n"
            if self._fails():
                raise httpx.ReadError("cut")
            yield b"event: control\ndata: " + json.dumps(control).encode() + b"\n\n"
            if control["streamClosed"]:
                return
            start = next_
            await self._news(path, start, _HEARTBEAT_S)
            yield b": still here\n\n"

    async def _news(self, path: str, start: int, seconds: float) -> None:
        """Wait until there is more."""
        with anyio.move_on_after(seconds):
            while len(self._server.records[path]) == start and path not in self._server.closed:  # noqa: ASYNC110
                await anyio.sleep(0.05)


class _Stream(httpx.AsyncByteStream):
    """The pieces of an answer. Like a socket's, they are lost when a wait for one is cancelled."""

    def __init__(self, network: AsyncNetwork, pieces: AsyncIterator[bytes]) -> None:
        self._network = network
        self._pieces = pieces
        self._is_open = True
        network.open += 1

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces:
                yield piece
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        if self._is_open:
            self._is_open = False
            self._network.open -= 1


@asynccontextmanager
async def connected(network: AsyncNetwork, random: Random) -> AsyncIterator[AsyncClient]:
    """A client of this network, with its clock."""
    client = AsyncClient(URL, retry_for_s=1e6)
    client._driver._client = httpx.AsyncClient(transport=network)
    client._session.clock = anyio.current_time
    client._session.jitter = random.uniform
    async with client:
        yield client


class Network(httpx.BaseTransport):
    """Connections whose waits a signal interrupts, `interruptions` of a hundred."""

    def __init__(self, server: Server, random: Random, interruptions: int) -> None:
        self._server = server
        self._random = random
        self._interruptions = interruptions
        self.news: Callable[[], None] = lambda: None

    def _wait(self) -> None:
        self.news()
        if self._random.randrange(100) < self._interruptions:
            raise KeyboardInterrupt

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._wait()
        request.read()
        found = self._server.answer(request)
        if found is None and request.url.params["live"] == "sse":
            events = self._sse(request.url.path, position(request.url.params["offset"]))
            headers = {"Content-Type": "text/event-stream"}
            return httpx.Response(200, headers=headers, stream=_Pieces(events))
        while found is None:
            self._wait()
            found = self._server.answer(request)
        self._wait()
        status, headers, body = found
        return httpx.Response(status, headers=headers, stream=_Pieces(self._parts(body)))

    def _parts(self, body: bytes) -> Iterator[bytes]:
        for start in range(0, len(body), 100):
            self._wait()
            yield body[start : start + 100]

    def _sse(self, path: str, start: int) -> Iterator[bytes]:
        while True:
            self._wait()
            body, next_ = self._server.piece(path, start)
            head = self._server.head(path, next_)
            control = {
                "streamNextOffset": head["Stream-Next-Offset"],
                "upToDate": "Stream-Up-To-Date" in head,
                "streamClosed": "Stream-Closed" in head,
            }
            yield b"event: data\ndata: " + body
            self._wait()
            yield b"\n\nevent: control\ndata: " + json.dumps(control).encode() + b"\n\n"
            if control["streamClosed"]:
                return
            start = next_


class _Pieces(httpx.SyncByteStream):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces


@contextmanager
def connected_blocking(network: Network) -> Iterator[Client]:
    """A blocking client of this network, which never pauses."""
    client = Client(URL, retry_for_s=1e6)
    client._driver._client = httpx.Client(transport=network)
    client._session.jitter = lambda _least, _most: 0.0
    with client:
        yield client
