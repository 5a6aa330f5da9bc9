"""One server for all tests of a file, and a stream for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.state_db.chat import BACKENDS, Stream
from tests.support.server_process import ServerProcess


@pytest.fixture(name="server", scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(name="stream")
def _stream(server: ServerProcess, request: pytest.FixtureRequest) -> Stream:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return Stream(server.url, f"state/{name}")


@pytest.fixture(name="backend", params=BACKENDS)
def _backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)
