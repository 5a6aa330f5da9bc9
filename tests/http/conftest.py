"""What tests of HTTP share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.http.pki import Pki, make_pki
from tests.jepsen_like.cluster_processes import ClusterProcesses
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return make_pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="session", params=["front door", "hypercorn", "cluster"])
def urls(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """All places that clients may ask, separated by commas: either HTTP stack, or every node of a
    cluster. Tests share them, so each uses streams of its own."""
    directory = tmp_path_factory.mktemp("urls")
    if request.param == "cluster":
        with ClusterProcesses(directory, proxied=False) as cluster:
            yield ",".join(node.url for node in cluster.nodes.values())
        return
    flags = ["--http", "hypercorn"] if request.param == "hypercorn" else []
    with ServerProcess(directory / "data", flags=flags) as process:
        yield process.url
