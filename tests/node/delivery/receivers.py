"""Receivers of webhooks on real sockets, well-behaved and not."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import trio

Behaviour = Callable[[trio.abc.Stream], Awaitable[None]]


@dataclass
class Received:
    """A request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """What came in, and where."""

    port: int
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    arrived: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks?x=1"

    async def count(self, requests: int) -> None:
        """Wait until so many requests have come."""
        with trio.fail_after(20):
            while len(self.requests) < requests:
                await self.arrived.park()


def answers(status: int = 200, body: bytes = b"{}", *headers: str) -> Behaviour:
    """Answer each request."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers, "", ""]
    return sends("\r\n".join(lines).encode() + body)


def sends(raw: bytes) -> Behaviour:
    """Send these bytes and close."""

    async def behave(stream: trio.abc.Stream) -> None:
        await stream.send_all(raw)

    return behave


async def hang(stream: trio.abc.Stream) -> None:
    await trio.sleep_forever()


async def close_early(stream: trio.abc.Stream) -> None:
    """Say nothing at all."""


@asynccontextmanager
async def receiver(
    behave: Behaviour, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Receiver]:
    """A server that takes one request of each connection, and then behaves in some way."""
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host=host)
        received = Receiver(listener.socket.getsockname()[1])

        async def serve(stream: trio.abc.Stream) -> None:
            received.connections += 1
            if tls is not None:
                stream = trio.SSLStream(stream, tls, server_side=True)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
                async with stream:
                    request = await _read(stream)
                    if request is not None:
                        received.requests.append(request)
                        received.arrived.unpark_all()
                        await behave(stream)

        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield received
        nursery.cancel_scope.cancel()


async def _read(stream: trio.abc.Stream) -> Received | None:
    raw = b""
    while b"\r\n\r\n" not in raw:
        piece = await stream.receive_some()
        if not piece:
            return None
        raw += piece
    head, _, body = raw.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (one.split(": ", 1) for one in fields)}
    while len(body) < int(headers["content-length"]):
        body += await stream.receive_some()
    return Received(line, headers, bytes(body))
