"""A network in memory: connections of ordered bytes that take time, get stuck and break.

It behaves like TCP: what is sent into a cut link waits there until the link is whole again or one
end gives up; the end of a process is told by a reset, the loss of power by nothing at all.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from random import Random
from zlib import crc32

import trio

from tests.support.memory_listener import MemoryListener

WINDOW_BYTES = 256 * 1024


class _Pipe:
    """One direction of a connection. `None` among its pieces is a reset, `b""` the end."""

    def __init__(self, network: Network, source: int, target: int) -> None:
        self._network = network
        self.source = source
        self.target = target
        self.pieces: deque[tuple[float, bytes | None]] = deque()
        self.waiting_bytes = 0
        self.closed = False
        self.reset = False
        self.changed = trio.lowlevel.ParkingLot()

    def put(self, data: bytes | None) -> None:
        at = trio.current_time() + self._network.delay_s(self.source, self.target)
        if self.pieces:
            at = max(at, self.pieces[-1][0])
        self.pieces.append((at, data))
        self.waiting_bytes += len(data or b"")
        self.changed.unpark_all()

    def break_now(self) -> None:
        """The receiver learns of it, and bytes in transit are lost."""
        if not self.reset:
            self.pieces.clear()
            self.reset = True
            self.changed.unpark_all()

    async def send(self, data: bytes) -> None:
        while self.waiting_bytes > WINDOW_BYTES and not self.reset:
            await self.changed.park()
        if self.reset:
            raise trio.BrokenResourceError("reset")
        self.put(data)
        await trio.lowlevel.checkpoint()

    async def receive(self, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        while True:
            if self.closed:
                raise trio.ClosedResourceError
            if self.reset:
                raise trio.BrokenResourceError("reset")
            if self.pieces and self._network.passes(self.source, self.target):
                at, data = self.pieces[0]
                if at <= trio.current_time():
                    return self._take(data, max_bytes)
                with trio.move_on_at(at):
                    await self.changed.park()
            else:
                await self.changed.park()

    def _take(self, data: bytes | None, max_bytes: int) -> bytes:
        if data is None:
            self.reset = True
            raise trio.BrokenResourceError("reset")
        if not data:
            return b""
        at, _ = self.pieces.popleft()
        taken, rest = data[:max_bytes], data[max_bytes:]
        if rest:
            self.pieces.appendleft((at, rest))
        self.waiting_bytes -= len(taken)
        self.changed.unpark_all()
        self._network.delivered(self.source, self.target, taken)
        return taken


class _Stream(trio.abc.Stream):
    """One end of a connection."""

    def __init__(self, network: Network, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._network = network
        self.incoming = incoming
        self.outgoing = outgoing

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self.incoming.closed:
            raise trio.ClosedResourceError
        await self.outgoing.send(bytes(data))

    def send_now(self, data: bytes) -> int:
        """As `send_all`, of what the window has room for."""
        if self.incoming.closed or self.outgoing.reset:
            return 0
        taken = data[: max(0, WINDOW_BYTES - self.outgoing.waiting_bytes)]
        if taken:
            self.outgoing.put(taken)
        return len(taken)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self.incoming.receive(max_bytes or 65536)

    async def aclose(self) -> None:
        if not self.incoming.closed:
            self.incoming.closed = True
            self.incoming.changed.unpark_all()
            self.outgoing.put(b"")
            self._network.forget(self)
        await trio.lowlevel.checkpoint()


class Network:
    """Joins all nodes. `digest` covers every byte that arrived, and when, and where."""

    def __init__(self, random: Random, counted: Counter[str]) -> None:
        self._random = random
        self._counted = counted
        self._listening: dict[int, trio.MemorySendChannel[trio.abc.Stream]] = {}
        self._streams: dict[int, tuple[_Stream, int]] = {}
        self._changed = trio.lowlevel.ParkingLot()
        self._cut: frozenset[tuple[int, int]] = frozenset()
        self._frozen: set[int] = set()
        self._dark: set[int] = set()
        self.base_delay_s = (0.0001, 0.001)
        self.slow: dict[tuple[int, int], float] = {}
        self.digest = 0

    # -- the state between two nodes ----------------------------------------------------------

    def passes(self, source: int, target: int) -> bool:
        return (
            (source, target) not in self._cut
            and not {source, target} & self._dark
            and target not in self._frozen
        )

    def delay_s(self, source: int, target: int) -> float:
        delay_s = self._random.uniform(*self.base_delay_s)
        if self._random.random() < 0.01:
            delay_s *= 20
        return delay_s + self._random.random() * self.slow.get((source, target), 0.0)

    def delivered(self, source: int, target: int, data: bytes) -> None:
        heading = b"%d %d %.6f " % (source, target, trio.current_time())
        self.digest = crc32(data, crc32(heading, self.digest))
        self._counted["bytes delivered"] += len(data)

    # -- faults -------------------------------------------------------------------------------

    def cut(self, links: Sequence[tuple[int, int]]) -> None:
        """Cut these directions and no others."""
        self._cut = frozenset(links)
        self._stir()

    def freeze(self, node_id: int, frozen: bool) -> None:
        """A paused node takes nothing from its connections, which stay."""
        (self._frozen.add if frozen else self._frozen.discard)(node_id)
        self._stir()

    def break_connection(self) -> None:
        """One connection ends for both ends at once; bytes in transit are lost."""
        if self._streams:
            stream, _ = self._random.choice(list(self._streams.values()))
            stream.incoming.break_now()
            stream.outgoing.break_now()

    def _stir(self) -> None:
        self._changed.unpark_all()
        for stream, _ in list(self._streams.values()):
            stream.incoming.changed.unpark_all()

    # -- nodes --------------------------------------------------------------------------------

    def end_of(self, node_id: int, *, powerless: bool) -> None:
        """A node's process has ended; after a loss of power its peers learn it when the node
        returns."""
        self._listening.pop(node_id, None)
        for stream, owner in list(self._streams.values()):
            if owner == node_id:
                stream.incoming.break_now()
                stream.outgoing.put(None)
                self.forget(stream)
        if powerless:
            self._dark.add(node_id)
        self._stir()

    def power_on(self, node_id: int) -> None:
        self._dark.discard(node_id)
        self._stir()

    def forget(self, stream: _Stream) -> None:
        self._streams.pop(id(stream), None)

    def listen(self, node_id: int) -> Sequence[trio.abc.Listener[trio.abc.Stream]]:
        sender, receiver = trio.open_memory_channel[trio.abc.Stream](math.inf)
        self._listening[node_id] = sender
        return [MemoryListener(receiver)]

    async def connect(self, source: int, target: int) -> trio.abc.Stream:
        await trio.sleep(self.delay_s(source, target))
        while not (self.may_dial(source, target) and self.may_dial(target, source)):
            await self._changed.park()
        arrivals = self._listening.get(target)
        if arrivals is None:
            raise ConnectionRefusedError("nobody listens there")
        there, back = _Pipe(self, source, target), _Pipe(self, target, source)
        ours, theirs = _Stream(self, back, there), _Stream(self, there, back)
        self._streams[id(ours)] = ours, source
        self._streams[id(theirs)] = theirs, target
        arrivals.send_nowait(theirs)
        return ours

    def may_dial(self, source: int, target: int) -> bool:
        """A paused node's kernel still accepts."""
        return (source, target) not in self._cut and not {source, target} & self._dark


class Port:
    """A node's place at the network, as its transport wants it."""

    def __init__(self, network: Network, node_id: int) -> None:
        self._network = network
        self._node_id = node_id

    async def connect(self, address: str) -> trio.abc.Stream:
        return await self._network.connect(self._node_id, node_at(address))

    async def listen(self) -> Sequence[trio.abc.Listener[trio.abc.Stream]]:
        return self._network.listen(self._node_id)


def address_of(node_id: int) -> str:
    return f"node{node_id}:1"


def node_at(address: str) -> int:
    return int(address.removeprefix("node").removesuffix(":1"))
