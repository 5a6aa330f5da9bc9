"""`streamd serve`: a node and the HTTP server of its choice, from start to drained stop."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import structlog
import trio
from msgspec.structs import replace

from streamd import __version__
from streamd.blocking import in_thread, in_thread_or_left
from streamd.cluster.cluster import Cluster
from streamd.config import ClusterConfig, Config, ConfigError, ServerConfig
from streamd.group.stores import Stores
from streamd.http.application import StreamApplication
from streamd.http.asgi import AsgiApplication
from streamd.http.asgi_bridge import call_asgi
from streamd.http.descriptors import allowed_connections
from streamd.http.front_door import FrontDoor
from streamd.http.hypercorn_server import HypercornHttp2
from streamd.http.listeners import listen, server_ssl_context
from streamd.http.live import Hub
from streamd.http.messages import Request, Response
from streamd.http.ops import create_ops_app
from streamd.http.service import Service
from streamd.metrics import Metrics
from streamd.node import cold_status, status
from streamd.node.node import Node, wall_clock_ms
from streamd.privacy import is_open_to_others
from streamd.raft.core import RaftViolation
from streamd.storage.errors import StorageError
from streamd.streams.packs import living_packs
from streamd.tiering.tier import open_cold
from streamd.transport.credentials import MIN_SECRET_BYTES, Credentials
from streamd.transport.network import TcpNetwork, ssl_contexts

log = structlog.get_logger("streamd.server")

_FATAL = (StorageError, RaftViolation)


async def serve(config: Config, announce: Callable[[str], None] = print) -> None:
    """Serve until SIGTERM or SIGINT, then drain. A second signal ends the process at once.

    Raises `ConfigError` when an address, certificate or cold store cannot be used,
    `FormationError` when the cluster cannot be founded, `StorageError` when the data directory
    cannot be used, at start or later, and `RaftViolation`.
    """
    server = config.server
    ssl_context = server_ssl_context(server)
    listeners = _listen(server)
    stores = await in_thread(Stores.open, Path(server.data_dir), server.node_id, config.cluster)
    random = Random()
    cold = None
    try:
        await in_thread(_check_cold, config, stores)
        cold = await open_cold(
            config.cold, stores.data_dir.path, run_blocking=in_thread_or_left, random=random
        )
        async with _cluster(config, stores, random) as cluster:
            metrics = Metrics()
            hub = Hub(wall_clock_ms, server.max_live_readers)
            hub.export(metrics)
            node = Node(
                stores,
                run_blocking=in_thread,
                clock_ms=wall_clock_ms,
                random=random,
                audience=hub,
                metrics=metrics,
                cluster=cluster,
                timing=config.cluster,
                cold=cold,
                cold_config=config.cold,
            )
            status.export(node, metrics)
            cold_status.export(node, metrics)
            async with node.running():
                service = Service(node, hub, server, metrics, wall_clock_ms, random)
                url, directory = _url(server, listeners), stores.data_dir.path
                announce(
                    f"streamd {__version__} node {server.node_id} serves {url} from {directory}"
                )
                _warn_of_open_files(config, directory)
                application = _application(service, node, metrics)
                allowed = allowed_connections(server.max_connections, clustered=cluster is not None)
                server = replace(server, max_connections=allowed)
                await _serve_http(server, application, metrics, hub, listeners, ssl_context)
                log.info("drained")
    finally:
        with trio.CancelScope(shield=True):
            if cold is not None:
                await in_thread(cold.close)
            await in_thread(stores.close)


def _check_cold(config: Config, stores: Stores) -> None:
    """Raises `ConfigError` where old bytes are in a cold store and the configuration has none:
    every read of them would fail, and nothing would be archived. Blocks."""
    pack = next(living_packs(stores.state), None)
    if config.cold.backend == "none" and pack is not None:
        raise ConfigError(
            f"{stores.data_dir.path} refers to a cold store (such as {pack.name}), and the "
            "configuration has none: name it in the section [cold]"
        )


@asynccontextmanager
async def _cluster(config: Config, stores: Stores, random: Random) -> AsyncIterator[Cluster | None]:
    """The node's way to its peers, listening, the cluster founded if that is on this node."""
    if config.cluster.name is None:
        yield None
        return
    cluster = Cluster(
        config.cluster,
        stores.data_dir,
        stores.log,
        client_address=config.server.advertise or config.server.listen,
        max_body_bytes=config.server.max_body_bytes,
        network=_network(config.cluster),
        random=random,
        run_blocking=in_thread,
        credentials=_credentials(config.cluster),
    )
    _warn_of_insecurity(config.cluster)
    async with trio.open_nursery() as nursery:
        try:
            await nursery.start(cluster.transport.run)
        except* OSError as errors:
            reason = f"cannot listen on {config.cluster.listen}: {errors.exceptions[0]}"
            raise ConfigError(f"cluster.listen: {reason}") from None
        if cluster.may_found:
            await cluster.found()
        yield cluster
        nursery.cancel_scope.cancel()


def _network(cluster: ClusterConfig) -> TcpNetwork:
    if cluster.tls_cert is None or cluster.tls_key is None or cluster.tls_ca is None:
        return TcpNetwork(cluster.listen)
    try:
        tls = ssl_contexts(Path(cluster.tls_cert), Path(cluster.tls_key), Path(cluster.tls_ca))
    except OSError as error:
        raise ConfigError(f"cluster.tls_cert, tls_key, tls_ca: {error}") from None
    return TcpNetwork(cluster.listen, tls)


def _credentials(cluster: ClusterConfig) -> Credentials:
    """What the node proves itself with to its peers, and asks of them. Raises `ConfigError`."""
    secret = None
    if cluster.secret_file is not None:
        try:
            secret = Path(cluster.secret_file).read_bytes().strip()
        except OSError as error:
            raise ConfigError(
                f"cluster.secret_file: {cluster.secret_file}: {error.strerror}"
            ) from None
        if len(secret) < MIN_SECRET_BYTES:
            raise ConfigError(
                f"cluster.secret_file: a secret has at least {MIN_SECRET_BYTES} bytes; make one "
                "with: openssl rand -hex 32"
            )
    tls_name = cluster.tls_name if cluster.tls_ca is not None else None
    return Credentials(secret, tls_name, optional=cluster.insecure)


def _warn_of_insecurity(cluster: ClusterConfig) -> None:
    if cluster.insecure:
        log.warning(
            "cluster.insecure: whoever reaches the peers' port can be any node of the cluster",
            listen=cluster.listen,
        )


def _application(service: Service, node: Node, metrics: Metrics) -> StreamApplication:
    app = create_ops_app(metrics, node)

    async def ops(request: Request) -> Response:
        return await call_asgi(app, request)  # type: ignore[arg-type]

    return StreamApplication(service, ops)


async def _serve_http(
    server: ServerConfig,
    application: StreamApplication,
    metrics: Metrics,
    hub: Hub,
    listeners: list[socket.socket],
    ssl_context: ssl.SSLContext | None,
) -> None:
    http2 = None
    if server.http == "hypercorn":
        http2 = HypercornHttp2(AsgiApplication(application, server, fatal=_FATAL), server)
    async with trio.open_nursery() as nursery:
        door = FrontDoor(application, server, metrics, fatal=_FATAL, http2=http2)
        metrics.gauge("http_connections", "Open connections.", lambda: len(door.connections))
        nursery.start_soon(_until_signal, hub, door.drain)
        await door.serve(listeners, ssl_context)
        nursery.cancel_scope.cancel()


async def _until_signal(hub: Hub, drain: Callable[[], None]) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            if hub.draining:
                os._exit(128 + number)
            log.info("draining", signal=signal.Signals(number).name)
            hub.drain()
            drain()


def _listen(server: ServerConfig) -> list[socket.socket]:
    try:
        return listen(*server.listen_address)
    except OSError as error:
        raise ConfigError(f"server.listen: cannot listen on {server.listen}: {error}") from None


def _warn_of_open_files(config: Config, directory: Path) -> None:
    """Name what other users of the machine may read and should not."""
    keys = (config.server.tls_key, config.cluster.tls_key, config.cluster.secret_file)
    for path in (directory, *(Path(key) for key in keys if key is not None)):
        if is_open_to_others(path):
            log.warning("open to others on this machine: chmod go= it", path=str(path))


def _url(server: ServerConfig, listeners: list[socket.socket]) -> str:
    host, _ = server.listen_address
    port = listeners[0].getsockname()[1]
    scheme = "http" if server.tls_cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
