"""The same transport in memory and on a clock that jumps: cuts, silence and healing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import trio
from trio.testing import (
    MemoryReceiveStream,
    MemorySendStream,
    MockClock,
    memory_stream_pair,
    memory_stream_pump,
)

from streamd.transport import Limits, RequestOutcomeUnknown
from tests.support.memory_listener import MemoryListener
from tests.transport.peers import GROUP, Node, heartbeat

LIMITS = Limits()
WORST_PAUSE_S = LIMITS.backoff_max_s + LIMITS.connect_timeout_s


class Switch:
    """Joins the nodes of a test in memory. While it is cut, nothing arrives anywhere."""

    def __init__(self) -> None:
        self.is_cut = False
        self.dialled: dict[str, trio.MemorySendChannel[trio.abc.Stream]] = {}

    async def connect(self, address: str) -> trio.abc.Stream:
        if self.is_cut:
            await trio.sleep_forever()
        ours, theirs = memory_stream_pair()
        self._guard(ours.send_stream, theirs.receive_stream)
        self._guard(theirs.send_stream, ours.receive_stream)
        await self.dialled[address].send(theirs)
        return ours

    def _guard(self, sender: MemorySendStream, receiver: MemoryReceiveStream) -> None:
        def pump() -> None:
            if not self.is_cut:
                memory_stream_pump(sender, receiver)

        async def pump_soon() -> None:
            pump()

        sender.send_all_hook = pump_soon
        sender.close_hook = pump


class Port:
    """One node's place at the switch: its `Network`."""

    def __init__(self, switch: Switch, address: str) -> None:
        self._switch = switch
        self._address = address

    async def connect(self, address: str) -> trio.abc.Stream:
        return await self._switch.connect(address)

    async def listen(self) -> Sequence[trio.abc.Listener[trio.abc.Stream]]:
        sender, receiver = trio.open_memory_channel[trio.abc.Stream](math.inf)
        self._switch.dialled[self._address] = sender
        return [MemoryListener(receiver)]


def _node(switch: Switch, node_id: int) -> Node:
    address = f"node{node_id}:1"
    return Node(node_id, network=Port(switch, address), address=address)


async def _start(nursery: trio.Nursery, *nodes: Node) -> None:
    for node in nodes:
        await nursery.start(node.transport.run)
    for node in nodes:
        node.transport.set_peers({other.node_id: other.address for other in nodes})
    await trio.sleep(1)
    assert all(peer.connected for node in nodes for peer in node.transport.peers().values())


async def test_minutes_without_messages_loses_no_connection(autojump_clock: MockClock) -> None:
    switch = Switch()
    one, two = _node(switch, 1), _node(switch, 2)
    async with trio.open_nursery() as nursery:
        await _start(nursery, one, two)
        await trio.sleep(600)
        assert (len(one.met), len(two.met)) == (2, 2)
        one.transport.send(2, GROUP, [heartbeat(1)])
        await trio.sleep(0.1)
        assert two.messages == [heartbeat(1)]
        nursery.cancel_scope.cancel()


async def test_a_cut_is_noticed_in_time_and_so_is_its_healing(autojump_clock: MockClock) -> None:
    switch = Switch()
    nodes = [_node(switch, number) for number in (1, 2, 3)]
    async with trio.open_nursery() as nursery:
        await _start(nursery, *nodes)
        switch.is_cut = True
        await trio.sleep(LIMITS.silence_timeout_s + 0.1)
        peers = [peer for node in nodes for peer in node.transport.peers().values()]
        assert not any(peer.connected for peer in peers)
        assert {peer.last_error for peer in peers} == {"it sent nothing for too long"}
        await trio.sleep(600)
        switch.is_cut = False
        await trio.sleep(WORST_PAUSE_S + 0.1)
        assert all(peer.connected for node in nodes for peer in node.transport.peers().values())
        nursery.cancel_scope.cancel()


async def test_a_request_across_a_cut_ends_with_the_connection(autojump_clock: MockClock) -> None:
    switch = Switch()
    one, two = _node(switch, 1), _node(switch, 2)
    async with trio.open_nursery() as nursery:
        await _start(nursery, one, two)
        switch.is_cut = True
        began_at = trio.current_time()
        with pytest.raises(RequestOutcomeUnknown, match="sent nothing for too long"):
            await one.ask(2, b"write", timeout_s=60)
        assert trio.current_time() - began_at <= LIMITS.silence_timeout_s
        nursery.cancel_scope.cancel()
