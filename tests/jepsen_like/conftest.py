"""A fresh cluster of three real processes for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jepsen_like.cluster_processes import ClusterProcesses


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path) as cluster:
        yield cluster
        # Shown only for a test that failed, to which this belongs like all it prints.
        cluster.show_logs()
