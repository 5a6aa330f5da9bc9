"""The composition root: builds a node, with its peers and the service of its clients.

Only this module knows how the parts fit together. It gets the configuration and the open stores,
and an `Environment` with everything else that connects a node to the world: the clock, the
randomness, the threads, the network, the object store. `streamd serve` passes those of the real
machine; tests and the simulation pass their own, and run the same node.

The order matters, and `App.running` keeps it:

1. The object store is opened and tried, because a node that cannot read its old bytes must not
   start.
2. The transport listens, and the founder founds the cluster, because the founding writes the first
   log entry, from which the core learns who votes.
3. The node is built from what the log and the state store hold by then, and runs.

At the end the order is reversed: the node stores its state before the transport closes and before
the object store does. The stores belong to the caller, which closes them last.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any

import trio
from msgspec.structs import replace

from streamd import __version__
from streamd.audit_trail.sinks import FileSink, Sink
from streamd.audit_trail.stream_sink import StreamSink
from streamd.audit_trail.trail import AuditTrail
from streamd.auth import identity, tokens
from streamd.auth.certificates import ListedCertificates
from streamd.auth.identity import Identity
from streamd.backup.publishing import open_targets
from streamd.cluster.cluster import Cluster
from streamd.config.secret_files import read_secret
from streamd.config.settings import (
    ADMIN_CONNECTIONS,
    ClusterConfig,
    Config,
    ConfigError,
    ServerConfig,
)
from streamd.group.stores import Stores
from streamd.hosts.inspection.disks import DiskSpace, disk_space
from streamd.http.access.authority import Authority
from streamd.http.application import HttpApplication
from streamd.http.credentials.tls_files import TlsFiles
from streamd.http.door.front_door import FrontDoor
from streamd.http.http2.asgi import AsgiApplication
from streamd.http.http2.hypercorn_server import HypercornHttp2
from streamd.http.ops import call_asgi, create_ops_app
from streamd.http.protocol.application import Application
from streamd.http.protocol.cursors import Cursors
from streamd.http.protocol.messages import Request, Response
from streamd.http.queue_levels import queue_levels
from streamd.http.sockets.descriptors import allowed_connections
from streamd.http.streams.live import Hub
from streamd.http.streams.service import Service
from streamd.node import cold_status, status, subscription_status
from streamd.node.delivery import webhooks
from streamd.node.delivery.sender import Poster
from streamd.node.host_requests import host_control
from streamd.node.leader_operations import LeaderOperations
from streamd.node.node import Node, wall_clock_ms
from streamd.node.reports import NodeReports
from streamd.process.cures import cure_of_address, with_cure
from streamd.process.exits import errors_in
from streamd.process.logs import suppressed_lines
from streamd.process.metrics import Metrics
from streamd.process.threads import (
    OneThread,
    OpenThread,
    RunBlocking,
    in_thread,
    in_thread_or_left,
    own_thread,
)
from streamd.raft.core import RaftViolation
from streamd.storage.errors import StorageError
from streamd.streams.cold.packs import living_packs
from streamd.streams.operations.hosts import Host, HostControl
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.tier import open_cold
from streamd.transport.credentials import MIN_SECRET_BYTES, Credentials
from streamd.transport.interface import Network
from streamd.transport.network import TcpNetwork, TlsContexts, ssl_contexts
from streamd.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from streamd.http.credentials.identity_provider import IdentityProvider

_FATAL = (StorageError, RaftViolation)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What a node takes from the machine on which it runs.

    `clock_ms` is wall time in ms since the epoch. `secrets` makes what nobody may guess.
    `run_blocking` runs calls that touch the disk,
    and `open_log_thread` opens a thread for those that touch the log, one at a time. Without a
    `network` the peers use TCP, at `cluster.listen`; without `cold` the object store is the one
    that the section ``[cold]`` names. `disk_space` looks at a file system. `hosts` acts on the
    hosts of nodes, for operations on the cluster, and `poster` posts webhooks.
    """

    clock_ms: Callable[[], int] = wall_clock_ms
    random: Random = field(default_factory=Random)
    secrets: Random = field(default_factory=SystemRandom)
    run_blocking: RunBlocking = in_thread
    open_log_thread: OpenThread = own_thread
    network: Network | None = None
    cold: AsyncObjectStore | None = None
    disk_space: Callable[[Path], DiskSpace] = disk_space
    hosts: HostControl | None = None
    poster: Poster | None = None


class App:
    """A node with its peers and its clients. `node`, `service` and `application` exist inside
    `running`. The caller lets `peer_tls` follow its files."""

    node: Node
    service: Service
    application: HttpApplication

    def __init__(
        self,
        config: Config,
        stores: Stores,
        environment: Environment | None = None,
        *,
        hub: Hub | None = None,
    ) -> None:
        """Nothing listens yet. Raises `ConfigError` for credentials that cannot be read."""
        self.config = config
        self.stores = stores
        self.metrics = Metrics()
        self._doors: dict[str, FrontDoor] = {}
        self._environment = environment or Environment()
        self.hub = hub or Hub(self._environment.clock_ms, config.server.max_live_readers)
        self.peer_tls = None if config.cluster.name is None else peer_tls(config.cluster)
        self.cluster = self._cluster()
        self.identity_provider = identity_provider(config, self._environment.random)
        self._listed = listed_certificates(config)
        self._webhooks = webhooks.configured(config, self._environment.poster)
        self._targets = open_targets(config.heads, config.cold, self._environment.run_blocking)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the node; for its state inside, see `Node.running`.

        Raises `ConfigError` when the object store or the peers' address cannot be used,
        `FormationError` when this node cannot found the cluster, and `StorageError` and
        `RaftViolation` at any time.
        """
        given = self._environment.cold
        opened = await self._open_cold() if given is None else None
        try:
            async with self._transport(), self._environment.open_log_thread() as in_log_thread:
                self._build(given or opened, in_log_thread)
                async with self._recording(), self._watching_tokens():
                    yield
        finally:
            if opened is not None:
                with trio.CancelScope(shield=True):
                    await self._environment.run_blocking(opened.close)

    @asynccontextmanager
    async def _recording(self) -> AsyncIterator[None]:
        """Run the node. Inside, the audit trail is written if there is one, from the node's start
        to its end. Raises `ConfigError` if it cannot be."""
        if self.trail is None:
            async with self.node.running():
                yield
            return
        async with self.trail.opened(), self.node.running(), self.trail.running():
            self.trail.tell(
                "started",
                version=__version__,
                listen=self.config.server.listen,
                auth=self.config.auth.mode or "none",
                root_tokens=[root.name for root in self.roots],
            )
            yield

    @asynccontextmanager
    async def _watching_tokens(self) -> AsyncIterator[None]:
        """Inside, live readers end with their tokens, and keys of JWTs are kept up to date."""
        start_over = partial(self.hub.start_over, self.node.group.group_id)

        def keys_changed() -> None:
            self.authority.forget()
            start_over()

        async with trio.open_nursery() as nursery:
            if self.authority.is_required:
                nursery.start_soon(self.authority.watch, start_over)
            if self.identity_provider is not None:
                nursery.start_soon(self.identity_provider.follow, keys_changed)
            yield
            nursery.cancel_scope.cancel()

    def front_door(self) -> FrontDoor:
        """The server for the node's clients, with HTTP/2 if that is configured."""
        server = self.config.server
        allowed = allowed_connections(
            server.max_connections,
            clustered=self.cluster is not None,
            others=0 if self.config.admin.listen is None else ADMIN_CONNECTIONS,
        )
        door = self._door(self.application, replace(server, max_connections=allowed))
        self._doors["http"] = door
        self.metrics.gauge(
            "http_connections", "Open connections of clients.", lambda: len(door.connections)
        )
        return door

    def admin_door(self) -> FrontDoor | None:
        """The server for operations, if they have a listener of their own."""
        server = self.config.admin_server
        if server is None:
            return None
        application = HttpApplication(self.service, self._operate, server, serves_streams=False)
        door = self._door(
            application, server, kept_for_loopback=ADMIN_CONNECTIONS // 8, ends_idle=True
        )
        self._doors["admin"] = door
        self.metrics.gauge(
            "admin_connections",
            "Open connections to the operators' listener.",
            lambda: len(door.connections),
        )
        return door

    def _door(self, application: Application, server: ServerConfig, **room: Any) -> FrontDoor:
        http2 = None
        if server.http == "hypercorn":
            http2 = HypercornHttp2(AsgiApplication(application, server, fatal=_FATAL), server)
        return FrontDoor(
            application, server, self.metrics,
            fatal=_FATAL, http2=http2, gathering=self.node.group.writes.gathering, **room,
        )  # fmt: skip

    def supervisor(self, held: list[socket.socket]) -> Supervisor:
        """The workers that serve the node's clients, at the ports that are `held` for them."""
        return Supervisor(
            self.config,
            held,
            self.application,
            self.node.group,
            self.metrics,
            keeps_answers=self.cluster is None and not self.authority.is_required,
            has_limits=self.service.rates.exist,
            fatal=_FATAL,
        )

    def _build(self, cold: AsyncObjectStore | None, in_log_thread: OneThread) -> None:
        """Blocks for a read or two."""
        config, environment = self.config, self._environment
        self.node = Node(
            self.stores,
            run_blocking=environment.run_blocking,
            in_log_thread=in_log_thread,
            clock_ms=environment.clock_ms,
            random=environment.random,
            listener=self.hub,
            metrics=self.metrics,
            cluster=self.cluster,
            timing=config.cluster,
            cold=cold,
            cold_config=config.cold,
            storage=config.storage,
            disk_space=environment.disk_space,
            secrets=environment.secrets,
            publish=self._targets,
            publish_every_s=config.heads.publish_every_s,
            hosts=self._host_control(),
            webhooks=self._webhooks,
        )
        self._leader_operations = LeaderOperations(self.node)
        self._reports = NodeReports(
            self.node,
            config,
            self._leader_operations,
            clock_ms=environment.clock_ms,
            held=lambda: queue_levels(self.service, self._doors),
        )
        if self.cluster is not None:
            self.cluster.operate = self._reports.operate
        self._export()
        cursors = Cursors(environment.clock_ms, environment.random)
        self.roots = self._roots()
        self.trail = self._trail()
        self.authority = Authority(
            self.node.group.state,
            config.auth,
            now_ms=self.node.group.now_ms,
            is_ready=self.node.is_ready,
            roots=self.roots,
            jwts=self.identity_provider,
            listed=self._listed,
        )
        if self.authority.is_required:
            self.hub.permits = self.authority.tokens_version
        if self.identity_provider is not None:
            self.identity_provider.export(self.metrics)
        self.service = Service(
            self.node,
            self.hub,
            config.server,
            cursors,
            self.authority,
            self.trail,
            config.subscriptions,
        )
        self._operate = self._operations()
        self.application = HttpApplication(
            self.service,
            self._operate,
            config.server,
            serves_operators=config.admin.listen is None,
        )

    def _export(self) -> None:
        """Register the metrics of the node."""
        self.hub.export(self.metrics)
        self.metrics.gauge(
            "log_suppressed", "Log lines suppressed by the rate limit.", suppressed_lines
        )
        status.export(self.node, self.metrics)
        self.node.deliverer.export(self.metrics)
        cold_status.export(self.node, self.metrics)
        subscription_status.export(self.node.subscription_counts, self.metrics)

    def _host_control(self) -> HostControl | None:
        """What acts on the hosts of the cluster's nodes."""
        if self.cluster is None:
            return None
        config = self.config
        address = config.server.advertise or config.server.listen
        own = Host(self.cluster.node_id, config.cluster.address, address)
        configured = host_control(config.supervisor, self.cluster, own)
        return self._environment.hosts or configured

    def _operations(self) -> Callable[[Request], Awaitable[Response]]:
        """What answers operators."""
        secrets = self._environment.secrets
        ops = create_ops_app(
            self.metrics, self.node, self._leader_operations, self._reports, secrets, self.config
        )

        async def operate(request: Request) -> Response:
            return await call_asgi(ops, request)  # type: ignore[arg-type]

        return operate

    def _trail(self) -> AuditTrail | None:
        """The audit trail, if one is configured; nothing is opened yet."""
        config, environment = self.config, self._environment
        if config.log.audit is None:
            return None
        key = config.log.audit_stream
        sink: Sink
        if key is None:
            sink = FileSink(Path(config.log.audit), environment.run_blocking)
        else:
            sink = StreamSink(self.node.group, key)
        return AuditTrail(
            sink, self.metrics, node_id=config.server.node_id, clock_ms=environment.clock_ms
        )

    def _roots(self) -> list[Identity]:
        """Identities of this node's own root tokens, if it has any."""
        found = []
        if self.config.auth.root_token is not None:
            digest = tokens.digest_of(self.config.auth.root_token.encode())
            found.append(identity.root("root token of the configuration", digest))
        bootstrapped = self.stores.data_dir.read_root_token()
        if bootstrapped is not None:
            found.append(identity.root("root token of the data directory", bootstrapped))
        return found

    async def _open_cold(self) -> AsyncObjectStore | None:
        config, environment = self.config.cold, self._environment
        if config.backend == "none":
            await environment.run_blocking(_check_nothing_is_cold, self.stores)
            return None
        return await open_cold(
            config,
            self.stores.data_dir.path,
            run_blocking=in_thread_or_left,
            random=environment.random,
        )

    def _cluster(self) -> Cluster | None:
        """The node's connection to its peers; None for a single node."""
        config, environment = self.config, self._environment
        if config.cluster.name is None:
            return None
        return Cluster(
            config.cluster,
            self.stores.data_dir,
            self.stores.log,
            client_address=config.server.advertise or config.server.listen,
            max_body_bytes=config.server.max_body_bytes,
            network=environment.network or TcpNetwork(config.cluster.listen, self.peer_tls),
            random=environment.random,
            run_blocking=environment.run_blocking,
            credentials=peer_credentials(config.cluster),
            group_id=self.stores.group_id,
        )

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[None]:
        """Listen for peers; inside, the cluster has been founded if that is this node's task."""
        if self.cluster is None:
            yield
            return
        async with trio.open_nursery() as nursery:
            try:
                await nursery.start(self.cluster.transport.run)
            except* OSError as errors:
                [error, *_] = errors_in(errors)
                assert isinstance(error, OSError)
                raise ConfigError(
                    f"cluster.listen: cannot listen on {self.config.cluster.listen}: {error}. "
                    f"{cure_of_address(error.errno)}"
                ) from None
            if self.cluster.may_found:
                await self.cluster.found()
            yield
            nursery.cancel_scope.cancel()


def _check_nothing_is_cold(stores: Stores) -> None:
    """Raises `ConfigError` if the state refers to a cold store: without it, reads of old bytes
    would fail, and nothing would be archived. Blocks."""
    pack = next(living_packs(stores.state), None)
    if pack is not None:
        raise ConfigError(
            f"{stores.data_dir.path} refers to a cold store (such as {pack.name}), and the "
            "configuration has none: name it in the section [cold]"
        )


def identity_provider(config: Config, random: Random) -> IdentityProvider | None:
    """The provider whose JWTs are accepted. Raises `ConfigError` for files that cannot be used."""
    if config.auth.jwt is None:
        return None
    # Imported here: cryptography and httpx would double the time of a start without them.
    from streamd.http.credentials.identity_provider import IdentityProvider

    return IdentityProvider(config.auth.jwt, random)


def listed_certificates(config: Config) -> ListedCertificates | None:
    """The client certificates that have scopes. Raises `ConfigError`."""
    if not config.auth.certificates:
        return None
    # Imported here for the same reason.
    from streamd.http.credentials.client_certificates import listed_certificates

    return listed_certificates(config.auth.certificates)


def peer_tls(cluster: ClusterConfig) -> TlsFiles[TlsContexts] | None:
    """The TLS of peers, if it is configured. Raises `ConfigError`."""
    if cluster.tls_cert is None or cluster.tls_key is None or cluster.tls_ca is None:
        return None
    files = cluster.tls_cert, cluster.tls_key, cluster.tls_ca
    try:
        return TlsFiles(files, partial(ssl_contexts, *map(Path, files)))
    except OSError as error:
        raise ConfigError(f"cluster.tls_cert, tls_key, tls_ca: {with_cure(error)}") from None


def peer_credentials(cluster: ClusterConfig) -> Credentials:
    """How the node proves its identity to peers, and what it demands of them. Raises
    `ConfigError`."""
    secret = None
    if cluster.secret_file is not None:
        secret = read_secret("cluster.secret_file", cluster.secret_file, MIN_SECRET_BYTES)
    tls_name = cluster.tls_name if cluster.tls_ca is not None else None
    return Credentials(secret, tls_name, optional=cluster.insecure)
