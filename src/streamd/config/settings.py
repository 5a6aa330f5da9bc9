"""The sections of the configuration: typed structs with their defaults."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec.structs import replace

from streamd.auth.scopes import ScopeError, parse_scope
from streamd.config.auth import CertificateConfig, JwtConfig
from streamd.config.heads import HeadsConfig
from streamd.config.subscriptions import SubscriptionsConfig
from streamd.config.supervisor import SupervisorConfig
from streamd.process.redaction import shown
from streamd.transport.credentials import DEFAULT_TLS_NAME

Positive = Annotated[int, msgspec.Meta(ge=1)]
PositiveNumber = Annotated[float, msgspec.Meta(gt=0)]

_AUDIT_STREAM = "stream:"
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:\s\x00-\x1f]+):(?P<port>[0-9]{1,5})")

MAX_WORKERS = 64
# Connections of the operators' listener: for people, scrapers and probes.
ADMIN_CONNECTIONS = 64
_ADMIN_BODY_BYTES = 1024 * 1024
_ADMIN_BUFFERED_BYTES = 64 * 1024 * 1024
_ADMIN_DRAIN_MS = 1_000


class ConfigError(Exception):
    """The configuration is invalid; the message names the key and its source."""


class ServerConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The `[server]` section. Addresses are ``host:port``; the names of times and sizes end in
    their unit. `max_connections_per_address` is two thirds of `max_connections` by default;
    without `max_new_connections_per_address_per_s` the rate of new connections has no limit.

    `allowed_hosts` are names, without a port, under which the node may be reached, besides those in
    `listen` and `advertise`. `allowed_origins` are those of web pages that may use streams; ``*``
    stands for all, and without any the node decides (`StreamGuard`). With `tls_client_ca` clients
    are asked for certificates of these authorities. `console` says whether browsers get a console,
    where operations are served.
    """

    node_id: Positive = 1
    listen: str = "127.0.0.1:4437"
    advertise: str | None = None
    allowed_hosts: list[str] = []
    allowed_origins: list[str] = []
    data_dir: str = "./data"
    http: Literal["front-door", "hypercorn"] = "front-door"
    workers: Annotated[int, msgspec.Meta(ge=1, le=MAX_WORKERS)] = 1
    non_leader: Literal["forward", "redirect"] = "forward"
    long_poll_timeout_ms: Positive = 30_000
    sse_lifetime_ms: Positive = 60_000
    sse_heartbeat_ms: Positive = 15_000
    max_body_bytes: Positive = 16 * 1024 * 1024
    max_buffered_bytes: Positive = 256 * 1024 * 1024
    max_snapshot_bytes: Positive = 128 * 1024 * 1024
    max_snapshot_uploads: Positive = 16
    max_snapshot_downloads: Positive = 64
    max_header_bytes: Positive = 16 * 1024
    max_headers: Positive = 100
    max_connections: Positive = 15_000
    max_connections_per_address: Positive | None = None
    max_new_connections_per_address_per_s: Positive | None = None
    max_live_readers: Positive = 10_000
    header_timeout_ms: Positive = 10_000
    idle_timeout_ms: Positive = 75_000
    body_timeout_ms: Positive = 10_000
    body_min_bytes_per_s: Positive = 1024
    write_timeout_ms: Positive = 30_000
    drain_timeout_ms: Positive = 5_000
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    tls_client_auth: Literal["optional", "required"] = "optional"
    console: bool = True

    @property
    def listen_address(self) -> tuple[str, int]:
        return split_address("server.listen", self.listen)


class ClusterConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The `[cluster]` section. Without a name the node is a cluster by itself.

    Peers connect to `listen`, or to `advertise` if that differs; `routes` are these addresses of
    the other nodes. Only the node `bootstrap_node_id` may found the cluster.

    Peers authenticate with certificates from `tls_ca` for `tls_name`, in which ``{id}`` and
    ``{cluster}`` stand for the node's id and the cluster's name, or with the bytes of
    `secret_file`, which all nodes share. With `insecure` they need not authenticate.
    """

    name: str | None = None
    listen: str = "127.0.0.1:4438"
    advertise: str | None = None
    bootstrap_node_id: Positive = 1
    routes: list[str] = []
    election_timeout_ms: Positive = 1_000
    heartbeat_interval_ms: Positive = 100
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    tls_name: str = DEFAULT_TLS_NAME
    secret_file: str | None = None
    insecure: bool = False

    @property
    def address(self) -> str:
        """The address at which peers reach this node."""
        return self.advertise or self.listen

    @property
    def other_routes(self) -> list[str]:
        """The routes without this node's own, which operators tend to list too."""
        return [route for route in dict.fromkeys(self.routes) if route != self.address]


class ColdConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The `[cold]` section: the object store for flushed bytes, the archived log and checkpoints.

    `fs_path` defaults to ``cold`` in the data directory. Each request to the store, and each reader
    that waits for it, has `timeout_ms`; readers share `max_requests` at once, and the node's own
    work has as many. Bytes are flushed when `pack_bytes` of them have gathered or the oldest is
    `flush_after_ms` old. Beyond `hot_limit_bytes` of unflushed bytes appends are refused. A node
    keeps at most `hot_keep_bytes` of flushed bytes on disk, and up to `cache_bytes` of what was
    read back in memory. It keeps up to `log_limit_bytes` of log entries until they are archived.
    Garbage is collected every `gc_interval_ms`, from objects unused for `gc_grace_ms`. All objects
    are read every `scrub_interval_hours`, at `scrub_bytes_per_s`.
    """

    backend: Literal["none", "fs", "s3"] = "none"
    fs_path: str | None = None
    s3_bucket: str | None = None
    s3_region: str = "us-east-1"
    s3_endpoint: str | None = None
    s3_access_key_id: str | None = None
    s3_secret_access_key: str | None = None
    s3_session_token: str | None = None
    s3_ca: str | None = None
    s3_prefix: str = ""
    timeout_ms: Positive = 30_000
    max_requests: Positive = 8
    pack_bytes: Annotated[int, msgspec.Meta(ge=64 * 1024, le=48 * 1024 * 1024)] = 8 * 1024 * 1024
    flush_after_ms: Positive = 10_000
    hot_keep_bytes: Positive = 1024 * 1024 * 1024
    hot_limit_bytes: Positive = 8 * 1024 * 1024 * 1024
    cache_bytes: Positive = 64 * 1024 * 1024
    archive_retention_hours: PositiveNumber = 168
    snapshot_interval_minutes: PositiveNumber = 60
    log_limit_bytes: Positive = 12 * 1024 * 1024 * 1024
    gc_interval_ms: Positive = 60_000
    gc_grace_ms: Positive = 600_000
    scrub_interval_hours: PositiveNumber = 168
    scrub_bytes_per_s: Positive = 4 * 1024 * 1024


class AdminConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The `[admin]` section. With `listen` operations (metrics, administration) have this address
    of their own, and ``server.listen`` serves them no longer. It has TLS if that has, unless `tls`
    is false.
    """

    listen: str | None = None
    tls: bool = True


class AuthConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The `[auth]` section. With `mode` ``required`` a request needs a token whose scopes permit
    it, but for health checks; with ``none`` only the administration of tokens does. None, a mode
    that nobody wrote down, is ``none`` for a node that listens on a loopback address, and no other.

    `root_token` is a token of this node that permits everything: for the first tokens, and when
    all others are lost. With `jwt` JWTs of an identity provider are taken, too, and with
    `certificates` those of clients.
    """

    mode: Literal["none", "required"] | None = None
    root_token: str | None = None
    jwt: JwtConfig | None = None
    certificates: list[CertificateConfig] = []


class StorageConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The `[storage]` section. While the file system of the data directory has less than
    `min_free_bytes` free, the node takes no more bytes into its log; 0 lets it fill the disk. None
    is 256 MiB, or a sixteenth of a file system smaller than 4 GiB.
    """

    min_free_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None


class LogConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The `[log]` section: events on standard error, and an `audit` trail of administration and
    refusals in a file, or in the stream that ``stream:BUCKET/NAME`` names."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"
    audit: str | None = None

    @property
    def audit_stream(self) -> bytes | None:
        """The key of the stream for the audit trail, if it goes to one. Raises `ConfigError`."""
        if self.audit is None or not self.audit.startswith(_AUDIT_STREAM):
            return None
        name = self.audit.removeprefix(_AUDIT_STREAM)
        try:
            scope = parse_scope(f"read:{name}")
        except ScopeError:
            scope = None
        if scope is None or scope.is_prefix or scope.pattern.endswith(b"\0"):
            raise ConfigError(f"log.audit: {name!r} is not a stream: BUCKET/NAME")
        return scope.pattern


class Config(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A whole configuration file."""

    version: Literal[1] = 1
    server: ServerConfig = msgspec.field(default_factory=ServerConfig)
    cluster: ClusterConfig = msgspec.field(default_factory=ClusterConfig)
    cold: ColdConfig = msgspec.field(default_factory=ColdConfig)
    log: LogConfig = msgspec.field(default_factory=LogConfig)
    auth: AuthConfig = msgspec.field(default_factory=AuthConfig)
    admin: AdminConfig = msgspec.field(default_factory=AdminConfig)
    storage: StorageConfig = msgspec.field(default_factory=StorageConfig)
    heads: HeadsConfig = msgspec.field(default_factory=HeadsConfig)
    subscriptions: SubscriptionsConfig = msgspec.field(default_factory=SubscriptionsConfig)
    supervisor: SupervisorConfig = msgspec.field(default_factory=SupervisorConfig)

    @property
    def admin_server(self) -> ServerConfig | None:
        """The server for operations, with small limits; None if they are served with streams."""
        if self.admin.listen is None:
            return None
        server = self.server
        own = replace(
            server,
            listen=self.admin.listen,
            # A name of the node is one at each of its ports.
            allowed_hosts=[*server.allowed_hosts, server.listen_address[0]],
            workers=1,
            max_body_bytes=min(server.max_body_bytes, _ADMIN_BODY_BYTES),
            max_buffered_bytes=min(server.max_buffered_bytes, _ADMIN_BUFFERED_BYTES),
            max_connections=ADMIN_CONNECTIONS,
            max_connections_per_address=ADMIN_CONNECTIONS // 4,
            drain_timeout_ms=min(server.drain_timeout_ms, _ADMIN_DRAIN_MS),
        )
        return own if self.admin.tls else replace(own, tls_cert=None, tls_key=None)


def split_address(key: str, address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``. Raises `ConfigError` naming `key`."""
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise ConfigError(f"{key}: {shown(address)!r} is not host:port")
    return match["host"].strip("[]"), int(match["port"])
