"""A cluster as Compose or the chart declares it, of processes instead of containers.

The settings are the declared ones, except for what belongs to the network, the files and the
secrets of containers: the test's own take their place.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from streamd.auth.tokens import SECRET_BYTES, mint
from tests.packaging.installed import ROOT, InstalledServer, output
from tests.support.minio import MinioServer
from tests.support.ports import unused_port

CONTAINERFILE = ROOT / "packaging" / "container" / "Containerfile"
_PROGRAM = Path(sys.executable).with_name("streamd")
# Ports in a container: for clients, and for peers.
_HTTP, _PEERS = "4437", "4438"


def image_settings() -> dict[str, str]:
    """The settings that the image has."""
    return dict(re.findall(r"(STREAMD_\w+)=(\S+)", CONTAINERFILE.read_text()))


def nodes(
    declared: Mapping[str, dict[str, str]], store: MinioServer, directory: Path
) -> list[InstalledServer]:
    """Nodes, not started yet, with the settings that are declared for each host."""
    ports = {f"{host}:{port}": unused_port() for host in declared for port in (_HTTP, _PEERS)}
    secret = directory / "secret"
    secret.touch(0o600)
    secret.write_text(secrets.token_hex(32))
    own = {
        "STREAMD_ROOT_TOKEN": mint(1, secrets.token_bytes(SECRET_BYTES)),
        "STREAMD_CLUSTER_SECRET_FILE": str(secret),
        "STREAMD_COLD_S3_ENDPOINT": store.endpoint,
        "STREAMD_COLD_S3_ACCESS_KEY_ID": store.access_key_id,
        "STREAMD_COLD_S3_SECRET_ACCESS_KEY": store.secret_access_key,
    }
    made = []
    for host, settings in declared.items():
        assert own.keys() <= settings.keys()
        here = {f"0.0.0.0:{port}": ports[f"{host}:{port}"] for port in (_HTTP, _PEERS)} | ports
        values = {name: _moved(value, here) for name, value in (settings | own).items()}
        port = ports[f"{host}:{_HTTP}"]
        made.append(InstalledServer([_PROGRAM], directory / host, variables=values, port=port))
    return made


def _moved(value: str, ports: Mapping[str, int]) -> str:
    for address, port in ports.items():
        value = value.replace(address, f"127.0.0.1:{port}")
    return value


def command(node: InstalledServer, *words: str, given: str = "") -> str:
    """What a command prints that has the node's address and root token."""
    variables = {"STREAMD_URL": node.url, "STREAMD_TOKEN": node.variables["STREAMD_ROOT_TOKEN"]}
    return output(_PROGRAM, *words, cwd=node.data_dir.parent, given=given, **variables)


def serve_and_archive(cluster: list[InstalledServer], store: MinioServer, bucket: str) -> None:
    """Start the nodes, write by one, read by another, and see that the store gets something."""
    store.client().make_bucket(bucket)
    for node in cluster:
        node.start()
    for node in cluster:
        node.wait_ready()
    first, second, third = cluster
    command(first, "cluster", "wait-ready")
    command(first, "create", "demo/hello")
    command(second, "append", "demo/hello", given="hi\n")
    assert command(third, "read", "demo/hello") == "hi\n"

    def stored() -> bool:
        return any(True for _ in store.client().list_objects(bucket, recursive=True))

    first.await_alive(stored, "archiving")
