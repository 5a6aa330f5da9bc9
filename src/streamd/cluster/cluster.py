"""A node's peers: founding, joining, the requests of nodes and the messages of the core."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Protocol

import structlog
import trio
from msgspec.structs import replace

from streamd.cluster.message_faults import message_fault
from streamd.cluster.outsiders import outsider_of
from streamd.cluster.request_kinds import RequestKind
from streamd.config.settings import ClusterConfig
from streamd.group.group import Group
from streamd.group.log_formats import LOG_FORMAT
from streamd.group.peers import Outsider
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.process.threads import RunBlocking
from streamd.raft.core import RaftViolation
from streamd.raft.membership import BOOTSTRAP_HARD_STATE, bootstrap_entry
from streamd.raft.messages import Configuration, Message
from streamd.storage.data_dir import DataDir
from streamd.storage.errors import StorageError
from streamd.storage.log_storage import LogStorage
from streamd.transport import Credentials, Hello, Limits, Network, PeerConnection, Transport
from streamd.transport import errors as transport_errors
from streamd.transport.hello import encode_hello, parse_hello

log = structlog.get_logger("streamd.cluster")

_JOIN_TIMEOUT_S = 5.0
_FORWARD_TIMEOUT_S = 15.0
_RETRY_S = 0.5
# How many nodes' last introductions are remembered.
_MAX_MET = 256
_CLUSTER_ID = re.compile(rb"[0-9A-Za-z-]{1,64}")
NO_CREDENTIALS = Credentials()
# A packet and a request must hold the largest body of a client, and what the log adds to it.
_OVERHEAD_BYTES = 1024 * 1024


class FormationError(Exception):
    """This node cannot found the cluster; the message says why and what to do."""


class Member(Protocol):
    """The part of this node that peers may use."""

    group: Group

    async def administer(self, payload: bytes) -> bytes: ...

    async def take_snapshot_step(self, payload: bytes) -> bytes: ...

    async def archive_for(self, payload: bytes) -> bytes: ...

    def answer_about_log_key(self, payload: bytes) -> bytes: ...

    def send_snapshots(self, members: Sequence[int]) -> None: ...


class Cluster:
    """Handles a node's transport, and sends for its group.

    Until a `member` is set, Raft messages are dropped: their senders repeat them.
    """

    def __init__(
        self,
        config: ClusterConfig,
        data_dir: DataDir,
        log_store: LogStorage,
        *,
        client_address: str,
        max_body_bytes: int,
        network: Network,
        random: Random,
        run_blocking: RunBlocking,
        credentials: Credentials = NO_CREDENTIALS,
        group_id: int = 0,
    ) -> None:
        assert config.name is not None
        self._group_id = group_id
        self._config = config
        self._name = config.name
        self._data_dir = data_dir
        self._log_store = log_store
        self._client_address = client_address
        self._run_blocking = run_blocking
        self._joining = trio.Lock()
        self._met: dict[int, Hello] = {}
        self._someone_new = trio.lowlevel.ParkingLot()
        self._configuration = Configuration()
        self._leaving: dict[int, str] = {}
        self._leave_at = 0.0
        self._farewell_s = 2 * config.election_timeout_ms / 1000
        self.refused_requests = 0
        self.member: Member | None = None
        # Carries out what a peer asks of this node as the leader, or about itself.
        self.operate: Callable[[bytes], Awaitable[bytes]] | None = None
        # Carries out what the leader asks this node to do on its own host.
        self.act_on_host: Callable[[bytes], Awaitable[bytes]] | None = None
        defaults = Limits()
        packet_bytes = max(defaults.max_packet_bytes, max_body_bytes + _OVERHEAD_BYTES)
        self.transport = Transport(
            self,
            network=network,
            random=random,
            limits=replace(
                defaults,
                max_packet_bytes=packet_bytes,
                max_request_bytes=max(defaults.max_request_bytes, packet_bytes),
            ),
            fatal=(StorageError, RaftViolation),
            credentials=credentials,
        )
        for route in config.other_routes:
            self.transport.add_route(route)

    @property
    def node_id(self) -> int:
        return self._data_dir.identity.node_id

    @property
    def may_found(self) -> bool:
        """Whether this node should found the cluster, and has not yet."""
        return self._is_new and self.node_id == self._config.bootstrap_node_id

    @property
    def _is_new(self) -> bool:
        """Whether this node never had data. An empty log does not prove that: salvage may have cut
        a damaged one, whose entries this node must receive again before it votes."""
        kept = self._log_store
        if kept.last_index > 0 or kept.lost_below is not None:
            return False
        # The vote is written first, so a crash may have left only the vote of the first entry.
        return kept.hard_state.term <= BOOTSTRAP_HARD_STATE.term

    # -- founding -----------------------------------------------------------------------------

    async def found(self) -> None:
        """Found the cluster once all routes lead to nodes that are ready for it.

        Every node first remembers the cluster's id, durably: a member that later appears without
        one has lost its data. Only then does the log get its first entry. Raises `FormationError`
        when one of the nodes already belongs to a cluster.
        """
        routes = self._config.other_routes
        log.info("founding the cluster", name=self._name, waiting_for=routes)
        while len(self._founders()) < len(routes) or not await self._all_joined():
            with trio.move_on_after(_RETRY_S):
                await self._someone_new.park()
        hellos = [self.hello(), *self._founders()]
        addresses = tuple(
            (hello.node_id, hello.peer_address, hello.client_address)
            for hello in sorted(hellos, key=lambda hello: hello.node_id)
        )
        entry = bootstrap_entry([hello.node_id for hello in hellos], addresses)
        await self._run_blocking(self._log_store.append, [entry], BOOTSTRAP_HARD_STATE)
        log.info("founded the cluster", name=self._name, voters=[a[0] for a in addresses])

    def _founders(self) -> list[Hello]:
        """The connected nodes at the configured routes. Other nodes that have dialled this one do
        not found the cluster."""
        routes, connections = set(self._config.other_routes), self.transport.peers()
        return [
            hello
            for node_id, hello in self._met.items()
            if node_id in connections and connections[node_id].address in routes
        ]

    async def _all_joined(self) -> bool:
        cluster_id = self._data_dir.identity.cluster_id
        for hello in self._founders():
            if not hello.log_is_empty or hello.cluster_id not in ("", cluster_id):
                raise FormationError(
                    f"node {hello.node_id} at {hello.peer_address} already has data of a cluster, "
                    f"but this node, which would found it, has none. If node {self.node_id} lost "
                    "its disk, remove it from that cluster and add it under an id never used "
                    "before"
                )
        try:
            for hello in self._founders():
                await self.invite(hello.node_id)
        except (transport_errors.NotSent, transport_errors.RequestOutcomeUnknown):
            return False
        return True

    async def invite(self, node_id: int) -> Hello:
        """Ask a node to remember this cluster's id, which it may know already. Returns the node's
        current introduction.

        Raises `NotSent`, `RequestOutcomeUnknown` or `RequestRefused` of the transport.
        """
        cluster_id = self._data_dir.identity.cluster_id.encode()
        kind = RequestKind.JOIN
        answer = await self.transport.request(
            node_id, self._group_id, kind, cluster_id, timeout_s=_JOIN_TIMEOUT_S
        )
        try:
            return parse_hello(answer)
        except transport_errors.ProtocolError as error:
            raise transport_errors.RequestOutcomeUnknown(str(error)) from error

    async def meet(self, address: str, timeout_s: float) -> Hello | None:
        """Dial an address until the node there can be asked; None if that takes too long."""
        self.transport.add_route(address)
        try:
            with trio.move_on_after(timeout_s):
                while (hello := self._at(address)) is None:
                    with trio.move_on_after(_RETRY_S):
                        await self._someone_new.park()
                return hello
            return None
        finally:
            # A node that is being added is a member soon; others must not be dialled for ever.
            if address not in self._config.other_routes:
                self.transport.release_route(address)

    def _at(self, address: str) -> Hello | None:
        """The node at an address, if there is a connection to it."""
        connections = self.transport.peers()
        for node_id, hello in self._met.items():
            connection = connections.get(node_id)
            if hello.peer_address == address and connection is not None and connection.connected:
                return hello
        return None

    # -- the transport's handler --------------------------------------------------------------

    def hello(self) -> Hello:
        return Hello(
            cluster_name=self._name,
            cluster_id=self._data_dir.identity.cluster_id,
            node_id=self.node_id,
            peer_address=self._config.address,
            client_address=self._client_address,
            log_is_empty=self._is_new,
            log_format=LOG_FORMAT,
        )

    def check(self, peer: Hello) -> None:
        """Raises `Refusal` for a member that returns without its data."""
        if peer.node_id in self._configuration.members() and not peer.cluster_id:
            raise transport_errors.Refusal(
                "DATA_LOST",
                f"node {peer.node_id} is a member of cluster {self._name}, but its data is gone: "
                "remove it from the cluster and add it under an id never used before",
            )

    def on_peer(self, peer: Hello) -> None:
        self._met.pop(peer.node_id, None)
        if len(self._met) >= _MAX_MET:
            members = self._configuration.members()
            del self._met[next(one for one in self._met if one not in members)]
        self._met[peer.node_id] = peer
        # A node answers over the connection that it dialled itself.
        self.transport.add_announced_route(peer.peer_address)
        self._someone_new.unpark_all()

    def on_messages(self, peer_id: int, group_id: int, messages: list[Message]) -> None:
        if group_id != self._group_id:
            raise transport_errors.ProtocolError(f"unknown group {group_id}")
        for message in messages:
            wrong = message_fault(message)
            if wrong is not None:
                raise transport_errors.ProtocolError(f"it sent an invalid message: {wrong}")
        if self.member is not None:
            self.member.group.step(messages)

    async def on_request(self, peer_id: int, group_id: int, kind: int, payload: bytes) -> bytes:
        """Answer a peer. Raises `RequestRefused`, `RequestOutcomeUnknown` of the transport."""
        if group_id != self._group_id:
            self.refused_requests += 1
            raise transport_errors.RequestRefused("UNKNOWN_GROUP", f"unknown group {group_id}")
        if kind == RequestKind.JOIN:
            return await self._join(payload)
        if self.member is None:
            raise transport_errors.RequestRefused("NOT_READY", "the node is starting")
        self._check_member(peer_id, self.member)
        try:
            match kind:
                case RequestKind.FORWARD:
                    return await self.member.group.admission.propose_forwarded(payload)
                case RequestKind.PACKAGE:
                    return await self.member.group.admission.propose_package(peer_id, payload)
                case RequestKind.OPEN_SESSION:
                    return await self.member.group.admission.open_session(peer_id, payload)
                case RequestKind.ADMIN:
                    return await self.member.administer(payload)
                case RequestKind.SNAPSHOT:
                    return await self.member.take_snapshot_step(payload)
                case RequestKind.ARCHIVE:
                    return await self.member.archive_for(payload)
                case RequestKind.LOG_KEY:
                    return self.member.answer_about_log_key(payload)
                case RequestKind.OPERATE if self.operate is not None:
                    return await self.operate(payload)
                case RequestKind.HOST if self.act_on_host is not None:
                    self._check_leader(peer_id, self.member)
                    return await self.act_on_host(payload)
        except Unavailable as error:
            raise transport_errors.RequestRefused("UNAVAILABLE", str(error)) from error
        except OutcomeUnknown as error:
            raise transport_errors.RequestOutcomeUnknown(str(error)) from error
        raise transport_errors.RequestRefused("UNKNOWN_REQUEST", f"request kind {kind}")

    def _check_member(self, peer_id: int, member: Member) -> None:
        """Raises `RequestRefused` for a node that is not a member. The leader counts as one, even
        if this node lags and does not know the configuration yet."""
        members = self._configuration.members()
        if members and peer_id not in members and peer_id != member.group.view.leader_id:
            self.refused_requests += 1
            raise transport_errors.RequestRefused(
                "NOT_A_MEMBER", f"node {peer_id} is not a member of the cluster"
            )

    def _check_leader(self, peer_id: int, member: Member) -> None:
        """Raises `RequestRefused` for a node other than the leader, if this node knows one."""
        leader_id = member.group.view.leader_id
        if leader_id not in (0, peer_id):
            self.refused_requests += 1
            raise transport_errors.RequestRefused(
                "NOT_THE_LEADER", f"node {peer_id} is not the leader, node {leader_id} is"
            )

    async def _join(self, payload: bytes) -> bytes:
        if _CLUSTER_ID.fullmatch(payload) is None:
            raise transport_errors.RequestRefused(
                "CLUSTER_ID", "the request does not name a cluster id"
            )
        cluster_id = payload.decode()
        async with self._joining:
            if self._data_dir.identity.cluster_id not in ("", cluster_id):
                raise transport_errors.RequestRefused(
                    "CLUSTER_ID", "the node is a member of another cluster"
                )
            await self._run_blocking(self._data_dir.join, cluster_id)
        return encode_hello(self.hello())

    # -- the group's peers --------------------------------------------------------------------

    def send(self, messages: Sequence[Message]) -> None:
        self._disconnect_departed()
        by_peer: dict[int, list[Message]] = {}
        for message in messages:
            by_peer.setdefault(message.to, []).append(message)
        for peer_id, theirs in by_peer.items():
            self.transport.send(peer_id, self._group_id, theirs)

    async def forward(self, leader_id: int, payload: bytes) -> bytes:
        return await self._ask(leader_id, RequestKind.FORWARD, payload)

    async def send_package(self, leader_id: int, payload: bytes) -> bytes:
        return await self._ask(leader_id, RequestKind.PACKAGE, payload)

    async def open_session(self, leader_id: int, payload: bytes) -> bytes:
        return await self._ask(leader_id, RequestKind.OPEN_SESSION, payload)

    def log_format_of(self, node_id: int) -> int | None:
        hello = self._met.get(node_id)
        return None if hello is None else hello.log_format

    def incarnation_of(self, node_id: int) -> int:
        """The number that a node's process drew, as of its last connection to this one; 0 until it
        has connected."""
        if node_id == self.node_id:
            return self.transport.instance
        hello = self._met.get(node_id)
        return 0 if hello is None else hello.instance

    async def ask_to_administer(self, leader_id: int, payload: bytes) -> bytes:
        """Send the leader an admin command. Raises as `forward` does."""
        return await self._ask(leader_id, RequestKind.ADMIN, payload)

    async def ask_snapshot(self, peer_id: int, payload: bytes) -> bytes:
        """Send a follower a step of a Raft snapshot. Raises as `forward` does."""
        return await self._ask(peer_id, RequestKind.SNAPSHOT, payload)

    async def ask_to_archive(self, peer_id: int, payload: bytes) -> bytes:
        """Ask a member to archive entries that this node lacks. Raises as `forward` does."""
        return await self._ask(peer_id, RequestKind.ARCHIVE, payload)

    async def ask_about_log_key(self, peer_id: int, payload: bytes) -> bytes:
        """Ask a member for its key, or to vouch for this node's. Raises as `forward` does."""
        return await self._ask(peer_id, RequestKind.LOG_KEY, payload)

    async def ask_to_operate(self, member: int, payload: bytes) -> bytes | None:
        """Send the leader an operation, or a member the name of a report; None if its release does
        not know that. Raises as `forward` does."""
        try:
            return await self._ask(member, RequestKind.OPERATE, payload)
        except Unavailable as error:
            refused = error.__cause__
            if (
                isinstance(refused, transport_errors.RequestRefused)
                and refused.code == "UNKNOWN_REQUEST"
            ):
                return None
            raise

    async def ask_about_host(self, node_id: int, payload: bytes, *, timeout_s: float) -> bytes:
        """Ask a node to do something on its own host. Raises as `forward` does."""
        return await self._ask(node_id, RequestKind.HOST, payload, timeout_s)

    async def _ask(
        self,
        peer_id: int,
        kind: RequestKind,
        payload: bytes,
        timeout_s: float = _FORWARD_TIMEOUT_S,
    ) -> bytes:
        try:
            return await self.transport.request(
                peer_id, self._group_id, kind, payload, timeout_s=timeout_s
            )
        except (transport_errors.NotSent, transport_errors.RequestRefused) as error:
            raise Unavailable(str(error)) from error
        except transport_errors.RequestOutcomeUnknown as error:
            raise OutcomeUnknown(f"node {peer_id}: {error}") from error

    def configured(self, configuration: Configuration) -> None:
        self._tell_if_removed(configuration)
        before, self._configuration = self._configuration, configuration
        if not configuration.members():
            return
        # Stay connected to nodes that leave: the core tells them of their removal for a while.
        members = configuration.members()
        gone = {i: peer for i, peer, _ in before.addresses if i not in members}
        if gone:
            self._leaving, self._leave_at = gone, trio.current_time() + self._farewell_s
        self._dial_members()

    def _dial_members(self) -> None:
        members = {node_id: peer for node_id, peer, _ in self._configuration.addresses}
        self.transport.set_peers({**self._leaving, **members})

    def _disconnect_departed(self) -> None:
        if self._leaving and trio.current_time() >= self._leave_at:
            self._leaving = {}
            self._dial_members()

    def _tell_if_removed(self, configuration: Configuration) -> None:
        members = configuration.members()
        if members and self.node_id in self._configuration.members() - members:
            log.warning(
                "this node has been removed from the cluster: stop it, and do not use its id again",
                node_id=self.node_id,
                members=sorted(members),
            )

    def outsider(self) -> Outsider | None:
        """Why this node is not a member of its cluster; None if it is one."""
        refusals = self.transport.refusals()
        return outsider_of(self.node_id, self._config.address, self._configuration, refusals)

    def snapshots_wanted(self, members: Sequence[int]) -> None:
        assert self.member is not None
        self.member.send_snapshots(members)

    def connections(self) -> Mapping[int, PeerConnection]:
        """The connection to each peer, by node id."""
        return self.transport.peers()

    def is_dialled_by(self, node_id: int) -> bool:
        """Whether a node has a connection to this one that it dialled itself."""
        return self.transport.is_dialled_by(node_id)

    def peer_address_of(self, node_id: int) -> str | None:
        """The address at which peers reach a node: a member, or one that has connected."""
        for member_id, peer_address, _ in self._configuration.addresses:
            if member_id == node_id:
                return peer_address
        hello = self._met.get(node_id)
        return None if hello is None else hello.peer_address

    def client_address_of(self, node_id: int) -> str | None:
        """The address at which clients reach a member."""
        for member_id, _, client_address in self._configuration.addresses:
            if member_id == node_id:
                return client_address
        return None
