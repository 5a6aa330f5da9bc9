"""Configuration: defaults, overridden by a TOML file, the environment, then flags.

Each source is decoded into typed structs by itself, so that an error names the source of an unknown
key or a wrong type. Keys that depend on each other are checked last, on the merged configuration.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

import msgspec
from msgspec.structs import replace

from streamd.auth.scopes import ScopeError, parse_scope
from streamd.auth_config import CertificateConfig, JwtConfig, auth_fault
from streamd.config_names import PREFIX, fields_of, readable, unknown_variable, with_values
from streamd.cures import cure
from streamd.objectstore.objects import MAX_OBJECT_BYTES
from streamd.redaction import shown
from streamd.storage_config import StorageConfig
from streamd.transport.credentials import DEFAULT_TLS_NAME

Positive = Annotated[int, msgspec.Meta(ge=1)]
PositiveNumber = Annotated[float, msgspec.Meta(gt=0)]

_AUDIT_STREAM = "stream:"
_REFERENCE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")
_URL = re.compile(r"https?://[^/?#@]+/?")
# A bucket name that every S3 accepts, and a prefix for our objects' names.
_S3_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# Only slashes separate parts: otherwise a long mismatch would backtrack exponentially.
_S3_PREFIX = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]*(/|\Z))*")
_ORIGIN = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
# A name, an IPv4 address, or an IPv6 address without brackets.
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:\s\x00-\x1f]+):(?P<port>[0-9]{1,5})")

# One append must fit into one pack and one segment of the archived log. In the segment the lengths
# of many small messages may add half its size, and other entries need room.
MAX_COLD_BODY_BYTES = MAX_OBJECT_BYTES * 5 // 8

MAX_WORKERS = 64
# Of the listener for operations: for people, scrapers and probes.
ADMIN_CONNECTIONS = 64
_ADMIN_BODY_BYTES = 1024 * 1024
_ADMIN_BUFFERED_BYTES = 64 * 1024 * 1024
_ADMIN_DRAIN_MS = 1_000


class ConfigError(Exception):
    """The configuration is invalid; the message names the key and its source."""


class ServerConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The `[server]` section. Addresses are ``host:port``; the names of times and sizes end in
    their unit. `max_connections_per_address` is two thirds of `max_connections` by default;
    without `max_new_connections_per_address_per_s` they may come as fast as they are made.

    `allowed_hosts` are names, without a port, under which the node may be reached, besides those in
    `listen` and `advertise`. `allowed_origins` are those of web pages that may use streams; ``*``
    stands for all, and without any the node decides (`StreamGuard`). With `tls_client_ca` clients
    are asked for certificates of these authorities.
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


_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "server": ServerConfig,
    "cluster": ClusterConfig,
    "cold": ColdConfig,
    "log": LogConfig,
    "auth": AuthConfig,
    "admin": AdminConfig,
    "storage": StorageConfig,
}
# A name of its own, because operators pass it to the command line as well.
_ROOT_TOKEN = "STREAMD_ROOT_TOKEN"  # noqa: S105 - the name of a variable


def load(
    file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, Mapping[str, Any]],
) -> Config:
    """Merge all sources; `flags` holds values by section and key.

    Raises `ConfigError`.
    """
    merged: dict[str, Any] = {section: {} for section in _SECTIONS}
    layers: dict[str, Mapping[str, Any]] = {} if file is None else {str(file): _read_toml(file)}
    layers |= {"the environment": _from_environment(environment), "the command line": flags}
    if (fault := unknown_variable(environment, layers, Config)) is not None:
        raise ConfigError(f"the environment: {fault}")
    for source, layer in layers.items():
        _merge(merged, layer, environment, source)
    config = _convert(merged, "the configuration")
    _check(config)
    return config


def _merge(
    merged: dict[str, Any],
    layer: Mapping[str, Any],
    environment: Mapping[str, str],
    source: str,
) -> None:
    """Check one source by itself, and merge it over those before it."""
    resolved = {key: _resolve(value, key, environment) for key, value in layer.items()}
    _convert(resolved, source)
    _merge_tables(merged, resolved)


def _merge_tables(merged: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping):
            _merge_tables(merged.setdefault(key, {}), value)
        else:
            merged[key] = value


def _convert(values: Mapping[str, Any], source: str) -> Config:
    try:
        return msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {readable(str(error), Config)}") from None


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}. {cure(error.errno)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None


def _from_environment(environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """``STREAMD_SERVER_NODE_ID`` is ``server.node_id``. `STREAMD_URL` belongs to the client."""
    layer: dict[str, dict[str, Any]] = {}
    if _ROOT_TOKEN in environment:
        layer["auth"] = {"root_token": environment[_ROOT_TOKEN]}
    for name, text in environment.items():
        section, _, key = name.removeprefix(PREFIX).lower().partition("_")
        if not name.startswith(PREFIX) or section not in _SECTIONS:
            continue
        keys = layer.setdefault(section, {})
        fields = fields_of(_SECTIONS[section])
        if section == "auth" and key.startswith("jwt_"):
            keys = keys.setdefault("jwt", {})
            key, fields = key.removeprefix("jwt_"), fields_of(JwtConfig)
        if key not in fields:
            continue
        try:
            value: Any = text.split(",") if get_origin(fields[key]) is list else text
            keys[key] = msgspec.convert(value, fields[key], strict=False)
        except msgspec.ValidationError as error:
            text = with_values(str(error), fields[key])
            raise ConfigError(f"the environment: {name}: {text}") from None
    return layer


def _resolve(value: Any, key: str, environment: Mapping[str, str]) -> Any:
    """Replace ``$NAME`` by the environment variable, which keeps secrets out of files."""
    if isinstance(value, Mapping):
        return {
            name: _resolve(inner, f"{key}.{name}", environment) for name, inner in value.items()
        }
    if not isinstance(value, str) or _REFERENCE.fullmatch(value) is None:
        return value
    try:
        return environment[value[1:]]
    except KeyError:
        raise ConfigError(f"{key}: the environment variable {value[1:]} is not set") from None


def split_address(key: str, address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``. Raises `ConfigError` naming `key`."""
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise ConfigError(f"{key}: {shown(address)!r} is not host:port")
    return match["host"].strip("[]"), int(match["port"])


def _check(config: Config) -> None:
    server = config.server
    split_address("server.listen", server.listen)
    if server.advertise is not None:
        split_address("server.advertise", server.advertise)
    for host in server.allowed_hosts:
        if _HOST_NAME.fullmatch(host) is None:
            raise ConfigError(
                f"server.allowed_hosts: {shown(host)!r} is not a host name without a port"
            )
    for origin in server.allowed_origins:
        if origin != "*" and _ORIGIN.fullmatch(origin) is None:
            raise ConfigError(
                f"server.allowed_origins: {shown(origin)!r} is neither * nor an origin, such as "
                "https://app.example.net or http://10.0.0.7:3000"
            )
    if (server.tls_cert is None) != (server.tls_key is None):
        raise ConfigError("server.tls_cert and server.tls_key go together")
    if server.max_body_bytes > server.max_buffered_bytes // server.workers:
        each = "" if server.workers == 1 else f" for each of the {server.workers} server.workers"
        raise ConfigError(f"server.max_buffered_bytes must be at least server.max_body_bytes{each}")
    if (fault := auth_fault(config)) is not None:
        raise ConfigError(fault)
    _check_open("server.listen", server.listen, config.auth, "do everything")
    if config.admin.listen is not None:
        _check_open("admin.listen", config.admin.listen, config.auth, "operate the node")
    if config.log.audit == "":
        raise ConfigError("log.audit is empty: name a file, or stream:BUCKET/NAME")
    _ = config.log.audit_stream
    _check_cluster(config.cluster)
    _check_cold(config.cold, config.cluster)
    if config.cold.backend != "none" and server.max_body_bytes > MAX_COLD_BODY_BYTES:
        raise ConfigError(
            f"server.max_body_bytes must be at most {MAX_COLD_BODY_BYTES} with cold.backend = "
            f'"{config.cold.backend}": a larger body does not fit into one object'
        )


def _check_open(key: str, listen: str, auth: AuthConfig, what: str) -> None:
    """For a listener that other machines reach, the mode must be written down."""
    if auth.mode is None and not is_loopback(split_address(key, listen)[0]):
        raise ConfigError(
            f"{key}: {listen} is open to other machines, and clients need no "
            'token: set auth.mode = "required"; or auth.mode = "none" (serve --auth-mode none) if '
            f"everyone who can reach the port may {what}"
        )


def _check_cluster(cluster: ClusterConfig) -> None:
    host, _ = split_address("cluster.listen", cluster.listen)
    if cluster.advertise is not None:
        split_address("cluster.advertise", cluster.advertise)
    for route in cluster.routes:
        split_address("cluster.routes", route)
    if cluster.routes and not cluster.name:
        raise ConfigError("cluster.routes need a cluster.name")
    if cluster.heartbeat_interval_ms * 2 > cluster.election_timeout_ms:
        raise ConfigError(
            "cluster.election_timeout_ms must be at least twice cluster.heartbeat_interval_ms"
        )
    given = [cluster.tls_cert, cluster.tls_key, cluster.tls_ca]
    if any(given) and not all(given):
        raise ConfigError("cluster.tls_cert, cluster.tls_key and cluster.tls_ca go together")
    if "{id}" not in cluster.tls_name:
        raise ConfigError("cluster.tls_name must contain {id}")
    proves = cluster.tls_ca is not None or cluster.secret_file is not None
    if cluster.name and not (proves or cluster.insecure or is_loopback(host)):
        raise ConfigError(
            f"cluster.listen: {cluster.listen} is open to other machines, and peers are not "
            "authenticated: set cluster.tls_cert, tls_key and tls_ca, or cluster.secret_file; or "
            "cluster.insecure = true if no one else can reach the port"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a port of `host`, a name or an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"


def _check_cold(cold: ColdConfig, cluster: ClusterConfig) -> None:
    if cold.backend == "fs" and cluster.name:
        raise ConfigError(
            'cold.backend = "fs" is for a single node: the nodes of a cluster need a store that '
            'all of them reach ("s3")'
        )
    if cold.backend == "s3" and not cold.s3_bucket:
        raise ConfigError('cold.backend = "s3" needs a cold.s3_bucket')
    if cold.s3_bucket is not None and _S3_BUCKET.fullmatch(cold.s3_bucket) is None:
        raise ConfigError(f"cold.s3_bucket: {shown(cold.s3_bucket)!r} is not a valid bucket name")
    if cold.s3_endpoint is not None and _URL.fullmatch(cold.s3_endpoint) is None:
        raise ConfigError(
            f"cold.s3_endpoint: {shown(cold.s3_endpoint)!r} is not http://host:port or "
            "https://host:port"
        )
    if _S3_PREFIX.fullmatch(cold.s3_prefix) is None or len(cold.s3_prefix) > 256:
        raise ConfigError(
            f"cold.s3_prefix: {shown(cold.s3_prefix)!r} cannot begin an object's name"
        )
    if (cold.s3_access_key_id is None) != (cold.s3_secret_access_key is None):
        raise ConfigError("cold.s3_access_key_id and cold.s3_secret_access_key go together")
    if cold.s3_session_token is not None and cold.s3_access_key_id is None:
        raise ConfigError("cold.s3_session_token needs cold.s3_access_key_id")
    if cold.hot_limit_bytes < 2 * cold.pack_bytes:
        raise ConfigError("cold.hot_limit_bytes must be at least twice cold.pack_bytes")
