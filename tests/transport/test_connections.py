"""Connections between nodes: made, used, lost, and made again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
import trio
from trio.testing import MockClock

from streamd.raft.messages import Message
from streamd.transport import Limits, RefusalCode, Transport
from tests.transport.peers import (
    GROUP,
    QUICK,
    Node,
    Stranger,
    append,
    heartbeat,
    impostor,
    running,
    wait_until,
)


async def test_messages_arrive_in_order_each_way_with_their_sender() -> None:
    one, two = Node(1), Node(2)
    async with running(one, two):
        forth: list[Message] = [append(number, 100) for number in range(500)]
        back: list[Message] = [heartbeat(number, 2, 1) for number in range(500)]
        for message in forth:
            one.transport.send(2, GROUP, [message])
        two.transport.send(1, GROUP, back)
        await wait_until(lambda: len(two.messages) == len(one.messages) == 500)
    assert two.messages == forth
    assert one.messages == back


async def test_a_message_larger_than_a_frame_arrives_whole() -> None:
    one, two = Node(1), Node(2)
    message = append(1, 20 * 1024 * 1024)
    async with running(one, two):
        one.transport.send(2, GROUP, [message, append(2, 10)])
        await wait_until(lambda: len(two.messages) == 2)
    assert two.messages == [message, append(2, 10)]


async def test_three_nodes_are_all_connected_and_traffic_is_counted() -> None:
    nodes = [Node(number) for number in (1, 2, 3)]
    async with running(*nodes):
        nodes[0].transport.send(3, GROUP, [append(0, 10_000, to=3)])
        await wait_until(lambda: nodes[0].transport.peers()[3].sent_bytes > 10_000)
        await wait_until(lambda: nodes[2].transport.peers()[1].received_bytes > 10_000)
        sent = nodes[0].transport.peers()
        assert sent.keys() == {2, 3}
        assert sent[3].address == nodes[2].address
        assert 0 < sent[2].sent_bytes < 10_000
        assert 0 < nodes[2].transport.peers()[2].received_bytes < 10_000
        assert all(peer.connected and not peer.last_error for peer in sent.values())


async def test_the_handler_learns_each_peers_hello() -> None:
    one, two = Node(1, cluster_id="abc"), Node(2)
    async with running(one, two):
        await wait_until(lambda: len(one.met) == len(two.met) == 2)
    assert {(peer.node_id, peer.peer_address) for peer in one.met} == {(2, two.address)}
    assert {peer.cluster_id for peer in two.met} == {"abc"}


async def test_a_peer_that_restarts_is_connected_again_in_both_directions() -> None:
    one, two = Node(1, limits=QUICK), Node(2, limits=QUICK)
    async with running(one, mesh=False):
        async with running(two, mesh=False):
            address = two.address
            one.transport.set_peers({2: address})
            await one.wait_connected(2)
        await wait_until(lambda: not one.connected(2))
        again = Node(2, limits=QUICK, listen=address)
        async with running(again, mesh=False):
            again.transport.set_peers({1: one.address})
            await one.wait_connected(2)
            await again.wait_connected(1)
            one.transport.send(2, GROUP, [heartbeat(5)])
            again.transport.send(1, GROUP, [heartbeat(6, 2, 1)])
            await wait_until(lambda: again.messages == [heartbeat(5)])
            await wait_until(lambda: one.messages == [heartbeat(6, 2, 1)])


async def test_a_peer_that_returns_is_dialled_at_once_without_a_pause() -> None:
    slow = Limits(backoff_min_s=1000, backoff_max_s=1000)
    one, two = Node(1, limits=slow), Node(2)
    async with running(two, mesh=False):
        address = two.address
    async with running(one, mesh=False):
        one.transport.set_peers({2: address})
        await wait_until(lambda: one.last_error(2) != "")
        two = Node(2, listen=address)
        async with running(two, mesh=False):
            two.transport.set_peers({1: one.address})
            await one.wait_connected(2)


async def test_messages_queued_for_an_absent_peer_are_dropped_and_counted() -> None:
    one = Node(1, limits=QUICK)
    async with running(one, mesh=False):
        one.transport.set_peers({2: "127.0.0.1:1"})
        one.transport.send(2, GROUP, [heartbeat(number) for number in range(10)])
        await wait_until(lambda: one.transport.peers()[2].dropped_messages == 10)
        assert not one.connected(2)
        assert "refused" in one.last_error(2)


async def test_messages_to_an_unknown_node_go_nowhere() -> None:
    one, two = Node(1), Node(2)
    async with running(one, two):
        one.transport.send(5, GROUP, [heartbeat(1)])
        one.transport.send(2, GROUP, [heartbeat(2)])
        await wait_until(lambda: two.messages == [heartbeat(2)])
        assert set(one.transport.peers()) == {2}


@pytest.mark.parametrize("address", ["", "nowhere", "host:99999", "a..b:1", "[::1", "x" * 300])
async def test_a_malformed_address_is_an_error_of_that_peer_only(address: str) -> None:
    one, two = Node(1, limits=QUICK), Node(2)
    async with running(one, two, mesh=False):
        one.transport.set_peers({2: two.address, 3: address})
        await one.wait_connected(2)
        await wait_until(lambda: one.last_error(3) != "")


# -- which addresses are dialled ------------------------------------------------------------------


async def test_peers_can_be_named_before_the_transport_runs() -> None:
    two = Node(2)
    async with running(two, mesh=False):
        one = Node(1)
        one.transport.set_peers({1: "own:1", 2: two.address})
        async with running(one, mesh=False):
            await one.wait_connected(2)
            assert one.transport.peers().keys() == {2}


async def test_a_removed_peer_is_disconnected_and_a_moved_one_redialled() -> None:
    one, two, three = Node(1), Node(2), Node(3)
    async with running(one, two, three):
        one.transport.set_peers({2: two.address})
        assert one.transport.peers().keys() == {2}
        one.transport.set_peers({2: three.address})
        await wait_until(lambda: RefusalCode.NOT_EXPECTED in one.last_error(2))
        one.transport.set_peers({2: two.address})
        await one.wait_connected(2)


async def test_a_route_identifies_the_node_there_and_works_like_a_peer() -> None:
    one, two = Node(1), Node(2)
    async with running(one, two, mesh=False):
        one.transport.add_route(two.address)
        one.transport.add_route(two.address)
        await one.wait_connected(2)
        assert await one.ask(2, b"join") == b"1/7/join"
        one.transport.set_peers({2: two.address})
        assert one.connected(2), "the route has become the peer's link"
        one.transport.set_peers({})
        assert one.transport.peers() == {}


async def test_a_second_route_to_a_known_node_is_closed() -> None:
    one, two = Node(1, limits=QUICK), Node(2, limits=QUICK)
    async with running(one, two):
        _, port = two.address.rsplit(":", 1)
        one.transport.add_route(f"localhost:{port}")
        await wait_until(lambda: len(two.met) >= 3)

        def arrives() -> bool:
            one.transport.send(2, GROUP, [heartbeat(1)])
            return bool(two.messages)

        await wait_until(arrives)
        assert one.transport.peers()[2].address == two.address


async def test_a_route_back_to_the_node_itself_is_closed() -> None:
    one, two = Node(1, limits=QUICK), Node(2)
    async with running(one, two, mesh=False):
        one.transport.add_route(one.address)
        one.transport.add_route(two.address)
        await one.wait_connected(2)
        assert one.transport.peers().keys() == {2}
        assert not one.has_met(1)


async def test_a_route_follows_its_address_to_another_node() -> None:
    one = Node(1, limits=QUICK)
    async with running(one, mesh=False):
        two = Node(2)
        async with running(two, mesh=False):
            address = two.address
            one.transport.add_route(address)
            await one.wait_connected(2)
        async with running(Node(3, listen=address), mesh=False):
            await one.wait_connected(3)
            assert one.transport.peers().keys() == {3}


# -- bounds and order -----------------------------------------------------------------------------


async def test_the_queue_for_a_peer_that_does_not_read_is_bounded() -> None:
    limits = Limits(max_waiting_messages=50, max_waiting_bytes=100_000)

    async def never_reads(caller: Stranger) -> None:
        await trio.sleep_forever()

    async with impostor(never_reads) as address:
        one = Node(1, limits=limits)
        async with running(one, mesh=False):
            one.transport.set_peers({2: address})
            one.transport.send(2, GROUP, [append(number, 10_000) for number in range(1000)])
            assert one.transport.peers()[2].dropped_messages >= 990
            one.transport.send(2, GROUP, [heartbeat(number) for number in range(1000)])
            assert one.transport.peers()[2].dropped_messages >= 990 + 950


async def test_a_heartbeat_overtakes_appends_that_wait() -> None:
    one, two = Node(1), Node(2)
    async with running(one, two):
        one.transport.send(2, GROUP, [append(number, 500_000) for number in range(20)])
        one.transport.send(2, GROUP, [heartbeat(7)])
        await wait_until(lambda: len(two.messages) == 21)
    assert two.messages.index(heartbeat(7)) == 0
    assert [m for m in two.messages if m != heartbeat(7)] == [
        append(number, 500_000) for number in range(20)
    ]


# -- time -----------------------------------------------------------------------------------------


class DeadNetwork:
    """A network without peers; it records when each was dialled."""

    def __init__(self) -> None:
        self.dialled_at: list[float] = []

    async def connect(self, address: str) -> trio.abc.Stream:
        self.dialled_at.append(trio.current_time())
        raise OSError("nobody is there")

    async def listen(self) -> Sequence[trio.abc.Listener[trio.abc.Stream]]:
        return []


async def test_pauses_between_attempts_double_up_to_the_limit_and_are_spread(
    autojump_clock: MockClock,
) -> None:
    network = DeadNetwork()
    transport = Transport(Node(1, address="one:1"), network=network, random=Random(3))
    with trio.move_on_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(transport.run)
            transport.set_peers({2: "two:2"})
    dialled = network.dialled_at
    pauses = [after - before for before, after in pairwise(dialled)]
    most = 0.05
    for pause in pauses:
        assert most / 2 <= pause <= most
        most = min(2 * most, 2.0)
    assert len(pauses) > 30
    assert len(set(pauses)) == len(pauses)
