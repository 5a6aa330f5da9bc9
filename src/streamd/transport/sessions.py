"""The accepting side: connections that peers have dialled."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import structlog
import trio

from streamd.process.addresses import client_of
from streamd.transport.connection import ConnectionContext, close, run_until_ended
from streamd.transport.credentials import ACCEPTOR, DIALLER, FIRST, SECOND
from streamd.transport.errors import ConnectionEnded, ProtocolError, Refusal, RefusalCode
from streamd.transport.hello import (
    MAX_HELLO_BYTES,
    Hello,
    check,
    check_successor,
    encode_hello,
    encode_refusal,
    parse_hello,
)
from streamd.transport.interface import Limits
from streamd.transport.network import remote_host
from streamd.transport.outbox import Outbox
from streamd.transport.requests import Answering
from streamd.transport.wire import FrameKind, Unfinished, Wire, frame, parse_messages, parse_request

log = structlog.get_logger("streamd.transport")

_ACCEPT_BACKOFF_S = 0.1
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Handshakes:
    """Handshakes under way. `is_member` returns whether a member of the cluster is at an address,
    as `client_of` gives it.

    A connection that has proved nothing costs a descriptor and a task, so there is a limit. First
    come, first served would let silent strangers keep everyone out: here the oldest handshake gives
    way to a newcomer. An honest one takes milliseconds, so only a flood of thousands a second ends
    it before it is done. And strangers never take the places of members: those are counted by
    themselves.
    """

    def __init__(self, limits: Limits, is_member: Callable[[str], bool]) -> None:
        self._limits = limits
        self._is_member = is_member
        # In the order in which they began, each with its client, and whether a member is there.
        self._under_way: dict[trio.CancelScope, tuple[str | None, bool]] = {}

    @contextmanager
    def one(self, host: str | None) -> Iterator[trio.CancelScope]:
        """A handshake with a host, or with an end in memory that has none. The scope is cancelled
        when it must give way."""
        client = None if host is None else client_of(host)
        is_member = client is not None and self._is_member(client)
        limits = self._limits
        each = limits.max_handshakes if client is None else limits.max_handshakes_per_host
        self._make_room(each, lambda other, _: other == client)
        if not is_member:
            self._make_room(limits.max_handshakes, lambda _, of_member: not of_member)
        scope = trio.CancelScope()
        self._under_way[scope] = client, is_member
        try:
            with scope:
                yield scope
        finally:
            self._under_way.pop(scope, None)

    def _make_room(self, most: int, counts: Callable[[str | None, bool], bool]) -> None:
        """End the oldest of those that count, if there are as many as there may be."""
        found = [scope for scope, (client, of) in self._under_way.items() if counts(client, of)]
        if len(found) >= most:
            del self._under_way[found[0]]
            found[0].cancel()


class PeerSession:
    """A peer's connection after its handshake: the peer sends, this side only replies."""

    def __init__(
        self, context: ConnectionContext, own_id: int, peer: Hello, host: str | None
    ) -> None:
        self.peer = peer
        self.host = host
        self._own_id = own_id
        self._handler = context.handler
        self._release = context.release
        self._outbox = Outbox(context.limits)
        self._answering = Answering(
            self._handler, peer.node_id, self._outbox, context.limits, context.fatal
        )
        self._scope = trio.CancelScope()

    def stop(self) -> None:
        self._scope.cancel()

    async def run(self, wire: Wire) -> str:
        """Serve until the connection ends. Returns why."""
        self._outbox.begin_connection(wire)
        with self._scope:
            return await run_until_ended(
                partial(self._read, wire), lambda _: self._write(wire), lambda _: wire.watch()
            )
        return "a newer connection of the peer replaced it"

    async def _read(self, wire: Wire, nursery: trio.Nursery) -> None:
        await wire.read_packets(partial(self._take, nursery))

    def _take(self, nursery: trio.Nursery, kind: int, payload: bytes) -> None:
        if kind == FrameKind.MESSAGES:
            self._take_messages(payload)
        elif kind == FrameKind.REQUEST:
            self._answering.on_request(parse_request(payload), nursery)
        elif kind == FrameKind.PING:
            self._outbox.put_control(FrameKind.PONG, self._release)
        else:
            raise ProtocolError(f"it sent a frame of kind {kind} on its own connection")

    def _take_messages(self, payload: bytes) -> None:
        group_id, messages = parse_messages(payload)
        for message in messages:
            if message.sender != self.peer.node_id:
                raise ProtocolError("it sent a message with another node's id")
            if message.to != self._own_id:
                raise ProtocolError(f"it sent a message for node {message.to}")
        self._handler.on_messages(self.peer.node_id, group_id, messages)

    async def _write(self, wire: Wire) -> None:
        while True:
            await self._outbox.write(wire)
            await self._outbox.wait()


class Acceptor:
    """All incoming connections: at most one session for each node id.

    A node that `is_expected` always has a place, whatever the number of others.
    """

    def __init__(
        self,
        context: ConnectionContext,
        *,
        on_begin: Callable[[Hello], None],
        on_end: Callable[[int], None],
        is_expected: Callable[[Hello], bool],
        is_member: Callable[[str], bool],
        answers_earlier: Callable[[str], bool],
    ) -> None:
        """`is_member` returns whether a member is at an address (`client_of`), `answers_earlier`
        whether one is that may run a release in which the acceptor proves itself first."""
        self._context = context
        self._limits = context.limits
        self._on_begin = on_begin
        self._on_end = on_end
        self._is_expected = is_expected
        self._handshakes = Handshakes(self._limits, is_member)
        self._answers_earlier = answers_earlier
        self._unfinished = Unfinished(self._limits.max_unfinished_bytes)
        self._sessions: dict[int, PeerSession] = {}
        self._complaint: tuple[str, dict[str, object]] | None = None
        self.refused = 0

    def has_session(self, peer_id: int) -> bool:
        return peer_id in self._sessions

    def host_of(self, peer_id: int) -> str | None:
        """The host from which a node's connection came, if it has one."""
        session = self._sessions.get(peer_id)
        return None if session is None else session.host

    def has_announced(self, address: str) -> bool:
        """Whether a connected node can be dialled at an address, or says so."""
        return any(session.peer.peer_address == address for session in self._sessions.values())

    def host_that_announced(self, address: str) -> str | None:
        """The host from which the node dials that says it can be dialled at an address; None if
        unknown."""
        hosts = (s.host for s in self._sessions.values() if s.peer.peer_address == address)
        return next(hosts, None)

    async def run(
        self, listener: trio.abc.Listener[trio.abc.Stream], nursery: trio.Nursery
    ) -> None:
        """Accept connections until cancelled; without descriptors, wait until some are freed."""
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    if error.errno not in _OUT_OF_DESCRIPTORS:
                        raise
                    log.warning("accept failed", error=error.strerror)
                    await trio.sleep(_ACCEPT_BACKOFF_S)
                    continue
                nursery.start_soon(self._serve, stream)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        host = remote_host(stream)
        try:
            await self._serve_wire(Wire(stream, self._limits), stream, host)
        finally:
            await close(stream)

    async def _serve_wire(self, wire: Wire, stream: trio.abc.Stream, host: str | None) -> None:
        session = None
        try:
            with self._handshakes.one(host) as scope:
                session = await self._shake_hands(wire, stream, host)
        except ConnectionEnded as ended:
            self._complain("a connection without a handshake ended", reason=str(ended))
            return
        if session is not None:
            await self._run_session(session, wire)
        elif scope.cancelled_caught:
            self._complain("too many handshakes at once; the oldest was closed")

    async def _run_session(self, session: PeerSession, wire: Wire) -> None:
        peer = session.peer
        self._context.count(peer.node_id, wire)
        if not self._is_expected(peer):
            wire.unfinished = self._unfinished
        log.info("peer accepted", node_id=peer.node_id, address=peer.peer_address)
        try:
            self._context.handler.on_peer(peer)
            self._on_begin(peer)
            reason = await session.run(wire)
            log.info("a peer's connection ended", node_id=peer.node_id, reason=reason)
        finally:
            wire.forget_parts()
            self._end(session)

    def _end(self, session: PeerSession) -> None:
        if self._sessions.get(session.peer.node_id) is session:
            del self._sessions[session.peer.node_id]
            self._on_end(session.peer.node_id)

    async def _shake_hands(
        self, wire: Wire, stream: trio.abc.Stream, host: str | None
    ) -> PeerSession | None:
        """The session, registered for its node, or None if the peer was refused.

        Raises `ConnectionEnded`.
        """
        with trio.move_on_after(self._limits.handshake_timeout_s):
            kind, payload = await wire.read_frame(MAX_HELLO_BYTES)
            if kind != FrameKind.HELLO:
                raise ProtocolError("its first frame was not a handshake")
            peer = parse_hello(payload)
            try:
                return await self._admit(wire, stream, host, peer, payload)
            except Refusal as refusal:
                self._complain("peer refused", node_id=peer.node_id, reason=str(refusal))
                await wire.write(frame(FrameKind.REFUSED, encode_refusal(refusal)))
                return None
        raise ConnectionEnded(f"no handshake within {self._limits.handshake_timeout_s:g} s")

    async def _admit(
        self, wire: Wire, stream: trio.abc.Stream, host: str | None, peer: Hello, hello: bytes
    ) -> PeerSession:
        """The session, registered for its node. Refusals sent before the node's proof reveal
        nothing about the cluster. Raises `Refusal`, `ConnectionEnded`."""
        credentials = self._context.credentials
        credentials.check_certificate(stream, peer)
        own = self._context.hello()
        sent = b""
        if not credentials.asks_proof(peer):
            self._check(own, peer)
        elif peer.proves_first:
            challenge = credentials.nonce()
            await wire.write(frame(FrameKind.CHALLENGE, challenge))
            credentials.check_proof(peer, await self._proof(wire), FIRST, hello, challenge)
            self._check(own, peer)
            proof = credentials.proof(SECOND, hello, challenge + encode_hello(own))
            sent = frame(FrameKind.PROOF, proof)
        else:
            await self._prove_to_earlier(wire, host, own, peer, hello)
            return self._install(PeerSession(self._context, own.node_id, peer, host))
        session = self._install(PeerSession(self._context, own.node_id, peer, host))
        try:
            await wire.write(frame(FrameKind.WELCOME, encode_hello(own)) + sent)
        except BaseException:
            self._end(session)
            raise
        return session

    async def _prove_to_earlier(
        self, wire: Wire, host: str | None, own: Hello, peer: Hello, hello: bytes
    ) -> None:
        """Exchange proofs with a node of 0.1.0, which expects the acceptor's first. Only where a
        member may be one: it gives a stranger something to guess the secret by. Raises `Refusal`,
        `ConnectionEnded`."""
        credentials = self._context.credentials
        may_answer = host is None or self._answers_earlier(client_of(host))
        if not (may_answer or credentials.optional):
            raise Refusal(
                RefusalCode.NOT_PROVED,
                f"node {peer.node_id} runs a release that does not prove itself first, and no "
                "member is known to do so there: run the release of the other nodes",
            )
        self._check(own, peer)
        welcome = encode_hello(own)
        proof = credentials.proof(ACCEPTOR, hello, welcome)
        await wire.write(frame(FrameKind.WELCOME, welcome) + frame(FrameKind.PROOF, proof))
        credentials.check_proof(peer, await self._proof(wire), DIALLER, hello, welcome)
        # Others may have connected meanwhile.
        self._check(own, peer)

    async def _proof(self, wire: Wire) -> bytes:
        kind, given = await wire.read_frame(MAX_HELLO_BYTES)
        if kind != FrameKind.PROOF:
            raise ProtocolError("it does not prove that it knows the secret")
        return given

    def _complain(self, event: str, **fields: object) -> None:
        """Log what a caller does wrong, repetitions only once."""
        self.refused += 1
        if (event, fields) == self._complaint:
            log.debug(event, **fields)
        else:
            self._complaint = (event, fields)
            log.warning(event, **fields)

    def _check(self, own: Hello, peer: Hello) -> None:
        check(own, peer)
        current = self._sessions.get(peer.node_id)
        if current is not None:
            check_successor(current.peer, peer)
        elif len(self._sessions) >= self._limits.max_sessions and not self._is_expected(peer):
            raise Refusal(
                RefusalCode.TOO_MANY_CONNECTIONS,
                f"node {own.node_id} is connected to {len(self._sessions)} nodes already",
            )
        self._context.handler.check(peer)

    def _install(self, session: PeerSession) -> PeerSession:
        """Register a session for its node; this must happen before anything waits."""
        peer = session.peer
        earlier = self._sessions.get(peer.node_id)
        assert earlier is not session, "a session is installed once"
        self._sessions[peer.node_id] = session
        if earlier is not None:
            earlier.stop()
        return session
