"""Clusters of three real processes, for one test or for several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jepsen_like.cluster_processes import ClusterProcesses


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    """A fresh cluster, for a test that changes it permanently."""
    with ClusterProcesses(tmp_path) as cluster:
        yield cluster
        # Shown only for a failed test, as part of its output.
        cluster.show_logs()


@pytest.fixture(scope="module")
def _kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("kept")) as cluster:
        yield cluster


@pytest.fixture
def kept(_kept: ClusterProcesses) -> Iterator[ClusterProcesses]:
    """A cluster that several tests use one after the other: each has all nodes run again."""
    _kept.links.heal()
    _kept.links.counts.clear()
    for node in _kept.nodes.values():
        if not node.is_alive:
            node.start()
    _kept.wait_ready()
    yield _kept
    _kept.show_logs()
