"""What tests of HTTP share."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.http.pki import Pki, make_pki
from tests.jepsen_like.cluster_processes import ClusterProcesses
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return make_pki(tmp_path_factory.mktemp("pki"))


_PLACES = ("HTTP/1.1", pytest.param("HTTP/2", marks=pytest.mark.long), "cluster")


@pytest.fixture(scope="session", params=_PLACES)
def place(request: pytest.FixtureRequest) -> str:
    """The servers under test: a single node in either version of HTTP, or the nodes of a
    cluster."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def urls(place: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URLs of all nodes, separated by commas. Tests share them, so each uses its own
    streams."""
    directory = tmp_path_factory.mktemp("urls")
    environment = {"STREAMD_SERVER_ALLOWED_HOSTS": "streams.example.org"}
    if place == "cluster":
        with ClusterProcesses(directory, environment=environment, proxied=False) as cluster:
            yield ",".join(node.url for node in cluster.nodes.values())
        return
    flags = ["--http", "hypercorn"] if place == "HTTP/2" else []
    with ServerProcess(directory / "data", flags=flags, environment=environment) as process:
        yield process.url


@pytest.fixture
def client(place: str) -> Iterator[httpx.Client]:
    """A client of `urls` in the version of HTTP under test."""
    version = "HTTP/2" if place == "HTTP/2" else "HTTP/1.1"

    def was_spoken(response: httpx.Response) -> None:
        assert response.http_version == version

    with httpx.Client(
        http1=version == "HTTP/1.1",
        http2=version == "HTTP/2",
        timeout=20.0,
        event_hooks={"response": [was_spoken]},
    ) as client:
        yield client
