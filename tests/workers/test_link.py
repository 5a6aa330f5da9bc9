"""The connection between a worker and the group's process."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from streamd.streams.commands import Append, Outcome, Result
from streamd.workers.link import Link
from streamd.workers.messages import (
    Commands,
    FromWorker,
    MoreBody,
    Outcomes,
    Piece,
    ToWorker,
    decode_from_worker,
    decode_to_worker,
)


@asynccontextmanager
async def linked(
    to_worker: Callable[[ToWorker], None], from_worker: Callable[[FromWorker], None]
) -> AsyncIterator[tuple[Link[FromWorker], Link[ToWorker]]]:
    """The ends of the group's process and of the worker, at work."""
    ours, its = socket.socketpair()
    group, worker = Link(ours, decode_from_worker), Link(its, decode_to_worker)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(group.run, from_worker)
        nursery.start_soon(worker.run, to_worker)
        yield group, worker
        nursery.cancel_scope.cancel()


def nothing(_: object) -> None:
    raise AssertionError("nothing is sent this way")


async def test_messages_arrive_whole_and_in_order_whatever_their_size() -> None:
    sent = [
        Commands(0, number, [(Append(b"k", "text/plain", b"x" * size, [size]), size)])
        for number, size in enumerate((0, 1, 100, 1_000_000, 5, 300_000, 0))
    ]
    received: list[FromWorker] = []
    async with linked(nothing, received.append) as (_, worker):
        for message in sent:
            worker.send(message)
        with trio.fail_after(30):
            while len(received) < len(sent):
                await trio.lowlevel.checkpoint()
    assert received == sent


async def test_what_gathers_in_a_turn_is_sent_as_one_message() -> None:
    received: list[ToWorker] = []
    outcomes: list[tuple[int, Outcome]] = []
    async with linked(received.append, nothing) as (group, _):

        def send() -> None:
            group.send(Outcomes(outcomes.copy()))
            outcomes.clear()

        group.before_write.append(send)
        for number in range(100):
            outcomes.append((number, Outcome(Result.DONE)))
            group.wake()
        await trio.testing.wait_all_tasks_blocked(0.01)
    [message] = received
    assert isinstance(message, Outcomes)
    assert [number for number, _ in message.outcomes] == list(range(100))


async def test_a_message_may_grow_until_another_is_sent() -> None:
    received: list[ToWorker] = []
    async with linked(received.append, nothing) as (group, _):
        event = Piece([1], b"event")
        group.send_growing(event)
        assert group.last is event
        event.numbers.append(2)
        group.send(MoreBody(3))
        assert group.last is not event
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert received == [Piece([1, 2], b"event"), MoreBody(3)]


async def _fill(link: Link[FromWorker], send: Callable[[Piece], None]) -> None:
    """Send until there is no room."""
    sent = 0
    while link.has_room:
        send(Piece([1], b"x" * 65536))
        sent += 65536
        assert sent < 64 * 1024 * 1024, "it is bounded"
        await trio.lowlevel.checkpoint()


async def test_a_side_that_does_not_receive_leaves_no_room_until_it_does() -> None:
    ours, its = socket.socketpair()
    link = Link(ours, decode_from_worker)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run, nothing)
        await _fill(link, link.send)
        its.setblocking(False)
        with trio.fail_after(30):
            while not link.has_room:
                await trio.lowlevel.wait_readable(its)
                its.recv(65536)
            await link.room()
        nursery.cancel_scope.cancel()
    its.close()


async def test_events_that_wait_leave_no_room_either() -> None:
    ours, its = socket.socketpair()
    link = Link(ours, decode_from_worker)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run, nothing)
        await _fill(link, link.send_growing)
        nursery.cancel_scope.cancel()
    its.close()


async def test_a_link_whose_other_side_is_gone_ends_and_holds_nothing() -> None:
    ours, its = socket.socketpair()
    link = Link(ours, decode_from_worker)
    link.send(Piece([1], b"x" * 1_000_000))
    its.close()
    with trio.fail_after(30):
        await link.run(nothing)
        link.send(Piece([1], b"x" * 10_000_000))
        await link.room()
        await link.written()


def test_an_unknown_message_is_refused() -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_to_worker(b"\x91\x63")
