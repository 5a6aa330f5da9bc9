"""Frames: what is read is what was written, or the connection ends."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MemoryReceiveStream, MockClock, memory_stream_pair

from streamd.raft.messages import Message
from streamd.transport import Limits, TcpNetwork
from streamd.transport.errors import ConnectionEnded, ProtocolError
from streamd.transport.interface import PromptStream
from streamd.transport.outbox import Outbox, Packet
from streamd.transport.wire import (
    FrameKind,
    Reply,
    Request,
    Wire,
    describe,
    frame,
    frames,
    messages_payload,
    parse_messages,
    parse_reply,
    parse_request,
    reply_payload,
    request_payload,
)
from tests.transport.peers import GROUP, append, heartbeat

SMALL = Limits(max_frame_bytes=100, max_packet_bytes=1000, piece_bytes=50)


async def _read(data: bytes, limits: Limits = SMALL) -> list[tuple[int, bytes]]:
    """All packets in `data`, which ends between frames."""
    theirs, ours = memory_stream_pair()
    await theirs.send_all(data)
    await theirs.send_eof()
    wire = Wire(ours, limits)
    packets = []
    while True:
        try:
            packets.append(await wire.read_packet())
        except ProtocolError:
            raise
        except ConnectionEnded:
            return packets


def _outcome(data: bytes) -> list[tuple[int, bytes]] | str:
    try:
        return trio.run(_read, data)
    except ProtocolError as error:
        return str(error)


@given(st.lists(st.binary(max_size=200), max_size=5), st.integers(1, 100))
def test_packets_of_any_size_are_read_as_they_were_written(
    payloads: list[bytes], piece_bytes: int
) -> None:
    data = b"".join(
        piece for payload in payloads for piece in frames(FrameKind.REPLY, payload, piece_bytes)
    )
    assert _outcome(data) == [(FrameKind.REPLY, payload) for payload in payloads]


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_flipped_bit_never_goes_unnoticed(payload: bytes, data: st.DataObject) -> None:
    sound = frame(FrameKind.REPLY, payload)
    bit = data.draw(st.integers(0, len(sound) * 8 - 1))
    damaged = bytearray(sound)
    damaged[bit // 8] ^= 1 << bit % 8
    assert _outcome(bytes(damaged)) != [(FrameKind.REPLY, payload)]
    assert not isinstance(_outcome(bytes(damaged)), list) or not _outcome(bytes(damaged))


@given(st.binary(max_size=300))
def test_garbage_is_never_decoded_as_a_packet(garbage: bytes) -> None:
    assert not isinstance(_outcome(garbage), list) or not _outcome(garbage)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(FrameKind.REPLY, bytes(101)), "a frame of 101 bytes, the limit is 100"),
        (frame(FrameKind.PING)[:-1] + b"\x63", "unknown kind 99"),
        (frame(FrameKind.PING)[:-1] + bytes((FrameKind.PING | 0x80,)), "unknown kind"),
        (frame(FrameKind.PING)[:-1] + bytes((FrameKind.PONG,)), "wrong checksum"),
        (frame(FrameKind.PART, b""), "empty or too large"),
        (frame(FrameKind.PART, bytes(100)) * 11, "empty or too large"),
    ],
)
def test_a_malformed_packet_is_an_error_that_names_it(data: bytes, reason: str) -> None:
    outcome = _outcome(data)
    assert isinstance(outcome, str)
    assert reason in outcome


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65535, 65536])
def test_any_number_of_messages_shares_a_frame(count: int) -> None:
    outbox = Outbox(Limits(max_waiting_messages=100_000, piece_bytes=8 * 1024 * 1024))
    messages: list[Message] = [heartbeat(number) for number in range(count)]
    outbox.put_messages(GROUP, messages)
    data = outbox.take() or frame(FrameKind.MESSAGES, messages_payload(GROUP, []))
    [(kind, payload)] = trio.run(_read, data, Limits())
    assert kind == FrameKind.MESSAGES
    assert parse_messages(payload) == (GROUP, messages)


def test_requests_and_replies_are_parsed_as_they_were_encoded() -> None:
    request = Request(GROUP, 2**64 - 1, 65535, 2**32 - 1, b"payload")
    assert parse_request(request_payload(request)) == request
    reply = Reply(5, 1, b"")
    assert parse_reply(reply_payload(reply)) == reply


@pytest.mark.parametrize("parse", [parse_messages, parse_request, parse_reply])
@pytest.mark.parametrize("payload", [b"", b"\0\0\0", b"\0\0\0\0\xc1"])
def test_malformed_payloads_are_refused(parse: object, payload: bytes) -> None:
    assert callable(parse)
    with pytest.raises(ProtocolError):
        parse(payload)


def test_a_network_error_is_reported_by_its_cause() -> None:
    outer = trio.BrokenResourceError("broken")
    outer.__cause__ = ExceptionGroup("all", [ConnectionRefusedError(111, "Connection refused")])
    assert describe(outer) == "Connection refused"
    assert describe(trio.BrokenResourceError()) == "BrokenResourceError"


# -- the order of what waits ----------------------------------------------------------------------


def _kinds(data: bytes) -> list[int]:
    return [kind for kind, _ in trio.run(_read, data, Limits())]


def test_urgent_messages_go_between_the_pieces_of_a_packet() -> None:
    outbox = Outbox(Limits(piece_bytes=1000))
    begun: list[bool] = []
    outbox.put_packet(Packet(FrameKind.REPLY, bytes(5000), lambda: begun.append(True)))
    assert begun == []
    first = outbox.take()
    assert begun == [True]
    assert len(first) < 2100
    outbox.put_messages(GROUP, [heartbeat(1)])
    outbox.put_control(FrameKind.PONG)
    rest = b""
    while data := outbox.take():
        assert len(data) < 2100
        rest += data
    assert _kinds(first + rest) == [FrameKind.PONG, FrameKind.MESSAGES, FrameKind.REPLY]


def test_a_withdrawn_packet_is_never_written() -> None:
    outbox = Outbox(Limits(piece_bytes=100))
    first = outbox.put_packet(Packet(FrameKind.REPLY, bytes(150), lambda: None))
    second = outbox.put_packet(Packet(FrameKind.REPLY, bytes(150), lambda: None))
    data = outbox.take()
    assert not outbox.take_back(first)
    assert outbox.take_back(second)
    while more := outbox.take():
        data += more
    assert _kinds(data) == [FrameKind.REPLY]


def test_at_most_one_ping_waits() -> None:
    outbox = Outbox(Limits())
    for _ in range(100):
        outbox.put_control(FrameKind.PONG)
    assert outbox.take() == frame(FrameKind.PONG)
    assert outbox.take() == b""


def test_the_oldest_messages_give_way_in_each_queue_by_count_and_bytes() -> None:
    outbox = Outbox(Limits(max_waiting_messages=3, max_waiting_bytes=1000))
    outbox.put_messages(GROUP, [heartbeat(number) for number in range(10)])
    outbox.put_messages(GROUP, [append(number, 400) for number in range(10)])
    assert outbox.dropped_messages == 7 + 8
    packets = trio.run(_read, outbox.take(), Limits())
    assert [parse_messages(payload) for _, payload in packets] == [
        (GROUP, [heartbeat(7), heartbeat(8), heartbeat(9)]),
        (GROUP, [append(8, 400), append(9, 400)]),
    ]


def test_a_message_beyond_the_limit_of_a_packet_is_dropped_and_counted() -> None:
    outbox = Outbox(Limits(max_packet_bytes=1000))
    outbox.put_messages(GROUP, [append(1, 1000), append(2, 10)])
    assert outbox.dropped_messages == 1
    [(_, payload)] = trio.run(_read, outbox.take(), Limits())
    assert parse_messages(payload) == (GROUP, [append(2, 10)])


def test_an_append_without_entries_keeps_its_place() -> None:
    outbox = Outbox(Limits())
    empty = append(2, 0)
    outbox.put_messages(GROUP, [append(1, 10), empty, heartbeat(1)])
    packets = trio.run(_read, outbox.take(), Limits())
    assert [parse_messages(payload) for _, payload in packets] == [
        (GROUP, [heartbeat(1)]),
        (GROUP, [append(1, 10), empty]),
    ]


def test_a_frame_has_messages_of_one_group_and_keeps_their_order() -> None:
    outbox = Outbox(Limits())
    for number, group_id in enumerate((1, 1, 2, 1)):
        outbox.put_messages(group_id, [append(number, 10)])
    packets = trio.run(_read, b"".join(iter(outbox.take, b"")), Limits())
    assert [parse_messages(payload) for _, payload in packets] == [
        (1, [append(0, 10), append(1, 10)]),
        (2, [append(2, 10)]),
        (1, [append(3, 10)]),
    ]


# -- writing at once ------------------------------------------------------------------------------


class Narrow(trio.abc.Stream):
    """Takes some bytes at once, and all others when it is waited for."""

    def __init__(self, takes: Iterable[int]) -> None:
        self._takes = iter(takes)
        self.at_once = b""
        self.sent = b""

    def send_now(self, data: bytes) -> int:
        taken = data[: next(self._takes, 0)]
        self.at_once += taken
        self.sent += taken
        return len(taken)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self.sent += data

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await trio.sleep_forever()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_what_a_connection_takes_at_once_needs_no_task() -> None:
    stream, outbox = Narrow([1000] * 10), Outbox(Limits())
    outbox.begin_connection(Wire(stream, Limits()))
    begun: list[bool] = []
    outbox.put_messages(GROUP, [heartbeat(1), append(1, 10)])
    outbox.put_packet(Packet(FrameKind.REPLY, b"answer", lambda: begun.append(True)))
    outbox.put_control(FrameKind.PONG)
    kinds = [FrameKind.MESSAGES, FrameKind.MESSAGES, FrameKind.REPLY, FrameKind.PONG]
    assert [kind for kind, _ in await _read(stream.at_once, Limits())] == kinds
    assert begun == [True]
    assert outbox.waiting_packets == 0


@given(st.lists(st.integers(0, 40), max_size=8), st.lists(st.integers(0, 3), max_size=8))
def test_the_task_of_the_writer_continues_where_the_connection_took_no_more(
    takes: list[int], puts: list[int]
) -> None:
    async def run() -> None:
        stream, outbox = Narrow(takes), Outbox(Limits(piece_bytes=50))
        wire = Wire(stream, Limits())
        outbox.begin_connection(wire)
        async with trio.open_nursery() as nursery:
            for number, pauses in enumerate(puts):
                outbox.put_messages(GROUP, [append(number, 60)])
                if pauses:
                    nursery.start_soon(outbox.write, wire)
                    for _ in range(pauses):
                        await trio.lowlevel.checkpoint()
                    await trio.testing.wait_all_tasks_blocked()
        await outbox.write(wire)
        found = [parse_messages(payload) for _, payload in await _read(stream.sent, Limits())]
        sent = [message for _, messages in found for message in messages]
        assert sent == [append(number, 60) for number in range(len(puts))]
        assert wire.traffic.sent_bytes == len(stream.sent)

    trio.run(run)


async def test_a_large_message_is_left_to_the_task_of_the_writer() -> None:
    stream, outbox = Narrow([1_000_000] * 10), Outbox(Limits())
    wire = Wire(stream, Limits())
    outbox.begin_connection(wire)
    outbox.put_messages(GROUP, [append(1, 100_000)])
    assert stream.at_once == b""
    await outbox.write(wire)
    outbox.put_messages(GROUP, [heartbeat(1)])
    assert len(await _read(stream.sent, Limits())) == 2


async def test_nothing_of_a_lost_connection_is_written_to_the_next() -> None:
    first, second, outbox = Narrow([5]), Narrow([1000] * 10), Outbox(Limits())
    outbox.begin_connection(Wire(first, Limits()))
    outbox.put_messages(GROUP, [heartbeat(1)])
    outbox.end_connection()
    outbox.begin_connection(Wire(second, Limits()))
    outbox.put_messages(GROUP, [heartbeat(2)])
    [(_, payload)] = await _read(second.sent, Limits())
    assert parse_messages(payload) == (GROUP, [heartbeat(2)])


async def test_bytes_that_came_while_the_process_paused_count_as_heard(
    mock_clock: MockClock,
) -> None:
    limits = Limits()
    _, ours = memory_stream_pair()
    wire = Wire(ours, limits)
    read: list[int] = []

    async def reads() -> None:
        while True:
            read.append((await wire.read_packet())[0])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.watch)
        nursery.start_soon(reads)
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(ours.receive_stream, MemoryReceiveStream)
        ours.receive_stream.put_data(frame(FrameKind.PING))
        mock_clock.jump(limits.silence_timeout_s + 1)
        await trio.testing.wait_all_tasks_blocked()
        assert read == [FrameKind.PING]
        nursery.cancel_scope.cancel()


# -- TCP ------------------------------------------------------------------------------------------


async def _tcp_pair() -> tuple[trio.abc.Stream, trio.abc.Stream]:
    network = TcpNetwork("127.0.0.1:0")
    [listener] = await network.listen()
    async with listener:
        ours = await network.connect(network.address)
        return ours, await listener.accept()


async def test_a_socket_takes_what_fits_and_the_rest_later() -> None:
    ours, theirs = await _tcp_pair()
    assert isinstance(ours, PromptStream)
    sent = 0
    while taken := ours.send_now(bytes(100_000)):
        sent += taken
    received = 0
    while received < sent:
        received += len(await theirs.receive_some())
    assert ours.send_now(b"more") == 4
    assert await theirs.receive_some() == b"more"
    await ours.aclose()
    assert ours.send_now(b"late") == 0
    assert await theirs.receive_some() == b""
    await theirs.aclose()


async def test_a_broken_or_closed_socket_is_reported_as_trio_does() -> None:
    ours, theirs = await _tcp_pair()
    async with trio.open_nursery() as nursery:

        async def reads() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await ours.receive_some()

        nursery.start_soon(reads)
        await trio.testing.wait_all_tasks_blocked()
        await ours.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await ours.receive_some()
    assert isinstance(theirs, PromptStream)
    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012 - the reset takes a moment
        while True:
            await theirs.send_all(b"x")
    assert theirs.send_now(b"x") == 0


@pytest.mark.parametrize("is_tcp", [True, False], ids=["TCP", "another stream"])
async def test_packets_are_taken_as_they_come_until_the_connection_ends(is_tcp: bool) -> None:
    ours, theirs = await _tcp_pair() if is_tcp else memory_stream_pair()
    wire = Wire(ours, Limits())
    taken: list[int] = []
    came = trio.Event()

    def take(kind: int, _: bytes) -> None:
        taken.append(kind)
        came.set()

    await theirs.send_all(frame(FrameKind.PING) + frame(FrameKind.PONG))
    assert (await wire.read_packet())[0] == FrameKind.PING  # The other is in the buffer now.
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            with pytest.raises(ConnectionEnded, match="closed the connection"):
                await wire.read_packets(take)

        nursery.start_soon(read)
        await came.wait()
        came = trio.Event()
        await theirs.send_all(frame(FrameKind.PING))
        await came.wait()
        await theirs.aclose()
    assert taken == [FrameKind.PONG, FrameKind.PING]
    await ours.aclose()


@pytest.mark.parametrize("is_tcp", [True, False], ids=["TCP", "another stream"])
async def test_a_packet_that_is_refused_ends_the_reading(is_tcp: bool) -> None:
    ours, theirs = await _tcp_pair() if is_tcp else memory_stream_pair()

    def take(_: int, __: bytes) -> None:
        raise ProtocolError("not this one")

    await theirs.send_all(frame(FrameKind.PING))
    with pytest.raises(ProtocolError, match="not this one"):
        await Wire(ours, Limits()).read_packets(take)
    for stream in ours, theirs:
        await trio.aclose_forcefully(stream)


def test_group_0_is_written_as_the_first_release_wrote_it() -> None:
    messages = [msgspec.msgpack.encode(heartbeat(7))]
    assert messages_payload(0, messages) == bytes.fromhex("00000000 91") + messages[0]
    request = Request(0, 5, 7, 1000, b"write")
    assert request_payload(request) == bytes.fromhex(
        "00000000 0000000000000005 0007 000003e8 7772697465"
    )
