"""``streamd config check``: the configuration as `serve` would read it, without a start."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import click

from streamd.app import identity_provider, listed_certificates, peer_credentials, peer_tls
from streamd.backup.publishing import open_targets
from streamd.commands.node_options import Flags, node_options
from streamd.commands.options import json_option
from streamd.config.loading import load
from streamd.config.names import injected_variables
from streamd.config.redacted import without_secrets
from streamd.config.settings import Config, ConfigError, split_address
from streamd.hosts.commands import programs_of
from streamd.hosts.inspection.files import secret_files
from streamd.http.door.listeners import server_tls
from streamd.objectstore.errors import ColdError
from streamd.process.addresses import is_loopback
from streamd.process.exits import EXIT_REFUSED
from streamd.process.privacy import is_open_to_others
from streamd.process.threads import in_thread
from streamd.tiering.async_store import open_object_store

_BARE = re.compile(r"[A-Za-z0-9_-]+")


@click.group()
def config() -> None:
    """Check the configuration of a node."""


@config.command()
@node_options
@json_option
def check(file: Path | None, flags: Flags, as_json: bool) -> None:
    """Read the configuration as `serve` would, check it, and print it without its secrets.

    Nothing is started, created, bound or asked. Exits with 1 if a node could not start so.
    """
    found: Config | None = None
    try:
        found = load(file, os.environ, flags)
        faults = list(faults_of(found))
    except ConfigError as error:
        faults = [str(error)]
    warnings = [] if found is None else [*_open_files(found), *warnings_of(found)]
    effective = None if found is None else without_secrets(found)
    if as_json:
        told = {"ok": not faults, "errors": faults, "warnings": warnings, "config": effective}
        print(json.dumps(told, indent=2))
    else:
        for kind, texts in (("error", faults), ("warning", warnings)):
            for text in texts:
                print(f"{kind}: {text}", file=sys.stderr)
        if effective is not None:
            print("\n".join(_toml(effective, "")))
        if not faults:
            print("# A node can start with this configuration.")
    if faults:
        sys.exit(EXIT_REFUSED)


def faults_of(config: Config) -> Iterator[str]:
    """Why a node could not start, as far as files and addresses tell."""
    data_dir = Path(config.server.data_dir)
    admin = config.admin_server
    checks: list[Callable[[], object]] = [
        lambda: server_tls(config.server),
        lambda: admin and server_tls(admin),
        lambda: config.cluster.name and peer_tls(config.cluster),
        lambda: config.cluster.name and peer_credentials(config.cluster),
        lambda: identity_provider(config, Random()),
        lambda: listed_certificates(config),
        lambda: config.cold.backend != "none" and open_object_store(config.cold, data_dir),
        lambda: _check_authorities(config.cold.s3_ca),
        lambda: open_targets(config.heads, config.cold, in_thread),
        *(_resolves(key, address) for key, address in listeners_of(config).items()),
    ]
    for one in checks:
        try:
            one()
        except (ConfigError, ColdError, OSError) as error:
            yield str(error)
    yield from _shared_ports(config)
    yield from _unusable("server.data_dir", data_dir)
    if config.cold.backend == "fs" and config.cold.fs_path is not None:
        yield from _unusable("cold.fs_path", Path(config.cold.fs_path))
    if config.log.audit is not None and config.log.audit_stream is None:
        yield from _unusable("log.audit", Path(config.log.audit), is_file=True)


def _check_authorities(file: str | None) -> None:
    """Raises `ConfigError` for a file that has no certificates of authorities."""
    try:
        if file is not None:
            ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cold.s3_ca: {file}: {error}") from None


def listeners_of(config: Config) -> dict[str, str]:
    """The addresses at which a node listens, by the configuration's keys."""
    found = {"server.listen": config.server.listen}
    if config.admin.listen is not None:
        found["admin.listen"] = config.admin.listen
    if config.cluster.name is not None:
        found["cluster.listen"] = config.cluster.listen
    return found


def _resolves(key: str, address: str) -> Callable[[], None]:
    def resolve() -> None:
        host, port = split_address(key, address)
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise ConfigError(
                f"{key}: {host} is not an address of this machine: {error.strerror}"
            ) from None

    return resolve


def _shared_ports(config: Config) -> Iterator[str]:
    seen: dict[tuple[str, int], str] = {}
    for key, listen in listeners_of(config).items():
        address = split_address(key, listen)
        if address[1] and address in seen:
            yield f"{key}: {listen} is also the address of {seen[address]}"
        seen[address] = key


def _unusable(key: str, path: Path, *, is_file: bool = False) -> Iterator[str]:
    """Why the process could not write there; the start creates what does not exist."""
    if path.exists() and path.is_dir() == is_file:
        yield f"{key}: {path} is {'a' if is_file else 'not a'} directory"
        return
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() and existing != path.absolute():
        yield f"{key}: {existing} is not a directory"
    elif not os.access(existing, os.W_OK | (os.X_OK if existing.is_dir() else 0)):
        yield f"{key}: {existing} is not writable for this user"


def _open_files(config: Config) -> Iterator[str]:
    """Files with secrets that other users of the machine may read."""
    for key, file in secret_files(config).items():
        if file.exists() and is_open_to_others(file):
            yield f"{key}: {file} is readable by other users of this machine: run chmod go= on it"


def warnings_of(config: Config) -> Iterator[str]:
    """What a node would start with nevertheless, besides the modes of its files."""
    server, cluster = config.server, config.cluster
    if cluster.insecure:
        yield "cluster.insecure: anyone who reaches the peers' port can act as any node"
    if config.auth.mode == "none" and not is_loopback(server.listen_address[0]):
        yield "auth.mode = none: anyone who reaches the port may read, write and delete everything"
    for key, program in programs_of(config.supervisor).items():
        if shutil.which(program) is None:
            yield f"supervisor.{key}: {program} is not a program of this machine"
    for name in injected_variables(os.environ):
        yield f"the environment: {name} is ignored: Kubernetes has set it for a service"


def _toml(values: dict[str, Any], section: str) -> Iterator[str]:
    """The values as a file would have them; keys without a value are left out."""
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    for key, value in values.items():
        if value is not None and key not in tables:
            yield f"{_key(key)} = {_inline(value)}"
    for key, value in tables.items():
        yield f"\n[{section}{_key(key)}]"
        yield from _toml(value, f"{section}{_key(key)}.")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{_key(key)} = {_inline(one)}" for key, one in value.items() if one is not None)
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    return json.dumps(value, ensure_ascii=False)
