"""What is wrong with a configuration whose values have the right types."""

from __future__ import annotations

import re

from streamd.auth.tokens import parse_token
from streamd.config.auth import certificate_fault, jwt_fault
from streamd.config.heads import heads_fault
from streamd.config.settings import (
    AuthConfig,
    ClusterConfig,
    ColdConfig,
    Config,
    ConfigError,
    ServerConfig,
    split_address,
)
from streamd.config.subscriptions import subscriptions_fault
from streamd.config.supervisor import supervisor_fault
from streamd.objectstore.objects import MAX_OBJECT_BYTES
from streamd.process.addresses import is_loopback
from streamd.process.redaction import shown

_URL = re.compile(r"https?://[^/?#@]+/?")
# A bucket name that every S3 accepts, and a prefix for our objects' names.
_S3_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# Only slashes separate parts: otherwise a long mismatch would backtrack exponentially.
_S3_PREFIX = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]*(/|\Z))*")
_ORIGIN = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
# A name, an IPv4 address, or an IPv6 address without brackets.
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")

# One append must fit into one pack and one segment of the archived log. In the segment the lengths
# of many small messages may add half its size, and other entries need room.
MAX_COLD_BODY_BYTES = MAX_OBJECT_BYTES * 5 // 8


def check(config: Config) -> None:
    """Check what a section, or sections together, may not say. Raises `ConfigError`."""
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
        raise ConfigError("server.tls_cert and server.tls_key must be set together")
    if server.max_body_bytes > server.max_buffered_bytes // server.workers:
        each = "" if server.workers == 1 else f" for each of the {server.workers} server.workers"
        raise ConfigError(f"server.max_buffered_bytes must be at least server.max_body_bytes{each}")
    if (fault := _auth_fault(config.auth, server)) is not None:
        raise ConfigError(fault)
    _check_open("server.listen", server.listen, config.auth, "do everything")
    if config.admin.listen is not None:
        _check_open("admin.listen", config.admin.listen, config.auth, "operate the node")
    if config.log.audit == "":
        raise ConfigError("log.audit is empty: name a file, or stream:BUCKET/NAME")
    _ = config.log.audit_stream
    _check_cluster(config.cluster)
    _check_cold(config.cold, config.cluster)
    has_cold_store = config.cold.backend != "none"
    if (fault := heads_fault(config.heads, has_cold_store=has_cold_store)) is not None:
        raise ConfigError(f"heads.{fault}")
    if (fault := subscriptions_fault(config.subscriptions)) is not None:
        raise ConfigError(f"subscriptions.{fault}")
    if (fault := supervisor_fault(config.supervisor)) is not None:
        raise ConfigError(f"supervisor.{fault}")
    if config.cold.backend != "none" and server.max_body_bytes > MAX_COLD_BODY_BYTES:
        raise ConfigError(
            f"server.max_body_bytes must be at most {MAX_COLD_BODY_BYTES} with cold.backend = "
            f'"{config.cold.backend}": a larger body does not fit into one object'
        )


def _check_open(key: str, listen: str, auth: AuthConfig, what: str) -> None:
    """A listener that other machines can reach needs an explicit auth.mode."""
    if auth.mode is None and not is_loopback(split_address(key, listen)[0]):
        raise ConfigError(
            f"{key}: {listen} is open to other machines, and clients need no token: "
            'set auth.mode = "required"; or auth.mode = "none" (serve --auth-mode none) if '
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
        raise ConfigError(
            "cluster.tls_cert, cluster.tls_key and cluster.tls_ca must be set together"
        )
    if "{id}" not in cluster.tls_name:
        raise ConfigError("cluster.tls_name must contain {id}")
    proves = cluster.tls_ca is not None or cluster.secret_file is not None
    if cluster.name and not (proves or cluster.insecure or is_loopback(host)):
        raise ConfigError(
            f"cluster.listen: {cluster.listen} is open to other machines, and peers are not "
            "authenticated: set cluster.tls_cert, tls_key and tls_ca, or cluster.secret_file; or "
            "cluster.insecure = true if no one else can reach the port"
        )


def _auth_fault(auth: AuthConfig, server: ServerConfig) -> str | None:
    """What is wrong with the section, or with client certificates; None if nothing is."""
    if auth.root_token is not None and parse_token(auth.root_token.encode()) is None:
        return "auth.root_token is not a token: make one with streamd token bootstrap --offline"
    if auth.jwt is not None and (fault := jwt_fault(auth.jwt)) is not None:
        return f"auth.jwt.{fault}"
    if server.tls_client_ca is not None and server.tls_cert is None:
        return "server.tls_client_ca needs server.tls_cert and server.tls_key"
    if server.tls_client_ca is None and server.tls_client_auth == "required":
        return 'server.tls_client_auth = "required" needs server.tls_client_ca'
    if server.tls_client_ca is None and auth.certificates:
        return "auth.certificates need server.tls_client_ca"
    for entry in auth.certificates:
        if (fault := certificate_fault(entry)) is not None:
            return f"auth.certificates: {fault}"
    return None


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
        raise ConfigError(
            "cold.s3_access_key_id and cold.s3_secret_access_key must be set together"
        )
    if cold.s3_session_token is not None and cold.s3_access_key_id is None:
        raise ConfigError("cold.s3_session_token needs cold.s3_access_key_id")
    if cold.hot_limit_bytes < 2 * cold.pack_bytes:
        raise ConfigError("cold.hot_limit_bytes must be at least twice cold.pack_bytes")
