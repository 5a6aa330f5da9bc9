"""HTTP clients that check every byte a server sends: framing is decoded strictly here, beside the
client's own decoding, which forgives much.

A chunked response that ends early looks whole to most clients. Here it shows twice: nothing may
follow a response but the next one, and a response of events ends after a whole control event or
comment.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx

_CHUNK_LINE = re.compile(rb"(0|[1-9a-f][0-9a-f]*)\r\n")
_EVENT = re.compile(rb"(event: data\ndata:|event: control\ndata:\{.*\}$|:$)", re.DOTALL)
_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [ -~]*\r\n")
_WITHOUT_BODY = (204, 304)


def chunk_size(line: bytes) -> int:
    """The size that a line `line`, its line end included, gives a chunk."""
    match = _CHUNK_LINE.fullmatch(line)
    assert match is not None, f"{line!r} is not a line with a chunk's size"
    return int(match[1], 16)


class EventStream:
    """The body of a response of server-sent events."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0
        self._last = b""

    def feed(self, payload: bytes) -> None:
        self._rest += payload
        while (end := self._rest.find(b"\n\n", self._searched)) >= 0:
            event = bytes(self._rest[:end])
            assert _EVENT.match(event), f"no event of the protocol: {event[:200]!r}"
            self._last = event[:12]
            del self._rest[: end + 2]
            self._searched = 0
        self._searched = max(0, len(self._rest) - 1)

    def end(self) -> None:
        """Called where the response declares its end."""
        assert not self._rest, f"the response ends inside the event {bytes(self._rest[:200])!r}"
        assert self._last != b"event: data\n", "the response ends before the control event"


class ResponseCheck:
    """The bytes of a server on one connection of HTTP/1.1. A server that closes too early is for
    the client to report."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._awaited = False
        self._to_head = False
        self._reading = self._read_head
        self._left = 0
        self._events: EventStream | None = None
        self._passes = False

    def sent(self, data: bytes) -> None:
        """The client sent the head of a request, or some of its body."""
        if not self._awaited:
            self._awaited = True
            self._to_head = data.startswith(b"HEAD ")
            self._passes = self._passes or data.startswith(b"PRI * HTTP/2.0\r\n")

    def received(self, data: bytes) -> None:
        if self._passes:
            return
        self._buffer += data
        while self._buffer:
            assert self._awaited, f"after a response's end: {bytes(self._buffer[:200])!r}"
            if not self._reading():
                return

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._buffer[: end + 2])
        del self._buffer[: end + 4]
        status_line, *lines = head.splitlines(keepends=True)
        status = _STATUS_LINE.fullmatch(status_line)
        assert status is not None, f"no status line: {status_line[:200]!r}"
        if status[1] == b"100":
            return True
        pairs = [line.rstrip(b"\r\n").partition(b": ") for line in lines]
        headers = {name.lower(): value for name, _, value in pairs}
        self._begin_body(int(status[1]), headers)
        return True

    def _begin_body(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._events = None
        if headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            self._events = EventStream()
        if self._to_head or status in _WITHOUT_BODY:
            self._end()
        elif headers.get(b"transfer-encoding") == b"chunked":
            assert b"content-length" not in headers, "two lengths"
            self._reading = self._read_chunk_line
        elif b"content-length" in headers:
            self._left = int(headers[b"content-length"])
            self._reading = self._read_counted
            if not self._left:
                self._end()
        else:
            self._reading = self._read_to_end

    def _read_counted(self) -> bool:
        self._left -= len(self._take(self._left))
        if not self._left:
            self._end()
        return True

    def _read_to_end(self) -> bool:
        self._buffer.clear()
        return False

    def _read_chunk_line(self) -> bool:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return False
        self._left = chunk_size(self._take(end + 2))
        self._reading = self._read_chunk if self._left else self._read_chunk_end
        return True

    def _read_chunk(self) -> bool:
        piece = self._take(self._left)
        self._left -= len(piece)
        if self._events is not None:
            self._events.feed(piece)
        if not self._left:
            self._reading = self._read_chunk_end
            self._left = -1  # The empty line after the last chunk ends the response.
        return True

    def _read_chunk_end(self) -> bool:
        if len(self._buffer) < 2:
            return False
        assert self._take(2) == b"\r\n", "a chunk is longer than its size"
        if self._left:
            self._reading = self._read_chunk_line
            return True
        if self._events is not None:
            self._events.end()
        self._end()
        return True

    def _end(self) -> None:
        self._awaited = False
        self._reading = self._read_head

    def _take(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data


def checked_async_client(**settings: Any) -> httpx.AsyncClient:
    """An httpx client that fails on a badly framed response."""
    client = httpx.AsyncClient(**settings)
    pool = _pool(client)
    pool._network_backend = _AsyncBackend(pool._network_backend)
    return client


def checked_client(**settings: Any) -> httpx.Client:
    """`checked_async_client` for tests that do not await."""
    client = httpx.Client(**settings)
    pool = _pool(client)
    pool._network_backend = _Backend(pool._network_backend)
    return client


def _pool(client: httpx.Client | httpx.AsyncClient) -> Any:
    """httpx passes no network backend on, though httpcore takes one."""
    return client._transport._pool  # type: ignore[union-attr]


class _AsyncBackend(httpcore.AsyncNetworkBackend):
    def __init__(self, inner: httpcore.AsyncNetworkBackend) -> None:
        self._inner = inner

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        return _AsyncStream(stream)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class _AsyncStream(httpcore.AsyncNetworkStream):
    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner
        self._check = ResponseCheck()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._inner.read(max_bytes, timeout)
        self._check.received(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._check.sent(buffer)
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _AsyncStream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    def __init__(self, inner: httpcore.NetworkBackend) -> None:
        self._inner = inner

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        stream = self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(stream)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner
        self._check = ResponseCheck()

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = self._inner.read(max_bytes, timeout)
        self._check.received(data)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._check.sent(buffer)
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        self._inner.close()

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
