"""Requests: answered, refused, timed out, lost. A definite outcome is never reported as unknown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from streamd.transport import Limits, NotSent, RequestOutcomeUnknown, RequestRefused
from streamd.transport.hello import encode_hello
from streamd.transport.requests import OVERLOADED
from streamd.transport.wire import (
    FrameKind,
    ReplyStatus,
    Request,
    frame,
    parse_reply,
    parse_request,
    request_payload,
)
from tests.transport.peers import (
    GROUP,
    PATIENCE_S,
    QUICK,
    Node,
    Stranger,
    append,
    echo,
    heartbeat,
    impostor,
    running,
    stranger,
    wait_until,
)

Behaviour = Callable[[Stranger], Awaitable[None]]


class Waiting:
    """A handler that answers when released; it records which requests wait."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.cancelled: list[bytes] = []
        self.go = trio.Event()

    async def __call__(self, peer_id: int, kind: int, payload: bytes) -> bytes:
        self.asked.append(payload)
        try:
            await self.go.wait()
        except trio.Cancelled:
            self.cancelled.append(payload)
            raise
        return payload


async def test_many_requests_at_once_each_get_their_own_answer() -> None:
    one, two = Node(1), Node(2)
    answers: dict[int, bytes] = {}

    async def ask(number: int) -> None:
        answers[number] = await one.ask(2, b"%d" % number)

    async with running(one, two), trio.open_nursery() as nursery:
        for number in range(1000):
            nursery.start_soon(ask, number)
    assert answers == {number: b"1/7/%d" % number for number in range(1000)}


@pytest.mark.parametrize("size", [0, 1, 1024 * 1024, 2 * 1024 * 1024 + 1, 20 * 1024 * 1024])
async def test_requests_and_answers_of_any_size_arrive_whole(size: int) -> None:
    one, two = Node(1), Node(2)
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with running(one, two):
        assert await one.ask(2, payload) == b"1/7/" + payload


async def test_a_heartbeat_overtakes_a_large_request_under_way() -> None:
    one, two = Node(1), Node(2)
    async with running(one, two):
        heard_at: list[int] = []

        async def answer(peer_id: int, kind: int, payload: bytes) -> bytes:
            heard_at.append(len(two.messages))
            return b""

        two.answer = answer
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.ask, 2, bytes(32 * 1024 * 1024))
            with trio.fail_after(PATIENCE_S):
                # Each turn of the loop, so that the request is still on its way.
                while one.transport.peers()[2].sent_bytes < 1_500_000:
                    await trio.lowlevel.checkpoint()
            one.transport.send(2, GROUP, [heartbeat(1)])
    assert heard_at == [1]


async def test_appends_and_requests_take_turns() -> None:
    one, two = Node(1), Node(2)
    async with running(one, two):
        heard_at: list[int] = []

        async def answer(peer_id: int, kind: int, payload: bytes) -> bytes:
            heard_at.append(len(two.messages))
            return b""

        two.answer = answer
        one.transport.send(2, GROUP, [append(number, 500_000) for number in range(60)])
        await one.ask(2, b"")
    assert heard_at[0] < 10


# -- answers that are errors ----------------------------------------------------------------------


async def test_a_handlers_refusal_is_returned_as_a_refusal() -> None:
    async def refuse(peer_id: int, kind: int, payload: bytes) -> bytes:
        raise RequestRefused("NOT_LEADER", "ask node 3")

    one, two = Node(1), Node(2, answer=refuse)
    async with running(one, two):
        with pytest.raises(RequestRefused) as caught:
            await one.ask(2, b"")
    assert (caught.value.code, str(caught.value)) == ("NOT_LEADER", "NOT_LEADER: ask node 3")


async def test_a_handler_that_raises_leaves_the_outcome_unknown_and_the_connection_open() -> None:
    async def fail(peer_id: int, kind: int, payload: bytes) -> bytes:
        raise ValueError("a bug")

    one, two = Node(1), Node(2, answer=fail)
    async with running(one, two):
        with pytest.raises(RequestOutcomeUnknown):
            await one.ask(2, b"")
        two.answer = echo
        assert await one.ask(2, b"again") == b"1/7/again"


async def test_a_fatal_error_of_a_handler_stops_the_transport() -> None:
    class DiskFailed(Exception):
        pass

    async def fail(peer_id: int, kind: int, payload: bytes) -> bytes:
        raise DiskFailed

    one, two = Node(1), Node(2, answer=fail, fatal=(DiskFailed,))
    with pytest.raises(BaseExceptionGroup) as caught:
        async with running(one, two):
            await one.ask(2, b"")
    assert caught.value.subgroup(DiskFailed) is not None


async def test_a_request_that_times_out_has_an_unknown_outcome_and_cancels_the_handler() -> None:
    waiting = Waiting()
    one, two = Node(1), Node(2, answer=waiting)
    async with running(one, two):
        with pytest.raises(RequestOutcomeUnknown, match=r"no answer within 0\.1 s"):
            await one.ask(2, b"slow", timeout_s=0.1)
        await wait_until(lambda: waiting.cancelled == [b"slow"])
        two.answer = echo
        assert await one.ask(2, b"next") == b"1/7/next"


async def test_a_cancelled_request_leaves_nothing_in_the_transport() -> None:
    waiting = Waiting()
    one, two = Node(1, limits=Limits(max_requests=1)), Node(2, answer=waiting)
    async with running(one, two):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.ask, 2, b"gone")
            await wait_until(lambda: waiting.asked == [b"gone"])
            nursery.cancel_scope.cancel()
        waiting.go.set()
        assert await one.ask(2, b"next") == b"next"


# -- what certainly did not happen ----------------------------------------------------------------


async def test_a_request_to_an_unconnected_peer_is_not_sent() -> None:
    one = Node(1, limits=QUICK)
    async with running(one, mesh=False):
        with pytest.raises(NotSent, match="not known"):
            await one.ask(2, b"")
        one.transport.set_peers({2: "127.0.0.1:1"})
        with pytest.raises(NotSent, match="not connected"):
            await one.ask(2, b"")


async def test_a_request_that_is_too_large_is_not_sent() -> None:
    one, two = Node(1, limits=Limits(max_request_bytes=10)), Node(2)
    async with running(one, two):
        with pytest.raises(NotSent, match="exceeds 10 bytes"):
            await one.ask(2, bytes(11))


async def test_a_request_that_waits_for_its_turn_too_long_is_not_sent() -> None:
    waiting = Waiting()
    one, two = Node(1, limits=Limits(max_requests=1)), Node(2, answer=waiting)
    async with running(one, two), trio.open_nursery() as nursery:
        nursery.start_soon(one.ask, 2, b"first")
        await wait_until(lambda: waiting.asked == [b"first"])
        with pytest.raises(NotSent):
            await one.ask(2, b"second", timeout_s=0.05)
        waiting.go.set()
    assert waiting.asked == [b"first"]


def _welcoming(then: Behaviour) -> Behaviour:
    """A peer that shakes hands as node 2, and then behaves."""

    async def behave(caller: Stranger) -> None:
        await caller.wire.read_packet()
        hello = Node(2, address="two:2").hello()
        await caller.send(FrameKind.WELCOME, encode_hello(hello))
        await then(caller)

    return behave


async def test_a_peer_that_dies_in_mid_request_leaves_the_outcome_unknown() -> None:
    async def die(caller: Stranger) -> None:
        while True:
            kind, payload = await caller.wire.read_packet()
            if kind == FrameKind.REQUEST:
                assert parse_request(payload).payload == b"write"
                return

    async with impostor(_welcoming(die)) as address:
        one = Node(1, limits=QUICK)
        async with running(one, mesh=False):
            one.transport.set_peers({2: address})
            await one.wait_connected(2)
            with pytest.raises(RequestOutcomeUnknown):
                await one.ask(2, b"write")


async def test_requests_queued_after_one_that_never_left_are_not_sent() -> None:
    outcomes: dict[int, type[Exception]] = {}

    async def never_read(caller: Stranger) -> None:
        await trio.sleep_forever()

    async def ask(node: Node, number: int) -> None:
        try:
            await node.ask(2, bytes(16 * 1024 * 1024))
        except (NotSent, RequestOutcomeUnknown) as error:
            outcomes[number] = type(error)

    async with impostor(_welcoming(never_read)) as address:
        one = Node(1, limits=Limits(frame_timeout_s=1))
        async with running(one, mesh=False):
            one.transport.set_peers({2: address})
            await one.wait_connected(2)
            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(ask, one, number)
    assert sorted(error.__name__ for error in outcomes.values()) == [
        "NotSent",
        "NotSent",
        "NotSent",
        "RequestOutcomeUnknown",
    ]


async def test_removing_a_peer_ends_its_requests() -> None:
    waiting = Waiting()
    one, two = Node(1), Node(2, answer=waiting)
    async with running(one, two):
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(RequestOutcomeUnknown, match="this node ended"):
                    await one.ask(2, b"")

            nursery.start_soon(ask)
            await wait_until(lambda: waiting.asked == [b""])
            one.transport.set_peers({})
        await wait_until(lambda: waiting.cancelled == [b""])


# -- limits ---------------------------------------------------------------------------------------


async def test_requests_beyond_the_limit_are_refused_before_the_handler() -> None:
    waiting = Waiting()
    node = Node(1, answer=waiting, limits=Limits(max_requests=2))
    async with running(node), stranger(node) as other:
        for number in range(3):
            request = Request(GROUP, number, 7, 10_000, b"%d" % number)
            await other.send(FrameKind.REQUEST, request_payload(request))
        kind, payload = await other.wire.read_packet()
        reply = parse_reply(payload)
        assert (kind, reply.request_id, reply.status) == (FrameKind.REPLY, 2, ReplyStatus.REFUSED)
        assert OVERLOADED.encode() in reply.payload
        waiting.go.set()
        answered = {parse_reply((await other.wire.read_packet())[1]).request_id for _ in range(2)}
        assert answered == {0, 1}
        await other.send(FrameKind.REQUEST, request_payload(Request(GROUP, 3, 7, 10_000, b"3")))
        assert parse_reply((await other.wire.read_packet())[1]).status == ReplyStatus.DONE
    assert sorted(waiting.asked) == [b"0", b"1", b"3"]


async def test_unread_answers_are_limited_in_bytes() -> None:
    async def answer(peer_id: int, kind: int, payload: bytes) -> bytes:
        return bytes(600_000)

    node = Node(1, answer=answer, limits=Limits(max_request_bytes=1_000_000, piece_bytes=10_000))
    async with running(node), stranger(node) as other:
        requests = [
            frame(FrameKind.REQUEST, request_payload(Request(GROUP, n, 7, 10_000, b"")))
            for n in range(100)
        ]
        await other.stream.send_all(b"".join(requests))
        statuses = {parse_reply((await other.wire.read_packet())[1]).status for _ in range(100)}
    assert statuses == {ReplyStatus.DONE, ReplyStatus.FAILED}


async def test_bytes_of_requests_under_way_are_limited() -> None:
    waiting = Waiting()
    two = Node(2, answer=waiting, limits=Limits(max_request_bytes=1000))
    one = Node(1)
    async with running(one, two):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.ask, 2, bytes(600))
            await wait_until(lambda: len(waiting.asked) == 1)
            with pytest.raises(RequestRefused, match=OVERLOADED):
                await one.ask(2, bytes(600))
            waiting.go.set()
        assert await one.ask(2, bytes(600)) == bytes(600)
