"""The transport of a node: which peers it dials and accepts, and what goes between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import structlog
import trio

from streamd.process.addresses import client_of
from streamd.raft.messages import Message
from streamd.transport.connection import ConnectionContext
from streamd.transport.credentials import Credentials
from streamd.transport.errors import NotSent, Refusal, RefusalCode
from streamd.transport.hello import Hello
from streamd.transport.interface import Handler, Limits, Network, PeerConnection
from streamd.transport.links import Link, Superfluous
from streamd.transport.sessions import Acceptor

log = structlog.get_logger("streamd.transport")

_DEFAULTS = Limits()
_NO_CREDENTIALS = Credentials()


class Transport:
    """Connections between this node and its peers, maintained while `run` runs.

    Every node dials every peer. Raft messages and requests go out on the connection that a node has
    dialled, and replies come back on it; so two nodes share two connections. Exceptions of the
    handler that are `fatal`, and everything but `Refusal` that its synchronous methods raise, end
    `run`.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        network: Network,
        random: Random,
        limits: Limits = _DEFAULTS,
        fatal: tuple[type[Exception], ...] = (),
        credentials: Credentials = _NO_CREDENTIALS,
    ) -> None:
        self._context = ConnectionContext(handler, network, random, limits, fatal, credentials)
        self._limits = limits
        self._acceptor = Acceptor(
            self._context,
            on_begin=self._session_began,
            on_end=self._session_ended,
            is_expected=self._is_expected,
            is_member=self._is_member_at,
            answers_earlier=self._answers_earlier_at,
        )
        self._peers: dict[int, Link] = {}
        self._routes: dict[str, Link] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen, accept and dial until cancelled. Started once it listens.

        Raises `OSError` when it cannot listen, and what the handler raises (see the class).
        """
        listeners = await self._context.network.listen()
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._acceptor.run, listener, nursery)
            self._nursery = nursery
            for link in dict.fromkeys((*self._peers.values(), *self._routes.values())):
                nursery.start_soon(self._run_link, link)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    # -- what to dial -----------------------------------------------------------------------------

    def set_peers(self, addresses: Mapping[int, str]) -> None:
        """Dial exactly these nodes, by id, besides the routes. This node's own id is ignored.

        A route that leads to one of them becomes its link, and ends with it.
        """
        own_id = self._context.handler.hello().node_id
        wanted = {peer_id: address for peer_id, address in addresses.items() if peer_id != own_id}
        for peer_id, link in list(self._peers.items()):
            moved = peer_id in wanted and wanted[peer_id] != link.address
            if moved or (link.pinned and peer_id not in wanted):
                self._stop(link)
        for peer_id, address in wanted.items():
            if peer_id not in self._peers:
                self._peers[peer_id] = self._route_to(peer_id, address) or self._dial(
                    address, peer_id
                )
            link = self._peers[peer_id]
            if not link.pinned:
                link.pin(peer_id)
                self._routes.pop(link.address, None)

    def _route_to(self, peer_id: int, address: str) -> Link | None:
        """The route to an address, if its node is not known yet."""
        route = self._routes.get(address)
        return route if route is not None and route.node_id in (0, peer_id) else None

    def add_route(self, address: str) -> None:
        """Dial an address whose node is not known, until `release_route`. After the handshake the
        node can be sent to like a peer. Beyond `max_routes` an announced route gives way; if there
        is none, nothing is added."""
        if self._is_pinned(address):
            return
        if address not in self._routes:
            if len(self._routes) >= self._limits.max_routes and not self._dismiss_announced():
                log.warning("too many routes; one was not added", address=address)
                return
            self._routes[address] = self._dial(address, 0)
        self._routes[address].kept = True
        self._routes[address].required_host = None

    def add_announced_route(self, address: str) -> None:
        """Dial the address at which a connected peer says it can be dialled, as long as the peer is
        connected or answers. Does nothing for an address already dialled, or beyond `max_routes`.

        A peer that has not proved who it is may only name an address of the host from which it
        dials: it must not make this node dial arbitrary hosts.
        """
        if self._is_pinned(address) or address in self._routes:
            return
        if len(self._routes) >= self._limits.max_routes:
            log.warning("too many routes; one was not added", address=address)
            return
        link = self._routes[address] = self._make_link(address, 0)
        if not self._context.credentials.proves:
            link.required_host = self._acceptor.host_that_announced(address)
        self._start(link)

    def release_route(self, address: str) -> None:
        """Treat the route as a merely announced one from now on."""
        route = self._routes.get(address)
        if route is not None:
            route.kept = False
            if not (route.connected or self._is_wanted(route)):
                self._stop(route)

    def _is_pinned(self, address: str) -> bool:
        return any(link.pinned and link.address == address for link in self._peers.values())

    def _is_wanted(self, link: Link) -> bool:
        """Whether to dial again where there is no connection."""
        return link.pinned or link.kept or self._acceptor.has_announced(link.address)

    def _dismiss_announced(self) -> bool:
        """End a route that the configuration has not asked for, if there is one; preferably one
        without a connection."""
        announced = [route for route in self._routes.values() if not route.kept]
        if announced:
            self._stop(min(announced, key=lambda route: route.connected))
        return bool(announced)

    def _dial(self, address: str, peer_id: int) -> Link:
        link = self._make_link(address, peer_id)
        self._start(link)
        return link

    def _make_link(self, address: str, peer_id: int) -> Link:
        return Link(address, peer_id, self._context, self._identify, self._is_wanted)

    def _start(self, link: Link) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self._run_link, link)

    async def _run_link(self, link: Link) -> None:
        try:
            await link.run()
        finally:
            self._drop(link)

    def _stop(self, link: Link) -> None:
        link.stop()
        self._drop(link)

    def _drop(self, link: Link) -> None:
        if self._routes.get(link.address) is link:
            del self._routes[link.address]
        if self._peers.get(link.node_id) is link:
            del self._peers[link.node_id]
            self._forget_unless_known(link.node_id)

    def _identify(self, link: Link, peer: Hello) -> None:
        """A link has learnt which node is at its address. Raises `Superfluous`, `Refusal`."""
        if link.pinned:
            if peer.node_id != link.node_id:
                raise Refusal(
                    RefusalCode.NOT_EXPECTED,
                    f"node {peer.node_id} answers at {link.address}, where node {link.node_id} was "
                    "expected",
                )
            return
        if self._peers.get(peer.node_id, link) is not link:
            raise Superfluous
        if self._peers.get(link.node_id) is link:
            del self._peers[link.node_id]
        link.node_id = peer.node_id
        self._peers[peer.node_id] = link

    # -- incoming connections ---------------------------------------------------------------------

    def _is_expected(self, peer: Hello) -> bool:
        """Whether it is one of the nodes that `set_peers` named."""
        link = self._peers.get(peer.node_id)
        return link is not None and link.pinned

    def _is_member_at(self, client: str) -> bool:
        """Whether one of the nodes that are dialled on purpose is at an address."""
        return any(link.is_at(client) for link in self._dialled_on_purpose())

    def _answers_earlier_at(self, client: str) -> bool:
        """Whether one of them is, and is not known to prove itself first."""
        return any(
            link.is_at(client) and not link.proves_first for link in self._dialled_on_purpose()
        )

    def _dialled_on_purpose(self) -> list[Link]:
        """Links to members, and to where the configuration or an operator expects a node."""
        links = (*self._peers.values(), *self._routes.values())
        return [link for link in links if link.pinned or link.kept]

    def _session_began(self, peer: Hello) -> None:
        """Dial a peer that has dialled this node: it can probably be reached."""
        if self._is_expected(peer) and self._context.credentials.proves:
            member = self._peers[peer.node_id]
            member.proves_first = peer.proves_first
            host = self._acceptor.host_of(peer.node_id)
            member.dials_from = None if host is None else client_of(host)
        for link in (self._peers.get(peer.node_id), self._routes.get(peer.peer_address)):
            if link is not None:
                link.kick()

    def _session_ended(self, peer_id: int) -> None:
        self._forget_unless_known(peer_id)

    def _forget_unless_known(self, peer_id: int) -> None:
        if peer_id not in self._peers and not self._acceptor.has_session(peer_id):
            self._context.forget(peer_id)

    def refusals(self) -> list[Refusal]:
        """The refusals of nodes that this one dialled, where there has been no connection since."""
        links = {*self._peers.values(), *self._routes.values()}
        return [link.refusal for link in links if link.refusal is not None]

    @property
    def refused_connections(self) -> int:
        """How many incoming connections were refused, or ended for what they sent."""
        return self._acceptor.refused

    # -- traffic ----------------------------------------------------------------------------------

    def send(self, peer_id: int, group_id: int, messages: Sequence[Message]) -> None:
        """Send a group's Raft messages to a peer, if it is known; never waits.

        Anything but an append is urgent and overtakes appends. What waits is bounded: the oldest
        messages give way, and all of them when the connection or an attempt to make one fails.
        """
        link = self._peers.get(peer_id)
        if link is not None:
            # The peer would end the connection over a message for another node.
            assert all(message.to == peer_id for message in messages), (peer_id, messages)
            link.send(group_id, messages)

    async def request(
        self, peer_id: int, group_id: int, kind: int, payload: bytes, *, timeout_s: float
    ) -> bytes:
        """Ask a group at a peer (`kind`: 0 to 65535) and return its answer.

        Waits for its turn while `max_requests` are under way. Raises `NotSent` (also at once when
        there is no connection), `RequestOutcomeUnknown` or `RequestRefused`.
        """
        link = self._peers.get(peer_id)
        if link is None:
            raise NotSent(f"node {peer_id} is not known")
        return await link.ask(group_id, kind, payload, timeout_s)

    @property
    def instance(self) -> int:
        """The number of this process in its introductions."""
        return self._context.instance

    def peers(self) -> dict[int, PeerConnection]:
        """The state of the connection to each dialled peer whose id is known."""
        return {peer_id: link.status() for peer_id, link in sorted(self._peers.items())}

    def is_dialled_by(self, peer_id: int) -> bool:
        """Whether the peer has a connection to this node that it dialled itself."""
        return self._acceptor.has_session(peer_id)
