"""The image and the cluster of Compose: what their files say is valid, and makes servers."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging.declared import CONTAINERFILE, image_settings, nodes, serve_and_archive
from tests.packaging.installed import output
from tests.support.minio import MinioServer
from tests.support.tools import BUILDING, needs

pytestmark = [pytest.mark.long, needs(BUILDING, find_spec("check_jsonschema") is not None)]

COMPOSE = CONTAINERFILE.with_name("compose.yaml")
TOOLS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """What Compose reads, with its aliases resolved."""
    read: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return read


def test_the_linter_has_nothing_to_say_about_the_image(tmp_path: Path) -> None:
    assert output(TOOLS / "hadolint", CONTAINERFILE, cwd=tmp_path) == ""


def test_compose_accepts_the_file(tmp_path: Path) -> None:
    schema = "--builtin-schema=vendor.compose-spec"
    output(TOOLS / "check-jsonschema", schema, COMPOSE, cwd=tmp_path)


def test_the_nodes_of_compose_cannot_write_but_to_their_volumes(services: dict[str, Any]) -> None:
    for name in ("node1", "node2", "node3"):
        node = services[name]
        assert node["read_only"]
        assert node["cap_drop"] == ["ALL"]
        assert node["volumes"] == [
            f"{name}:{image_settings()['STREAMD_SERVER_DATA_DIR']}",
            "secret:/run/streamd:ro",
        ]


def test_the_nodes_of_compose_form_a_cluster_with_its_store(
    services: dict[str, Any], store: MinioServer, tmp_path: Path
) -> None:
    declared = {
        name: {**image_settings(), **service["environment"]}
        for name, service in services.items()
        if name.startswith("node")
    }
    bucket = declared["node1"]["STREAMD_COLD_S3_BUCKET"]
    assert f"mb --ignore-existing store/{bucket}" in services["bucket"]["command"][0]
    with ExitStack() as running:
        cluster = nodes(declared, store, tmp_path)
        for node in cluster:
            running.callback(node.kill)
        serve_and_archive(cluster, store, bucket)


def test_the_secret_of_compose_is_made_once_and_is_the_nodes_alone(
    services: dict[str, Any], tmp_path: Path
) -> None:
    (script,) = services["secret"]["command"]
    # Only root may give files to another user.
    script = script.replace("/run/streamd", str(tmp_path)).partition("; chown")[0]
    variables = {"PATH": f"{TOOLS}:/usr/bin:/bin"}
    output("sh", "-c", script, cwd=tmp_path, **variables)
    secret = tmp_path / "peers"
    before = secret.read_text()
    assert len(before.strip()) == 64
    assert secret.stat().st_mode & 0o077 == 0
    output("sh", "-c", script, cwd=tmp_path, **variables)
    assert secret.read_text() == before
