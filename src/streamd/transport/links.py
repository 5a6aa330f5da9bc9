"""The dialling side: one connection to a peer, dialled again whenever it is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
import trio
from msgspec.structs import replace

from streamd.process.addresses import client_of
from streamd.raft.messages import Message
from streamd.transport.connection import ConnectionContext, close, run_until_ended
from streamd.transport.credentials import ACCEPTOR, DIALLER, FIRST, NONCE_BYTES, SECOND
from streamd.transport.errors import ConnectionEnded, ProtocolError, Refusal, RefusalCode
from streamd.transport.hello import (
    MAX_HELLO_BYTES,
    Hello,
    check,
    encode_hello,
    parse_hello,
    parse_refusal,
)
from streamd.transport.interface import PeerConnection, Resolver
from streamd.transport.network import leads_to, numeric_hosts
from streamd.transport.outbox import Outbox
from streamd.transport.requests import Asking
from streamd.transport.wire import FrameKind, Wire, describe, frame, parse_release, parse_reply

log = structlog.get_logger("streamd.transport")


class Superfluous(Exception):
    """A route leads where another link already leads, or back to this node."""


class Link:
    """A dialled peer: Raft messages and requests go out, replies come back.

    `node_id` is 0 until it is known. A *pinned* link belongs to a peer of known id; the others are
    routes, which may lead to any node; the configuration asked for those that are *kept*.
    `identify` is called at each handshake, and may raise `Superfluous` or `Refusal`; `is_wanted`
    says whether to dial again after a connection or an attempt has failed.
    """

    def __init__(
        self,
        address: str,
        node_id: int,
        context: ConnectionContext,
        identify: Callable[[Link, Hello], None],
        is_wanted: Callable[[Link], bool],
    ) -> None:
        self.address = address
        self.node_id = node_id
        self.pinned = node_id > 0
        self.kept = False
        # The only IP address that a peer without proof may make this node dial.
        self.required_host: str | None = None
        # Where the peer is, as handshakes are counted (`client_of`), and whence it last dialled.
        self._clients = frozenset(map(client_of, numeric_hosts(address)))
        self.dials_from: str | None = None
        # Whether the peer is known to run a release that proves itself before it is answered.
        self.proves_first = False
        self.connected = False
        self.last_error = ""
        # Why the peer refuses this node.
        self.refusal: Refusal | None = None
        self._release = ""
        self._context = context
        self._limits = context.limits
        self._identify = identify
        self._is_wanted = is_wanted
        self._outbox = Outbox(self._limits)
        self._asking = Asking(self._outbox, self._limits)
        self._backoff_s = self._limits.backoff_min_s
        self._logged = ""
        self._kick = trio.Event()
        self._scope = trio.CancelScope()

    def status(self) -> PeerConnection:
        traffic = self._context.traffic(self.node_id)
        return PeerConnection(
            connected=self.connected,
            address=self.address,
            sent_bytes=traffic.sent_bytes,
            received_bytes=traffic.received_bytes,
            dropped_messages=self._outbox.dropped_messages,
            last_error=self.last_error,
            release=self._release,
        )

    def send(self, group_id: int, messages: Sequence[Message]) -> None:
        self._outbox.put_messages(group_id, messages)

    async def ask(self, group_id: int, kind: int, payload: bytes, timeout_s: float) -> bytes:
        return await self._asking.ask(group_id, kind, payload, timeout_s)

    def pin(self, node_id: int) -> None:
        """Make a route the link of a node; a connected link stays connected."""
        self.node_id = node_id
        self.pinned = True
        self.required_host = None

    def is_at(self, client: str) -> bool:
        """Whether the peer is at a client's address, as far as known."""
        return client in self._clients or client == self.dials_from

    def kick(self) -> None:
        """The peer has just been heard: end the pause and dial now."""
        self._kick.set()

    def stop(self) -> None:
        self._scope.cancel()

    # -- its life ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Dial and speak, again and again, until stopped, superfluous or no longer wanted."""
        with self._scope:
            while True:
                try:
                    await self._dial()
                except Superfluous:
                    return
                except Refusal as refusal:
                    self._report(f"refused by this node: {refusal}")
                except ConnectionEnded as ended:
                    self._report(str(ended))
                self._outbox.drop_messages()
                if not self._is_wanted(self):
                    return
                await self._pause()

    async def _dial(self) -> None:
        """Always raises: `ConnectionEnded`, `Refusal` or `Superfluous`."""
        stream = await self._connect()
        try:
            wire = Wire(stream, self._limits)
            peer = await self._shake_hands(wire, stream)
            self._identify(self, peer)
            self._context.count(peer.node_id, wire)
            await self._speak(wire, peer)
        finally:
            await close(stream)

    async def _connect(self) -> trio.abc.Stream:
        with trio.move_on_after(self._limits.connect_timeout_s):
            await self._look_up()
            host = self.required_host
            if host is not None and not await leads_to(self.address, host):
                raise ConnectionEnded(f"a peer named the address {host}, but the node is not there")
            try:
                return await self._context.network.connect(self.address)
            except (OSError, trio.BrokenResourceError) as error:
                raise ConnectionEnded(describe(error)) from error
        raise ConnectionEnded(f"no connection within {self._limits.connect_timeout_s:g} s")

    async def _look_up(self) -> None:
        """Note where the peer is. What was found before stays if nothing is now."""
        network = self._context.network
        if isinstance(network, Resolver):
            hosts = await network.hosts_of(self.address)
            self._clients = frozenset(map(client_of, hosts)) or self._clients

    async def _shake_hands(self, wire: Wire, stream: trio.abc.Stream) -> Hello:
        with trio.move_on_after(self._limits.handshake_timeout_s):
            own = self._context.hello()
            if self.required_host is not None:
                # A stranger named the address: it must not get a proof to guess the secret by.
                own = replace(own, proves_first=False)
            hello = encode_hello(own)
            await wire.write(frame(FrameKind.HELLO, hello))
            kind, welcome = await wire.read_frame(MAX_HELLO_BYTES)
            challenge = None
            if kind == FrameKind.CHALLENGE and own.proves_first:
                challenge = await self._prove_first(wire, hello, welcome)
                kind, welcome = await wire.read_frame(MAX_HELLO_BYTES)
            peer = self._welcomed(own, kind, welcome)
            credentials = self._context.credentials
            credentials.check_certificate(stream, peer)
            if credentials.asks_proof(peer):
                kind, proof = await wire.read_frame(MAX_HELLO_BYTES)
                if kind != FrameKind.PROOF:
                    raise ProtocolError("it does not prove that it knows the secret")
                if challenge is not None:
                    credentials.check_proof(peer, proof, SECOND, hello, challenge + welcome)
                else:
                    credentials.check_proof(peer, proof, ACCEPTOR, hello, welcome)
                    own_proof = credentials.proof(DIALLER, hello, welcome)
                    await wire.write(frame(FrameKind.PROOF, own_proof))
            self.proves_first = peer.proves_first
            return peer
        raise ConnectionEnded(f"no handshake within {self._limits.handshake_timeout_s:g} s")

    async def _prove_first(self, wire: Wire, hello: bytes, challenge: bytes) -> bytes:
        """Answer a challenge, and return it. Raises `ConnectionEnded`."""
        if len(challenge) != NONCE_BYTES:
            raise ProtocolError("its challenge has the wrong length")
        proof = self._context.credentials.proof(FIRST, hello, challenge)
        await wire.write(frame(FrameKind.PROOF, proof))
        return challenge

    def _welcomed(self, own: Hello, kind: int, payload: bytes) -> Hello:
        """The peer that answered. Raises `ConnectionEnded`, `Refusal`, `Superfluous`."""
        if kind == FrameKind.REFUSED:
            refusal = parse_refusal(payload)
            if refusal.code == RefusalCode.SELF and not self.pinned:
                raise Superfluous
            self.refusal = refusal
            raise ConnectionEnded(f"refused by the peer: {refusal}")
        if kind != FrameKind.WELCOME:
            raise ProtocolError("its answer to the handshake is not a handshake")
        peer = parse_hello(payload)
        check(own, peer)
        self._context.handler.check(peer)
        return peer

    async def _speak(self, wire: Wire, peer: Hello) -> None:
        assert self.node_id == peer.node_id, "a link speaks to the node that it is for"
        began_at = trio.current_time()
        self.connected = True
        self.refusal = None
        self._release = ""
        self._logged = ""
        self._asking.begin()
        self._outbox.begin_connection(wire)
        reason = "this node ended the connection"
        log.info("peer connected", node_id=peer.node_id, address=self.address)
        try:
            self._context.handler.on_peer(peer)
            reason = await run_until_ended(
                lambda _: wire.read_packets(self._take),
                lambda _: self._write(wire),
                lambda _: wire.watch(),
            )
        finally:
            self.connected = False
            self._asking.end(reason)
            self._outbox.end_connection()
        if trio.current_time() - began_at >= self._limits.backoff_max_s:
            self._backoff_s = self._limits.backoff_min_s
        raise ConnectionEnded(reason)

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == FrameKind.REPLY:
            self._asking.on_reply(parse_reply(payload))
        elif kind == FrameKind.PONG:
            self._release = parse_release(payload)
        else:
            raise ProtocolError(f"it sent a frame of kind {kind} on a connection for replies")

    async def _write(self, wire: Wire) -> None:
        """Write what waits, and a PING in each interval so that both sides hear something."""
        ping_at = trio.current_time()
        while True:
            if trio.current_time() >= ping_at:
                self._outbox.put_control(FrameKind.PING)
                ping_at = trio.current_time() + self._limits.ping_interval_s
            await self._outbox.write(wire)
            with trio.move_on_at(ping_at):
                await self._outbox.wait()

    async def _pause(self) -> None:
        self._kick = trio.Event()
        with trio.move_on_after(self._backoff_s * (0.5 + self._context.random.random() / 2)):
            await self._kick.wait()
        self._backoff_s = min(self._backoff_s * 2, self._limits.backoff_max_s)

    def _report(self, reason: str) -> None:
        """Log a reason once, not for each failed attempt."""
        self.last_error = reason
        if reason != self._logged:
            self._logged = reason
            log.warning("no peer", address=self.address, node_id=self.node_id, reason=reason)
