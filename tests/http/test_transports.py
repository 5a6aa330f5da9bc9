"""Connections to clients, by themselves."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair

from streamd.http.messages import ClientGone
from streamd.http.transports import StreamTransport

BODY = b"x" * 2**21
TIMEOUT_S = 30.0


async def test_a_slow_reader_of_a_large_body_is_no_reader_that_takes_nothing(
    autojump_clock: MockClock,
) -> None:
    server, client = lockstep_stream_pair()
    transport = StreamTransport(server, TIMEOUT_S)
    got = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.send, (b"head", BODY))
        while len(got) < len(BODY) + 4:
            await trio.sleep(TIMEOUT_S / 4)
            got += await client.receive_some(128 * 1024)
    assert got == b"head" + BODY


async def test_a_reader_that_takes_nothing_more_is_gone(autojump_clock: MockClock) -> None:
    server, client = lockstep_stream_pair()
    transport = StreamTransport(server, TIMEOUT_S)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.receive_some, 1000)
        with pytest.raises(ClientGone):
            await transport.send((BODY,))
    assert trio.current_time() < 2 * TIMEOUT_S
