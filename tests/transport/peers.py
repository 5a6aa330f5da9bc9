"""Nodes that record what the transport tells them, and strangers that speak raw frames."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random

import msgspec
import trio

from streamd.raft.messages import AppendRequest, Entry, Heartbeat, Message
from streamd.transport import (
    Credentials,
    Handler,
    Hello,
    Limits,
    Network,
    TcpNetwork,
    TlsContexts,
    Transport,
)
from streamd.transport.errors import ConnectionEnded
from streamd.transport.hello import encode_hello
from streamd.transport.wire import FrameKind, Wire, frame

PATIENCE_S = 20
GROUP = 5
DEFAULTS = Limits()
NO_CREDENTIALS = Credentials()
QUICK = Limits(
    handshake_timeout_s=0.3,
    ping_interval_s=0.05,
    silence_timeout_s=0.5,
    frame_timeout_s=0.5,
    backoff_min_s=0.01,
    backoff_max_s=0.1,
)

Answer = Callable[[int, int, bytes], Awaitable[bytes]]


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what the transport's own tasks bring about."""
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - no event tells of it
            await trio.sleep(0.005)


async def echo(peer_id: int, kind: int, payload: bytes) -> bytes:
    return b"%d/%d/%b" % (peer_id, kind, payload)


class Node(Handler):
    """A transport with a handler that remembers."""

    def __init__(
        self,
        node_id: int,
        *,
        network: Network | None = None,
        tls: TlsContexts | None = None,
        limits: Limits = DEFAULTS,
        listen: str = "127.0.0.1:0",
        cluster_name: str = "test",
        cluster_id: str = "",
        address: str = "",
        answer: Answer = echo,
        fatal: tuple[type[Exception], ...] = (),
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        self.node_id = node_id
        self.tls = tls
        self.network = network or TcpNetwork(listen, None if tls is None else self._present_tls)
        self.cluster_name = cluster_name
        self.cluster_id = cluster_id
        self.version = 1
        self.hellos = 0
        self.answer = answer
        self.checks: Callable[[Hello], None] = lambda _: None
        self.met: list[Hello] = []
        self.messages: list[Message] = []
        self.group_ids: list[int] = []
        self._address = address
        self.transport = Transport(
            self,
            network=self.network,
            random=Random(node_id),
            limits=limits,
            fatal=fatal,
            credentials=credentials,
        )

    def _present_tls(self) -> TlsContexts:
        assert self.tls is not None
        return self.tls

    @property
    def address(self) -> str:
        if not self._address and isinstance(self.network, TcpNetwork):
            return self.network.address if self.network.bound else ""
        return self._address

    def connected(self, peer_id: int) -> bool:
        known = self.transport.peers().get(peer_id)
        return known is not None and known.connected

    def has_met(self, peer_id: int) -> bool:
        return any(peer.node_id == peer_id for peer in self.met)

    async def wait_connected(self, *peer_ids: int) -> None:
        await wait_until(lambda: all(self.connected(peer_id) for peer_id in peer_ids))

    def last_error(self, peer_id: int) -> str:
        return self.transport.peers()[peer_id].last_error

    async def ask(self, peer_id: int, payload: bytes, *, timeout_s: float = PATIENCE_S) -> bytes:
        return await self.transport.request(peer_id, GROUP, 7, payload, timeout_s=timeout_s)

    # -- what the transport calls -----------------------------------------------------------------

    def hello(self) -> Hello:
        self.hellos += 1
        return Hello(
            protocol_version=self.version,
            cluster_name=self.cluster_name,
            cluster_id=self.cluster_id,
            node_id=self.node_id,
            peer_address=self.address,
            client_address="client:1",
            log_is_empty=True,
        )

    def check(self, peer: Hello) -> None:
        self.checks(peer)

    def on_peer(self, peer: Hello) -> None:
        self.met.append(peer)

    def on_messages(self, peer_id: int, group_id: int, messages: list[Message]) -> None:
        self.messages += messages
        self.group_ids += [group_id] * len(messages)

    async def on_request(self, peer_id: int, group_id: int, kind: int, payload: bytes) -> bytes:
        self.group_ids.append(group_id)
        return await self.answer(peer_id, kind, payload)


@asynccontextmanager
async def running(*nodes: Node, mesh: bool = True) -> AsyncIterator[None]:
    """Run transports, each dialling all others, or none."""
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.transport.run)
        if mesh:
            addresses = {node.node_id: node.address for node in nodes}
            for node in nodes:
                node.transport.set_peers(addresses)
            for node in nodes:
                await node.wait_connected(*(addresses.keys() - {node.node_id}))
        yield
        nursery.cancel_scope.cancel()


def heartbeat(number: int, sender: int = 1, to: int = 2) -> Heartbeat:
    return Heartbeat(sender, to, 1, number)


def append(number: int, size: int, sender: int = 1, to: int = 2) -> AppendRequest:
    return AppendRequest(sender, to, 1, number, 1, 0, [Entry(number + 1, 1, 1, bytes(size))])


class Stranger:
    """The other end of a TCP connection to a node; it can send anything."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.wire = Wire(stream, Limits())

    async def send(self, kind: int, payload: bytes = b"") -> None:
        await self.stream.send_all(frame(kind, payload))

    async def introduce(self, node: Node, **changes: object) -> tuple[int, bytes]:
        """Shake hands as node 9 of the node's own cluster. Returns the answer."""
        hello = msgspec.structs.replace(node.hello(), node_id=9, peer_address="stranger:9")
        hello = msgspec.structs.replace(hello, instance=99)
        await self.send(FrameKind.HELLO, encode_hello(msgspec.structs.replace(hello, **changes)))
        return await self.wire.read_packet()

    async def is_shut_out(self) -> bool:
        """Whether the node closes the connection, after anything that it still sends."""
        with trio.fail_after(PATIENCE_S):
            try:
                while True:
                    await self.wire.read_packet()
            except ConnectionEnded:
                return True


@asynccontextmanager
async def stranger(
    node: Node, *, welcome: bool = True, source: str | None = None
) -> AsyncIterator[Stranger]:
    """A stranger's connection to a node, from the address `source`; by default the handshake is
    done."""
    host, port = node.address.rsplit(":", 1)
    stream = await trio.open_tcp_stream(host, int(port), local_address=source)
    async with stream:
        other = Stranger(stream)
        if welcome:
            kind, _ = await other.introduce(node)
            assert kind == FrameKind.WELCOME
        yield other


@asynccontextmanager
async def impostor(
    behave: Callable[[Stranger], Awaitable[None]],
) -> AsyncIterator[str]:
    """The address of a listener that treats its callers badly."""

    async def serve(stream: trio.SocketStream) -> None:
        with suppress(ConnectionEnded):  # At the end of a test the node may end first.
            await behave(Stranger(stream))

    async with trio.open_nursery() as nursery:
        listen = partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        listeners: Sequence[trio.SocketListener] = await nursery.start(listen)
        host, port = listeners[0].socket.getsockname()
        yield f"{host}:{port}"
        nursery.cancel_scope.cancel()
