"""A whole node and its front door on a real listening socket, in the process of the test."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import httpx
import trio

from streamd.app import App, Environment
from streamd.config.settings import AuthConfig, ColdConfig, Config, ServerConfig
from streamd.config.subscriptions import SubscriptionsConfig
from streamd.group.stores import Stores
from streamd.http.credentials.tls_files import TlsFiles
from streamd.http.door.front_door import FrontDoor
from streamd.http.door.listeners import listen, server_tls
from streamd.http.sockets.fair_limits import FairLimit
from streamd.node.node import wall_clock_ms
from streamd.process.threads import in_thread
from tests.support.wire import EventStream, checked_async_client, chunk_size

# How long anything here may take before the test fails: far more than it ever needs.
PATIENCE_S = 15.0
_POLL_S = 0.002
# Made once: loading the system's certificates for each client would take most of the tests' time.
_ANY_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Answer(NamedTuple):
    """A response as read off the wire; header names are lower-case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The stable code of an error."""
        found: str = json.loads(self.body)["error"]["code"]
        return found


class RawClient:
    """One connection, on which the test sends every byte itself."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._sock = sock
        self._buffer = b""
        self._events: EventStream | None = None

    async def send(self, data: bytes) -> None:
        with trio.fail_after(PATIENCE_S):
            while data:
                data = data[await self._sock.send(data) :]

    async def read_response(self, *, to_head: bool = False) -> Answer:
        """The next response, whole. A response `to_head` has no body, whatever its headers say."""
        answer = await self.read_head()
        if to_head or answer.status in (100, 204, 304):
            return answer
        if answer.headers.get("transfer-encoding") == "chunked":
            assert "content-length" not in answer.headers
            chunks = []
            while chunk := await self.read_chunk():
                chunks.append(chunk)
            return answer._replace(body=b"".join(chunks))
        if "content-length" in answer.headers:
            size = int(answer.headers["content-length"])
            return answer._replace(body=await self._exactly(size))
        return answer._replace(body=await self.read_to_end())

    async def read_head(self) -> Answer:
        """The head of the next response; its body is left where it is."""
        lines = (await self._through(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, status, _ = lines[0].split(" ", 2)
        assert version == "HTTP/1.1"
        headers: dict[str, str] = {}
        for line in lines[1:-2]:
            name, _, value = line.partition(": ")
            assert name.lower() not in headers, f"{name} is sent twice"
            headers[name.lower()] = value
        is_live = headers.get("content-type") == "text/event-stream"
        self._events = EventStream() if is_live else None
        return Answer(int(status), headers, b"")

    async def read_chunk(self) -> bytes:
        """The next chunk of a chunked body; empty at its end."""
        data = await self._exactly(chunk_size(await self._through(b"\r\n")))
        assert await self._exactly(2) == b"\r\n"
        if not data:
            next_response = b"HTTP/1.1 "[: len(self._buffer)]
            assert self._buffer.startswith(next_response), f"after the end: {self._buffer!r}"
        if self._events is not None:
            self._events.feed(data) if data else self._events.end()
        return data

    async def read_through(self, end: bytes) -> bytes:
        """The payload of chunks up to one that holds `end`."""
        payload = b""
        while end not in payload:
            chunk = await self.read_chunk()
            assert chunk, f"the body ended after {payload!r}"
            payload += chunk
        return payload

    async def read_to_end(self) -> bytes:
        """Everything until the server closes."""
        while await self._receive():
            pass
        data, self._buffer = self._buffer, b""
        return data

    async def take_some(self, size: int) -> bool:
        """Read up to `size` bytes from the connection and discard them. Returns whether any came
        before it was closed."""
        with trio.fail_after(PATIENCE_S):
            try:
                return bool(await self._sock.recv(size))
            except ConnectionResetError:
                return False

    async def receive_some(self) -> bytes:
        """The next bytes; empty once the server has closed."""
        if not self._buffer:
            await self._receive()
        data, self._buffer = self._buffer, b""
        return data

    async def closed(self) -> bool:
        """Whether the server closes without another byte; waits for either."""
        return not self._buffer and not await self._receive()

    def finish_sending(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._sock.close()

    async def _receive(self) -> bool:
        with trio.fail_after(PATIENCE_S):
            try:
                data = await self._sock.recv(65536)
            except ConnectionResetError:
                data = b""
        self._buffer += data
        return bool(data)

    async def _through(self, end: bytes) -> bytes:
        while end not in self._buffer:
            assert await self._receive(), f"closed after {self._buffer!r}"
        place = self._buffer.index(end) + len(end)
        data, self._buffer = self._buffer[:place], self._buffer[place:]
        return data

    async def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            assert await self._receive(), f"closed after {self._buffer!r}"
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data


class Clock:
    """The server's wall clock, which a test may advance."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return wall_clock_ms() + self.ahead_ms


class Serving:
    """The server under test, as a test sees it."""

    # Its files, which are followed only by hand.
    tls: TlsFiles[ssl.SSLContext] | None = None

    def __init__(self, port: int, url: str, clock: Clock, app: App, door: FrontDoor) -> None:
        self.port = port
        self.clock = clock
        self.url = url
        self.node = app.node
        self.door = door
        self.hub = app.hub
        self.service = app.service

    @property
    def connections(self) -> int:
        """The number of open connections, of either server."""
        return len(self.door.connections)

    @property
    def bodies(self) -> FairLimit:
        """The limit of incoming bodies, and how much of it they hold."""
        return self.door.shared.bodies

    @asynccontextmanager
    async def connect(
        self, *, receive_buffer: int | None = None, source: str | None = None
    ) -> AsyncIterator[RawClient]:
        """A raw connection. With a small `receive_buffer` the client soon takes no more; `source`
        is its address."""
        with trio.socket.socket() as sock:
            if source is not None:
                await sock.bind((source, 0))
            if receive_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            await sock.connect(("127.0.0.1", self.port))
            yield RawClient(sock)

    def client(self, *, source: str | None = None, **settings: Any) -> httpx.AsyncClient:
        """An ordinary HTTP client for this server, at the address `source`."""
        if source is not None:
            settings["transport"] = httpx.AsyncHTTPTransport(_ANY_TLS, local_address=source)
        settings.setdefault("verify", _ANY_TLS)
        return checked_async_client(base_url=self.url, timeout=PATIENCE_S, **settings)

    async def tail(self, path: str) -> str | None:
        """The tail of a stream as a reader sees it; None if the stream does not exist."""
        async with self.client() as client:
            tail: str | None = (await client.head(path)).headers.get("stream-next-offset")
            return tail

    async def content(self, path: str) -> bytes:
        """The whole content of a stream."""
        async with self.client() as client:
            return (await client.get(path)).content


async def until(condition: Callable[[], object], *, patience_s: float = PATIENCE_S) -> None:
    """Wait until `condition` holds; fail when it never does."""
    with trio.fail_after(patience_s):
        while not condition():  # noqa: ASYNC110 - no event tells of it
            await trio.sleep(_POLL_S)


@asynccontextmanager
async def serving(
    tmp_path: Path,
    *,
    ssl_context: ssl.SSLContext | None = None,
    cold: ColdConfig | None = None,
    auth: AuthConfig | None = None,
    subscriptions: SubscriptionsConfig | None = None,
    **server_settings: Any,
) -> AsyncIterator[Serving]:
    """Serve as `streamd serve` does, on a port of the system's choice, until the block ends."""
    # What pages may do is not the matter here; requests written byte by byte call the node x.
    settings = {"allowed_hosts": ["x"], "allowed_origins": ["*"], **server_settings}
    server = ServerConfig(data_dir=str(tmp_path / "data"), **settings)
    config = Config(
        server=server,
        cold=cold or ColdConfig(),
        auth=auth or AuthConfig(),
        subscriptions=subscriptions or SubscriptionsConfig(),
    )
    stores = await in_thread(Stores.open, Path(server.data_dir), server.node_id)
    failure: Exception | None = None
    clock = Clock()
    app = App(config, stores, Environment(clock_ms=clock.now_ms, random=Random(1)))
    try:
        async with app.running(), trio.open_nursery() as nursery:
            door = app.front_door()
            listeners = listen("127.0.0.1", 0)
            port = listeners[0].getsockname()[1]
            files = server_tls(server)
            tls = files if ssl_context is None else lambda: ssl_context
            nursery.start_soon(door.serve, listeners, tls)
            scheme, host = ("http", "127.0.0.1") if tls is None else ("https", "localhost")
            try:
                found = Serving(port, f"{scheme}://{host}:{port}", clock, app, door)
                found.tls = files
                yield found
            except Exception as error:
                failure = error  # A failed assertion is clearer outside of exception groups.
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await in_thread(stores.close)
    if failure is not None:
        raise failure
