"""One server for all tests of a module that only talk to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.running import Shell
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def streamd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    data_dir: Path = tmp_path_factory.mktemp("server") / "data"
    with ServerProcess(data_dir) as server:
        yield Shell(server.url)
