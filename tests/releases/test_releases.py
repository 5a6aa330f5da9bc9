"""Data of earlier releases opens, and the node continues."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.releases.record import CONFIG, HERE, PRODUCER, content_of, recorded_cluster
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

CLUSTERS = sorted(file.name.removesuffix(".cluster.json") for file in HERE.glob("*.cluster.json"))
RELEASES = sorted({file.name.partition(".")[0] for file in HERE.glob("*.json")})


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def data(tmp_path: Path, release: str) -> Path:
    """The data directory that a server of the release left when it was killed."""
    with tarfile.open(HERE / f"{release}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "data"


@pytest.fixture
def told(release: str) -> dict[str, dict[str, Any]]:
    """The content of the streams as that server answered it."""
    content: dict[str, dict[str, Any]] = json.loads((HERE / f"{release}.json").read_text())
    return content


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "streamd.toml"
    file.write_text(CONFIG)
    return file


@pytest.fixture
def client(data: Path, config: Path) -> Iterator[httpx.Client]:
    with (
        ServerProcess(data, flags=("--config", str(config))) as server,
        httpx.Client(base_url=server.url, timeout=60) as opened,
    ):
        yield opened


def streamd(*arguments: str) -> str:
    command = [sys.executable, "-m", "streamd", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_recorded_releases_exist() -> None:
    assert RELEASES
    assert CLUSTERS


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_recorded_cluster_starts_and_continues(tmp_path: Path, name: str) -> None:
    """Its logs hold packages of followers, its states the sessions they were sent in."""
    with tarfile.open(HERE / f"{name}.cluster.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    told = json.loads((HERE / f"{name}.cluster.json").read_text())
    with recorded_cluster(tmp_path) as cluster:
        for node in cluster.nodes.values():
            with httpx.Client(base_url=node.url, timeout=60) as client:
                assert {stream: content_of(client, stream) for stream in told} == told
                for stream in told:
                    answer = client.post(
                        f"/{stream}", content="more", headers={"Content-Type": "text/plain"}
                    )
                    assert answer.status_code == 204
                now = {stream: content_of(client, stream) for stream in told}
            assert [now[stream]["size"] - told[stream]["size"] for stream in told] == [4, 4]
            told = now


def test_every_stream_has_its_recorded_content(
    client: httpx.Client, told: dict[str, dict[str, Any]]
) -> None:
    assert {stream: content_of(client, stream) for stream in told} == told


def test_every_stream_continues_at_its_tail(
    client: httpx.Client, told: dict[str, dict[str, Any]]
) -> None:
    for stream in ("demo/text", "demo/fork", "other/window"):
        answer = client.post(f"/{stream}", content="more", headers={"Content-Type": "text/plain"})
        assert answer.status_code == 204
        assert content_of(client, stream)["size"] == told[stream]["size"] + 4


def test_a_producers_retry_is_still_recognised(
    client: httpx.Client, told: dict[str, dict[str, Any]]
) -> None:
    headers = {"Content-Type": "text/plain", **PRODUCER, "Producer-Seq": "2"}
    assert client.post("/demo/producer", content="<2>", headers=headers).status_code == 204
    assert content_of(client, "demo/producer") == told["demo/producer"]
    headers["Producer-Seq"] = "3"
    assert client.post("/demo/producer", content="<3>", headers=headers).status_code == 200
    assert content_of(client, "demo/producer")["size"] == told["demo/producer"]["size"] + 3


def test_its_cold_store_is_whole_and_can_be_restored(
    tmp_path: Path, data: Path, config: Path, told: dict[str, dict[str, Any]]
) -> None:
    """The rounds that the server wrote after its last archived entry may be missing."""
    cold = tmp_path / "store"
    os.rename(data / "cold", cold)
    verified = json.loads(streamd("backup", "verify", "--from", f"fs:{cold}", "--json"))
    assert [cluster["problems"] for cluster in verified] == [[]]
    config.write_text(CONFIG + f'fs_path = "{cold}"\n')
    restored = tmp_path / "restored"
    streamd(
        "restore", "--from", f"fs:{cold}", "--no-fence", "--data-dir", str(restored),
        "--config", str(config),
    )  # fmt: skip
    with (
        ServerProcess(restored, flags=("--config", str(config))) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        for stream in ("demo/closed", "demo/producer", "demo/fork", "demo/gone"):
            assert content_of(client, stream) == told[stream]
        assert 0 < content_of(client, "demo/text")["size"] <= told["demo/text"]["size"]
