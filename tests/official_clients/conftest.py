"""One server for the tests of a module that leave it running, or start it again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        yield server
