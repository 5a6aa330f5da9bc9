"""Broken and malicious peers lose their connection, and no other peer notices."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
import trio

from streamd.transport import Limits
from streamd.transport.errors import ConnectionEnded
from streamd.transport.hello import encode_hello
from streamd.transport.wire import (
    FrameKind,
    Reply,
    Request,
    frame,
    messages_payload,
    reply_payload,
    request_payload,
)
from tests.transport.peers import (
    GROUP,
    PATIENCE_S,
    QUICK,
    Node,
    Stranger,
    heartbeat,
    impostor,
    running,
    stranger,
    wait_until,
)


def _nested(encoded: bytes, levels: int = 20_000) -> bytes:
    """An encoded struct followed by a field of a later version, nested deeper than any decoder
    follows."""
    return bytes((encoded[0] + 1,)) + encoded[1:] + b"\x91" * levels + b"\xc0"


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: node\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    frame(FrameKind.HELLO, b"\xc1"),
    frame(FrameKind.HELLO, b"\x91\x01"),
    frame(FrameKind.HELLO, bytes(4097)),
    frame(FrameKind.PING),
    frame(FrameKind.MESSAGES, messages_payload(GROUP, [])),
]


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_a_caller_that_does_not_begin_with_a_handshake_is_disconnected(
    garbage: bytes,
) -> None:
    node, peer = Node(1), Node(2)
    async with running(node, peer):
        async with stranger(node, welcome=False) as other:
            await other.stream.send_all(garbage)
            assert await other.is_shut_out()
        assert not node.has_met(9)
        assert await peer.ask(1, b"well?") == b"2/7/well?"


async def test_a_handshake_nested_as_deeply_as_its_limit_allows_stops_no_node() -> None:
    # Python 3.11 follows a thousand levels and refuses it, later ones ten thousand and take it.
    nested = frame(FrameKind.HELLO, _nested(encode_hello(Node(9).hello()), levels=3900))
    node, peer = Node(1), Node(2)
    async with running(node, peer):
        async with stranger(node, welcome=False) as other:
            await other.stream.send_all(nested)
            with suppress(ConnectionEnded):
                await other.wire.read_packet()
        assert await peer.ask(1, b"well?") == b"2/7/well?"


def _damaged(data: bytes) -> bytes:
    return data[:-1] + bytes((data[-1] ^ 1,))


def _encoded(*senders: int) -> list[bytes]:
    return [msgspec.msgpack.encode(heartbeat(1, sender, 1)) for sender in senders]


NONSENSE = {
    "checksum": _damaged(frame(FrameKind.MESSAGES, messages_payload(GROUP, _encoded(9)))),
    "length": b"\xff\xff\xff\xff" + bytes(5),
    "kind": frame(FrameKind.PING)[:-1] + b"\x30",
    "messages": frame(FrameKind.MESSAGES, b"\0\0\0\0\x91\xc0"),
    "nesting": frame(FrameKind.MESSAGES, messages_payload(GROUP, [_nested(_encoded(9)[0])])),
    "another's name": frame(FrameKind.MESSAGES, messages_payload(GROUP, _encoded(9, 2))),
    "to another": frame(
        FrameKind.MESSAGES, messages_payload(GROUP, [msgspec.msgpack.encode(heartbeat(1, 9, 2))])
    ),
    "below nothing": frame(
        FrameKind.MESSAGES, messages_payload(GROUP, [msgspec.msgpack.encode([6, 9, 1, -1, 0])])
    ),
    "beyond all terms": frame(
        FrameKind.MESSAGES, messages_payload(GROUP, [msgspec.msgpack.encode([6, 9, 1, 2**63, 0])])
    ),
    "request": frame(FrameKind.REQUEST, b"short"),
    "a second handshake": frame(FrameKind.HELLO, encode_hello(Node(9).hello())),
    "a reply unasked": frame(FrameKind.REPLY, reply_payload(Reply(1, 0, b""))),
}


@pytest.mark.parametrize("data", NONSENSE.values(), ids=NONSENSE.keys())
async def test_garbage_closes_the_connection_and_reaches_no_handler(data: bytes) -> None:
    node, peer = Node(1), Node(2)
    async with running(node, peer):
        async with stranger(node) as other:
            await other.stream.send_all(data)
            assert await other.is_shut_out()
        assert node.messages == []
        assert await peer.ask(1, b"well?") == b"2/7/well?"


@pytest.mark.parametrize(
    "data",
    [
        frame(FrameKind.REPLY, b"short"),
        frame(FrameKind.REPLY, reply_payload(Reply(1, 77, b""))),
        frame(FrameKind.REPLY, reply_payload(Reply(1, 1, b"\xc1"))),
        frame(FrameKind.REPLY, reply_payload(Reply(1, 1, _nested(b"\x92\xa1a\xa1b")))),
        frame(FrameKind.MESSAGES, messages_payload(GROUP, _encoded(2))),
    ],
)
async def test_garbage_from_a_dialled_peer_closes_the_connection(data: bytes) -> None:
    async def behave(caller: Stranger) -> None:
        await caller.wire.read_packet()
        await caller.send(FrameKind.WELCOME, encode_hello(Node(2, address="two:2").hello()))
        await caller.stream.send_all(data)
        await caller.is_shut_out()

    node = Node(1, limits=QUICK)
    async with impostor(behave) as address, running(node, mesh=False):
        node.transport.set_peers({2: address})
        await wait_until(lambda: "it sent" in node.last_error(2))
        assert node.messages == []


@pytest.mark.parametrize(
    "answer",
    [
        frame(FrameKind.PONG),
        frame(FrameKind.REFUSED, b"\xc1"),
        frame(FrameKind.REFUSED, _nested(b"\x92\xa1a\xa1b")),
    ],
)
async def test_a_malformed_answer_to_the_handshake_closes_the_connection(answer: bytes) -> None:
    async def behave(caller: Stranger) -> None:
        await caller.stream.send_all(answer)
        await caller.is_shut_out()

    node = Node(1, limits=QUICK)
    async with impostor(behave) as address, running(node, mesh=False):
        node.transport.set_peers({2: address})
        await wait_until(lambda: node.last_error(2) != "")
        assert not node.connected(2)


# -- slow, silent, deaf ---------------------------------------------------------------------------


async def test_a_handshake_that_dribbles_in_is_not_waited_for() -> None:
    node = Node(1, limits=QUICK)
    async with running(node), stranger(node, welcome=False) as other:
        assert await _dribble(other, bytes(9))


async def test_a_frame_that_dribbles_in_is_not_waited_for() -> None:
    node = Node(1, limits=QUICK)
    async with running(node), stranger(node) as other:
        assert await _dribble(other, frame(FrameKind.REQUEST, bytes(1000)))


async def _dribble(other: Stranger, data: bytes) -> bool:
    """Send a byte now and then until shut out. Returns whether that came before the end."""
    ended = False

    async def send() -> None:
        nonlocal ended
        for byte in data:
            await other.stream.send_all(bytes((byte,)))
            await trio.sleep(0.1)
        ended = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        assert await other.is_shut_out()
        nursery.cancel_scope.cancel()
    return not ended


async def test_a_silent_peer_is_missed() -> None:
    node = Node(1, limits=QUICK)
    async with running(node), stranger(node) as other:
        assert await other.is_shut_out()


async def test_a_dialled_peer_that_falls_silent_is_missed_and_dialled_again() -> None:
    calls: list[Stranger] = []

    async def behave(caller: Stranger) -> None:
        calls.append(caller)
        await caller.wire.read_packet()
        await caller.send(FrameKind.WELCOME, encode_hello(Node(2, address="two:2").hello()))
        await caller.is_shut_out()

    node = Node(1, limits=QUICK)
    async with impostor(behave) as address, running(node, mesh=False):
        node.transport.set_peers({2: address})
        await wait_until(lambda: len(calls) > 1)
        assert node.last_error(2) == "it sent nothing for too long"


async def test_a_peer_that_never_answers_the_handshake_is_disconnected() -> None:
    async def behave(caller: Stranger) -> None:
        await trio.sleep_forever()

    node = Node(1, limits=QUICK)
    async with impostor(behave) as address, running(node, mesh=False):
        node.transport.set_peers({2: address})
        await wait_until(lambda: "no handshake within" in node.last_error(2))


async def test_a_peer_that_never_reads_its_replies_loses_its_connection() -> None:
    async def answer(peer_id: int, kind: int, payload: bytes) -> bytes:
        return bytes(4 * 1024 * 1024)

    node, peer = Node(1, limits=Limits(frame_timeout_s=0.5), answer=answer), Node(2)
    async with running(node, peer), stranger(node) as other:
        with trio.fail_after(PATIENCE_S):
            await _flood(
                other, frame(FrameKind.REQUEST, request_payload(Request(GROUP, 1, 7, 9999, b"")))
            )
        assert len(await peer.ask(1, b"")) == 4 * 1024 * 1024


async def test_a_peer_that_floods_requests_without_reading_loses_its_connection() -> None:
    async def never(peer_id: int, kind: int, payload: bytes) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    node = Node(1, limits=Limits(max_requests=4), answer=never)
    async with running(node), stranger(node) as other:
        request = frame(FrameKind.REQUEST, request_payload(Request(GROUP, 1, 7, 9999, b"")))
        with trio.fail_after(PATIENCE_S):
            await _flood(other, request * 1000)


async def _flood(other: Stranger, data: bytes) -> None:
    """Send without ever reading until the node has had enough."""
    with suppress(trio.BrokenResourceError):
        while True:
            await other.stream.send_all(data)


async def test_a_flood_of_messages_does_not_keep_other_peers_waiting() -> None:
    node, peer = Node(1), Node(2)
    flood = frame(FrameKind.MESSAGES, messages_payload(GROUP, _encoded(9) * 100)) * 10

    async def send(other: Stranger) -> None:
        while True:
            await other.stream.send_all(flood)

    async with running(node, peer), stranger(node) as other, trio.open_nursery() as nursery:
        nursery.start_soon(send, other)
        await wait_until(lambda: len(node.messages) > 1000)
        for _ in range(20):
            with trio.fail_after(PATIENCE_S):
                assert await peer.ask(1, b"well?") == b"2/7/well?"
        nursery.cancel_scope.cancel()


# -- unfinished packets -----------------------------------------------------------------------

_FEW = msgspec.structs.replace(QUICK, max_unfinished_bytes=1000, piece_bytes=500)


async def test_unfinished_packets_of_strangers_are_limited_together_and_released() -> None:
    node = Node(1, limits=_FEW)
    async with running(node):
        async with stranger(node, welcome=False) as one, stranger(node, welcome=False) as two:
            await one.introduce(node, node_id=8, peer_address="stranger:8")
            await two.introduce(node)
            await one.send(FrameKind.PART, bytes(600))
            await one.send(FrameKind.PING)
            assert (await one.wire.read_packet())[0] == FrameKind.PONG
            await two.send(FrameKind.PART, bytes(600))
            assert await two.is_shut_out()
        async with stranger(node) as three:
            await three.send(FrameKind.PART, bytes(900))
            await three.send(FrameKind.PING)
            assert (await three.wire.read_packet())[0] == FrameKind.PONG


async def test_unfinished_packets_of_strangers_do_not_delay_a_member() -> None:
    limits = msgspec.structs.replace(_FEW, silence_timeout_s=PATIENCE_S, frame_timeout_s=PATIENCE_S)
    node, peer = Node(1, limits=limits), Node(2, limits=limits)
    async with running(node, peer), stranger(node) as other:
        await other.send(FrameKind.PART, bytes(1000))
        assert await peer.ask(1, bytes(5000)) == b"2/7/" + bytes(5000)


async def test_a_packet_whose_parts_trickle_in_closes_the_connection() -> None:
    node = Node(1, limits=QUICK)
    async with running(node), stranger(node) as other, trio.open_nursery() as nursery:

        async def trickle() -> None:
            with suppress(trio.BrokenResourceError):
                while True:
                    await other.send(FrameKind.PART, b"x")
                    await trio.sleep(QUICK.silence_timeout_s / 10)

        nursery.start_soon(trickle)
        assert await other.is_shut_out()
        nursery.cancel_scope.cancel()


# -- addresses that strangers announce ----------------------------------------------------------


async def test_a_stranger_cannot_make_a_node_dial_elsewhere() -> None:
    dialled: list[bool] = []

    async def behave(caller: Stranger) -> None:
        dialled.append(True)
        await caller.is_shut_out()

    node = Node(1, limits=QUICK)
    async with impostor(behave) as address, running(node):
        elsewhere = address.replace("127.0.0.1", "127.0.0.2")
        for announced, is_dialled in ((elsewhere, False), ("nowhere:1", False), (address, True)):
            async with stranger(node, welcome=False) as other:
                await other.introduce(node, peer_address=announced)
                node.transport.add_announced_route(announced)
                if is_dialled:
                    await wait_until(lambda: bool(dialled))
                else:
                    await wait_until(lambda a=announced: _error_at(node, a) != "")
                    assert "a peer named the address 127.0.0.1" in _error_at(node, announced)
                    assert not dialled


def _error_at(node: Node, address: str) -> str:
    """Why the last attempt to dial an address ended."""
    route = node.transport._routes.get(address)
    return "" if route is None else route.last_error
