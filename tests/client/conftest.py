"""One server for all tests of a module that only talk to it, and its clients of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from streamd.client import Client
from tests.client.drivers import KINDS, connected
from tests.client.running import Shell
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def streamd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    data_dir: Path = tmp_path_factory.mktemp("server") / "data"
    with ServerProcess(data_dir) as server:
        yield Shell(server.url)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Client]:
    with connected(request.param, server.url) as client:
        yield client
