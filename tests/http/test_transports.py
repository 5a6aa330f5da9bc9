"""Connections to clients, by themselves."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair

from streamd.http.http2.hypercorn_server import LimitedStream
from streamd.http.protocol.connections import ClientGone
from streamd.http.sockets.transports import SocketTransport, StreamTransport

BODY = b"x" * 2**21
TIMEOUT_S = 30.0


async def test_a_slow_reader_of_a_large_body_is_not_disconnected(autojump_clock: MockClock) -> None:
    server, client = lockstep_stream_pair()
    transport = StreamTransport(server, TIMEOUT_S)
    got = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.send, (b"head", BODY))
        while len(got) < len(BODY) + 4:
            await trio.sleep(TIMEOUT_S / 4)
            got += await client.receive_some(128 * 1024)
    assert got == b"head" + BODY


async def test_a_reader_that_stops_reading_is_disconnected(autojump_clock: MockClock) -> None:
    server, client = lockstep_stream_pair()
    transport = StreamTransport(server, TIMEOUT_S)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.receive_some, 1000)
        with pytest.raises(ClientGone):
            await transport.send((BODY,))
    assert trio.current_time() < 2 * TIMEOUT_S


Send = Callable[[bytes], Awaitable[None]]


def socket_sender(sock: socket.socket) -> Send:
    transport = SocketTransport(sock, TIMEOUT_S)
    return lambda data: transport.send((data,))


def stream_sender(sock: socket.socket) -> Send:
    transport = StreamTransport(trio.SocketStream(trio.socket.from_stdlib_socket(sock)), TIMEOUT_S)
    return lambda data: transport.send((data,))


def hypercorn_sender(sock: socket.socket) -> Send:
    stream = LimitedStream(trio.SocketStream(trio.socket.from_stdlib_socket(sock)), TIMEOUT_S)
    return stream.send_all


SENDERS = [socket_sender, stream_sender, hypercorn_sender]


async def sip(
    sender: Callable[[socket.socket], Send], sip_bytes: int, interval_s: float
) -> tuple[bool, float]:
    """Send `BODY` to a client that takes so little at a time. Returns whether everything was sent,
    and how long that took."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        ours.setblocking(False)
        client = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
        started, went = trio.current_time(), False

        async def take() -> None:
            while True:
                await client.receive_some(sip_bytes)
                await trio.sleep(interval_s)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            try:
                await sender(ours)(BODY)
                went = True
            except (ClientGone, trio.BrokenResourceError):
                pass
            nursery.cancel_scope.cancel()
        return went, trio.current_time() - started


@pytest.mark.parametrize("sender", SENDERS)
async def test_a_reader_below_the_rate_is_disconnected(
    sender: Callable[[socket.socket], Send], autojump_clock: MockClock
) -> None:
    went, lasted_s = await sip(sender, 4096, TIMEOUT_S / 10)
    assert not went
    assert lasted_s < 3 * TIMEOUT_S


@pytest.mark.parametrize("sender", SENDERS)
async def test_a_reader_may_be_as_slow_as_the_rate(
    sender: Callable[[socket.socket], Send], autojump_clock: MockClock
) -> None:
    went, lasted_s = await sip(sender, 20_480, TIMEOUT_S / 10)
    assert went
    assert lasted_s > 3 * TIMEOUT_S
