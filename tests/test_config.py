"""Configuration: four layers, every mistake named."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamd.config.auth import CertificateConfig, JwtConfig, certificate_fault, jwt_fault
from streamd.config.loading import load
from streamd.config.settings import (
    AuthConfig,
    ClusterConfig,
    ColdConfig,
    Config,
    ConfigError,
    LogConfig,
    ServerConfig,
)

SAMPLE = Path(__file__).parent.parent / "config" / "streamd.toml"


def _file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "streamd.toml"
    file.write_text(text)
    return file


def test_the_defaults_hold_without_any_configuration() -> None:
    config = load(None, {}, {})
    assert config.server.listen == "127.0.0.1:4437"
    assert config.server.data_dir == "./data"
    assert config.server.node_id == 1


def test_flags_override_environment_overrides_file_overrides_defaults(tmp_path: Path) -> None:
    file = _file(
        tmp_path,
        '[server]\nnode_id = 2\nlisten = "127.0.0.1:2"\nadvertise = "a:2"\ndata_dir = "two"\n',
    )
    environment = {"STREAMD_SERVER_LISTEN": "127.0.0.1:3", "STREAMD_SERVER_ADVERTISE": "a:3"}
    config = load(file, environment, {"server": {"advertise": "a:4"}})
    server = config.server
    assert (server.node_id, server.data_dir) == (2, "two")
    assert (server.listen, server.advertise) == ("127.0.0.1:3", "a:4")
    assert server.max_headers == ServerConfig().max_headers


def test_environment_values_are_parsed_by_the_type_of_the_key() -> None:
    environment = {
        "STREAMD_SERVER_LONG_POLL_TIMEOUT_MS": "2500",
        "STREAMD_LOG_LEVEL": "debug",
        "STREAMD_URL": "http://elsewhere",
        "PATH": "/bin",
    }
    config = load(None, environment, {})
    assert config.server.long_poll_timeout_ms == 2500
    assert config.log.level == "debug"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nlissen = 1", "unknown key server.lissen"),
        ("[sever]\n", "unknown key sever"),
        ('[server]\nnode_id = "one"', "server.node_id"),
        ("[server]\nnode_id = 0", "server.node_id"),
        ('[server]\nhttp = "apache"', "server.http"),
        ('[server]\nlisten = "nowhere"', "server.listen: 'nowhere' is not host:port"),
        ('[server]\nlisten = "a:70000"', "server.listen"),
        ('[server]\nadvertise = "b"', "server.advertise"),
        ('[server]\ntls_cert = "c.pem"', "server.tls_cert and server.tls_key must be set together"),
        ("[server]\nmax_buffered_bytes = 1", "server.max_buffered_bytes"),
        ('[server]\nallowed_hosts = ["a:80"]', "server.allowed_hosts: 'a:80' is not a host name"),
        ('[server]\nallowed_hosts = ["*"]', "server.allowed_hosts: '*' is not a host name"),
        ('[server]\nallowed_origins = ["app.example"]', "server.allowed_origins: 'app.example'"),
        ('[server]\nallowed_origins = ["https://a.example/"]', "server.allowed_origins"),
        ('[cluster]\nroutes = ["a:1"]', "cluster.routes need a cluster.name"),
        ('[cluster]\nname = "c"\nroutes = ["a"]', "cluster.routes: 'a' is not host:port"),
        ("[cluster]\nheartbeat_interval_ms = 600", "cluster.election_timeout_ms"),
        ('[cluster]\ntls_name = "node"', "cluster.tls_name must contain {id}"),
        ('[cluster]\nname = "c"\nlisten = "0.0.0.0:1"', "cluster.insecure = true"),
        ('[cluster]\nname = "c"\nlisten = "n.example:1"', "cluster.listen: n.example:1 is open"),
        ('[cluster]\ntls_ca = "ca.pem"', "cluster.tls_cert, cluster.tls_key and"),
        ('[cold]\nbackend = "tape"', "cold.backend"),
        ('[cold]\nbackend = "s3"', 'cold.backend = "s3" needs a cold.s3_bucket'),
        ('[cold]\nbackend = "fs"\n[cluster]\nname = "c"', 'cold.backend = "fs" is for a single'),
        ('[cold]\ns3_bucket = "Up"', "cold.s3_bucket: 'Up' is not a valid bucket name"),
        (
            '[cold]\ns3_endpoint = "127.0.0.1:9000"',
            "cold.s3_endpoint: '127.0.0.1:9000' is not http",
        ),
        ('[cold]\ns3_prefix = "/a"', "cold.s3_prefix"),
        ('[cold]\ns3_prefix = "a/../b"', "cold.s3_prefix"),
        ('[cold]\ns3_prefix = "streamd-production-cluster-in-eu-west-1 "', "cold.s3_prefix"),
        ('[cold]\ns3_access_key_id = "k"', "cold.s3_access_key_id and cold.s3_secret_access_key"),
        ('[cold]\ns3_session_token = "t"', "cold.s3_session_token needs cold.s3_access_key_id"),
        ("[cold]\npack_bytes = 1", "cold.pack_bytes"),
        ("[cold]\nhot_limit_bytes = 65536", "cold.hot_limit_bytes must be at least twice"),
        (
            '[server]\nmax_body_bytes = 41943041\n[cold]\nbackend = "fs"',
            'server.max_body_bytes must be at most 41943040 with cold.backend = "fs"',
        ),
        ('[server]\nlisten = "0.0.0.0:1"', 'set auth.mode = "required"; or auth.mode = "none"'),
        ('[server]\nlisten = "[::]:1"', "server.listen: [::]:1 is open to other machines"),
        ('[server]\nlisten = "n.example:1"', "server.listen: n.example:1 is open"),
        ('[auth]\nmode = "optional"', "auth.mode"),
        ('[admin]\nlisten = "0.0.0.0:1"', "admin.listen: 0.0.0.0:1 is open to other machines"),
        ('[admin]\nlisten = "localhost"', "admin.listen: 'localhost' is not host:port"),
        ('[admin]\nurl = "x"', "unknown key admin.url"),
        ('[supervisor]\nkind = "runit"', "supervisor.kind"),
        ('[supervisor]\nunit = "a.service"', 'supervisor.unit is for supervisor.kind = "systemd"'),
        (
            '[supervisor]\nkind = "kubernetes"\ninstall = ["a"]',
            'supervisor.install is for supervisor.kind = "systemd" or "command", and this is "kub',
        ),
        ('[supervisor]\nkind = "command"', "supervisor.restart is missing"),
        (
            '[supervisor]\nkind = "command"\nrestart = ["a", "{node}"]',
            "supervisor.restart: '{node}': in braces can stand {id}, {ordinal}, {host},",
        ),
        ('[supervisor]\nkind = "command"\nrestart = ["a", "{id!r}"]', "supervisor.restart"),
        ('[supervisor]\nkind = "command"\nrestart = ["a", "{id"]', "supervisor.restart"),
        ('[supervisor]\nkind = "command"\nrestart = ["{host}"]', "'{host}' is not a program"),
        ('[supervisor]\nkind = "systemd"\nunit = "a b"', "supervisor.unit: 'a b' names no unit"),
        ('[supervisor]\nkind = "systemd"\nunit = "--root=/"', "supervisor.unit"),
        ('[supervisor]\nkind = "systemd"\nssh = "-oX {host}"', "supervisor.ssh"),
        ('[supervisor]\nkind = "kubernetes"\npod = "-x"', "supervisor.pod: '-x' names no pod"),
        ('[supervisor]\nkind = "kubernetes"\nstateful_set = "A"', "names no stateful set"),
        ('[supervisor]\nkind = "kubernetes"\nimage = "-x"', "supervisor.image"),
        (
            '[subscriptions]\ncallback_url = "streams.example"',
            "subscriptions.callback_url: 'streams",
        ),
        ('[subscriptions]\ncallback_url = "https://a.example/?b"', "subscriptions.callback_url"),
        ('[subscriptions]\nsecret_file = ""', "subscriptions.secret_file is empty"),
        ("[subscriptions]\nmax_deliveries = 0", "subscriptions.max_deliveries"),
        ('[subscriptions]\nca = ""', "subscriptions.ca is empty"),
        ('[subscriptions]\nallowed_networks = ["10.0.0.1/8"]', "subscriptions.allowed_networks"),
        ("version = 2", "version"),
        ("[server", "not TOML"),
        ('[server]\ntls_key = "$STREAMD_TEST_ABSENT"', "server.tls_key: the environment variable"),
    ],
)
def test_a_mistake_in_the_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load(_file(tmp_path, text), {}, {})
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cold.s3_endpoint", "https://operator:whisper@127.0.0.1:9000"),
        ("cold.s3_endpoint", "operator:whisper@127.0.0.1:9000"),
        ("cold.s3_endpoint", "https://whisper:w@isper@127.0.0.1:9000/whisper@127.0.0.1:9000"),
        ("cold.s3_endpoint", "https://127.0.0.1:9000?X-Amz-Security-Token=whisper"),
        ("cold.s3_bucket", "https://key:whisper@127.0.0.1:9000"),
        ("cold.s3_prefix", "s3://key:whisper@127.0.0.1:9000"),
        ("server.listen", "operator:whisper@127.0.0.1:9000x"),
        ("cluster.advertise", "nats://operator:whisper@127.0.0.1:9000/"),
    ],
)
def test_a_mistake_is_reported_without_its_credentials(
    key: str, value: str, tmp_path: Path
) -> None:
    section, name = key.split(".")
    with pytest.raises(ConfigError) as raised:
        load(_file(tmp_path, f'[{section}]\n{name} = "{value}"'), {}, {})
    told = str(raised.value)
    assert key in told
    assert "127.0.0.1:9000" in told
    assert "whisper" not in told


def test_the_limit_of_bodies_is_free_without_a_cold_store(tmp_path: Path) -> None:
    assert load(_file(tmp_path, "[server]\nmax_body_bytes = 100_000_000"), {}, {})


def test_a_list_in_the_environment_is_separated_by_commas() -> None:
    environment = {"STREAMD_CLUSTER_NAME": "c", "STREAMD_CLUSTER_ROUTES": "a:1,127.0.0.1:4438"}
    cluster = load(None, environment, {}).cluster
    assert cluster.routes == ["a:1", "127.0.0.1:4438"]
    assert cluster.other_routes == ["a:1"], "the node's own address leads nowhere"


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "absent.toml", {}, {})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("STREAMD_SERVER_LISSEN", "x", "unknown variable STREAMD_SERVER_LISSEN"),
        ("STREAMD_SERVER_NODE_ID", "one", "STREAMD_SERVER_NODE_ID"),
        ("STREAMD_LOG_LEVEL", "loud", "STREAMD_LOG_LEVEL"),
    ],
)
def test_a_mistake_in_the_environment_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(None, {name: value}, {})


def test_a_secret_may_come_from_the_environment(tmp_path: Path) -> None:
    text = '[server]\ntls_cert = "cert.pem"\ntls_key = "$KEY_FILE"'
    config = load(_file(tmp_path, text), {"KEY_FILE": "/run/key.pem"}, {})
    assert config.server.tls_key == "/run/key.pem"


def test_the_keys_of_the_object_store_may_come_from_variables(tmp_path: Path) -> None:
    text = (
        '[cold]\nbackend = "s3"\ns3_bucket = "streamd-dev"\ns3_endpoint = "http://127.0.0.1:9000"\n'
        's3_access_key_id = "$KEY"\ns3_secret_access_key = "$SECRET"\n'
    )
    environment = {"KEY": "k", "SECRET": "s", "STREAMD_COLD_S3_PREFIX": "dev/one"}
    cold = load(_file(tmp_path, text), environment, {"cluster": {"name": "c"}}).cold
    assert (cold.s3_access_key_id, cold.s3_secret_access_key) == ("k", "s")
    assert cold.s3_prefix == "dev/one"


# -- the sample ---------------------------------------------------------------------------------


def test_the_unchanged_sample_changes_nothing() -> None:
    assert load(SAMPLE, {}, {}) == Config()


def test_the_sample_shows_every_key_with_its_default() -> None:
    uncommented = "\n".join(
        line.removeprefix("# ") if re.match(r"# (\[|\w+ = )", line) else line
        for line in SAMPLE.read_text().splitlines()
    )
    shown = tomllib.loads(uncommented)
    for section, kind in (
        ("server", ServerConfig),
        ("cluster", ClusterConfig),
        ("cold", ColdConfig),
        ("log", LogConfig),
        ("auth", AuthConfig),
    ):
        assert_shown(shown[section], kind(), *(["certificates"] if section == "auth" else []))
    for entry in shown["auth"]["certificates"]:
        assert certificate_fault(msgspec.convert(entry, CertificateConfig)) is None
    # These have no default, and the sample is one that can be used.
    assert_shown(shown["auth"]["jwt"], JwtConfig(), "issuer", "audience", "jwks", "scopes", "roles")
    assert jwt_fault(msgspec.convert(shown["auth"]["jwt"], JwtConfig)) is None


def assert_shown(shown: dict[str, Any], section: msgspec.Struct, *examples: str) -> None:
    """All keys of a section are there, and have their defaults if they are not examples."""
    defaults = msgspec.to_builtins(section)
    assert set(shown) == set(defaults)
    optional = {key for key, value in defaults.items() if value is None}
    for key in set(defaults) - optional - set(examples):
        assert shown[key] == defaults[key], key


@pytest.mark.parametrize(
    "text",
    [
        'listen = "127.0.0.2:1"',
        'listen = "[::1]:1"',
        'listen = "localhost:1"',
        'listen = "0.0.0.0:1"\nsecret_file = "secret"',
        'listen = "0.0.0.0:1"\ntls_cert = "c"\ntls_key = "k"\ntls_ca = "a"',
        'listen = "0.0.0.0:1"\ninsecure = true',
    ],
)
def test_a_peer_port_is_local_or_requires_proof(tmp_path: Path, text: str) -> None:
    file = tmp_path / "streamd.toml"
    file.write_text(f'[cluster]\nname = "c"\n{text}\n')
    assert load(file, {}, {}).cluster.name == "c"


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "LocalHost.:1"]
)
def test_a_client_port_on_this_machine_only_needs_no_word_about_tokens(address: str) -> None:
    assert load(None, {"STREAMD_SERVER_LISTEN": address}, {}).auth.mode is None


def test_operations_have_the_settings_of_the_server_and_smaller_limits() -> None:
    assert load(None, {}, {}).admin_server is None
    environment = {"STREAMD_ADMIN_LISTEN": "[::1]:1", "STREAMD_SERVER_TLS_CERT": "c"}
    environment["STREAMD_SERVER_LISTEN"] = "localhost:3"
    environment["STREAMD_SERVER_ALLOWED_HOSTS"] = "balancer.example"
    environment["STREAMD_SERVER_TLS_KEY"] = "k"
    config = load(None, environment, {"admin": {"listen": "127.0.0.1:2"}})
    admin = config.admin_server
    assert admin is not None
    assert (admin.listen, admin.tls_cert, admin.tls_key) == ("127.0.0.1:2", "c", "k")
    assert admin.allowed_hosts == ["balancer.example", "localhost"]
    assert admin.max_connections < config.server.max_connections
    assert admin.max_body_bytes < config.server.max_body_bytes
    plain = load(None, {**environment, "STREAMD_ADMIN_TLS": "false"}, {}).admin_server
    assert plain is not None
    assert (plain.listen, plain.tls_cert, plain.tls_key) == ("[::1]:1", None, None)


@pytest.mark.parametrize("mode", ["none", "required"])
def test_a_client_port_open_to_others_is_declared_in_any_layer(tmp_path: Path, mode: str) -> None:
    file = _file(tmp_path, f'[server]\nlisten = "0.0.0.0:1"\n[auth]\nmode = "{mode}"')
    open_port = {"STREAMD_SERVER_LISTEN": "[::]:1"}
    for config in (
        load(file, {}, {}),
        load(None, {**open_port, "STREAMD_AUTH_MODE": mode}, {}),
        load(None, open_port, {"auth": {"mode": mode}}),
    ):
        assert config.auth.mode == mode


# -- JWTs --

JWT = """
[auth.jwt]
issuer = "https://id.example"
audience = "streamd"
jwks = "/etc/streamd/jwks.json"
"""


def with_jwt(
    tmp_path: Path, more: str = "", environment: Mapping[str, str] | None = None
) -> Config:
    return load(_file(tmp_path, JWT + more), environment or {}, {})


def test_jwts_need_an_issuer_an_audience_and_keys(tmp_path: Path) -> None:
    jwt = with_jwt(tmp_path).auth.jwt
    assert jwt is not None
    assert jwt.algorithms == ["EdDSA", "ES256", "RS256"]
    for line in JWT.splitlines()[2:]:
        key = line.split()[0]
        with pytest.raises(ConfigError, match=f"auth.jwt.{key}: it is missing"):
            load(_file(tmp_path, JWT.replace(line, "")), {}, {})


@pytest.mark.parametrize("algorithm", ["none", "HS256", "HS512", "ES256K", "eddsa", ""])
def test_no_algorithm_is_accepted_that_anyone_could_sign_with(
    tmp_path: Path, algorithm: str
) -> None:
    with pytest.raises(ConfigError, match=r"auth\.jwt\.algorithms"):
        with_jwt(tmp_path, f'algorithms = ["RS256", "{algorithm}"]')
    with pytest.raises(ConfigError, match="STREAMD_AUTH_JWT_ALGORITHMS"):
        with_jwt(tmp_path, "", {"STREAMD_AUTH_JWT_ALGORITHMS": f"RS256,{algorithm}"})
    with pytest.raises(ConfigError, match=r"auth\.jwt\.algorithms: it is missing"):
        with_jwt(tmp_path, "algorithms = []")


@pytest.mark.parametrize(
    ("jwks", "is_taken"),
    [
        ("https://id.example/keys?v=1", True),
        ("http://127.0.0.1:8080/keys", True),
        ("http://localhost/keys", True),
        ("http://[::1]:80/keys", True),
        ("keys.json", True),
        ("http://id.example/keys", False),
        ("http://127.0.0.1.evil.example/keys", False),
        ("http://localhost.evil.example/keys", False),
        ("http://localhost:80@evil.example/keys", False),
        ("https://user:secret@id.example/keys", False),
        ("https://id.example/#keys", False),
        ("file:///etc/passwd", False),
        ("ftp://id.example/keys", False),
        ("HTTP://id.example/keys", False),
    ],
)
def test_keys_come_from_a_file_or_over_a_protected_way(
    tmp_path: Path, jwks: str, is_taken: bool
) -> None:
    text = JWT.replace("/etc/streamd/jwks.json", jwks)
    if is_taken:
        assert load(_file(tmp_path, text), {}, {}).auth.jwt
        return
    with pytest.raises(ConfigError, match=r"auth\.jwt\.jwks") as refused:
        load(_file(tmp_path, text), {}, {})
    assert "secret" not in str(refused.value)


def test_templates_are_checked_before_the_start(tmp_path: Path) -> None:
    for more, key in (
        ('scopes = ["read:users/{sub}*"]', "scopes"),
        ('[auth.jwt.roles]\nops = ["operate:*"]\nwriters = ["write:a/*"]', "roles.writers"),
    ):
        with pytest.raises(ConfigError, match=rf"auth\.jwt\.{key}: "):
            with_jwt(tmp_path, more)
    auth = with_jwt(tmp_path, '[auth.jwt.roles]\nops = ["operate:*"]').auth
    assert auth.jwt is not None
    assert auth.jwt.roles == {"ops": ["operate:*"]}


def test_the_environment_overrides_keys_of_a_table(tmp_path: Path) -> None:
    environment = {
        "STREAMD_AUTH_JWT_AUDIENCE": "other",
        "STREAMD_AUTH_JWT_ALGORITHMS": "RS256,PS256",
        "STREAMD_AUTH_MODE": "required",
        "KEYS": "keys.json",
    }
    text = JWT.replace("/etc/streamd/jwks.json", "$KEYS")
    auth = load(_file(tmp_path, text), environment, {}).auth
    assert auth.mode == "required"
    assert auth.jwt is not None
    assert (auth.jwt.issuer, auth.jwt.audience) == ("https://id.example", "other")
    assert auth.jwt.jwks == "keys.json"
    assert auth.jwt.algorithms == ["RS256", "PS256"]
    with pytest.raises(ConfigError, match="unknown variable STREAMD_AUTH_JWT_SECRET"):
        with_jwt(tmp_path, "", {"STREAMD_AUTH_JWT_SECRET": "x"})


@pytest.mark.parametrize("name", ["", "ops", "ops/", "ops/au*", "/ops/audit", "ops//audit"])
def test_an_audit_trail_goes_to_one_stream(name: str) -> None:
    with pytest.raises(ConfigError, match=r"log\.audit: .* is not a stream"):
        load(None, {"STREAMD_LOG_AUDIT": f"stream:{name}"}, {})


def test_an_audit_trail_is_a_file_or_a_stream() -> None:
    file, stream = LogConfig(audit="audit.jsonl"), LogConfig(audit="stream:ops/run/audit")
    assert file.audit_stream is None
    assert stream.audit_stream == b"ops\0run/audit"
    with pytest.raises(ConfigError, match=r"log\.audit is empty"):
        load(None, {"STREAMD_LOG_AUDIT": ""}, {})


# -- client certificates --

TLS = """
[server]
tls_cert = "cert.pem"
tls_key = "key.pem"
tls_client_ca = "clients.pem"
"""
ENTRY = '[[auth.certificates]]\ncommon_name = "ci"\nscopes = ["read:a/*"]\n'


def test_certificates_of_clients_are_listed_with_their_scopes(tmp_path: Path) -> None:
    more = '[[auth.certificates]]\nuri = "spiffe://x/ops"\nscopes = ["admin:*"]\n'
    config = load(_file(tmp_path, TLS + ENTRY + more), {}, {})
    assert config.server.tls_client_auth == "optional"
    assert [list(entry.names()) for entry in config.auth.certificates] == [
        [("common_name", "ci")],
        [("uri", "spiffe://x/ops")],
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ENTRY, "auth.certificates need server.tls_client_ca"),
        ('[server]\ntls_client_ca = "ca.pem"', "server.tls_client_ca needs server.tls_cert"),
        ('[server]\ntls_client_auth = "required"', "needs server.tls_client_ca"),
        ('[server]\ntls_client_auth = "maybe"', "server.tls_client_auth"),
        (TLS + '[[auth.certificates]]\nscopes = ["read:*"]', "exactly one of subject, common_name"),
        (TLS + ENTRY + 'dns = "ci"', "exactly one of"),
        (TLS + ENTRY.replace("read:a/*", "read:a"), "common_name 'ci': scopes: 'read:a'"),
        (TLS + ENTRY.replace('"read:a/*"', ""), "common_name 'ci': scopes: "),
        (TLS + ENTRY.replace("common_name", "dns").replace("ci", "*.x"), "dns '\\*.x': it is not"),
        (TLS + ENTRY + 'ou = "x"', "unknown key"),
        (TLS + '[[auth.certificates]]\ncommon_name = "ci"', "scopes"),
    ],
)
def test_entries_that_no_certificate_could_have_are_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(_file(tmp_path, text), {}, {})
