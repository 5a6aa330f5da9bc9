"""Nodes whose store accepts a request and never answers: they start, fail and stop without it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.crash.strace import injecting, needs_strace
from tests.objectstore.nodes.ledger import Ledger
from tests.objectstore.nodes.running import cold_environment, wait_until
from tests.support.minio import MinioServer
from tests.support.s3_proxy import Fault, S3Proxy
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

# Long enough to show which node has waited for it.
TIMEOUT_MS = 20_000
PROMPT_S = 8.0


@pytest.fixture
def environment(minio: MinioServer, bucket: str, proxy: S3Proxy) -> dict[str, str]:
    return cold_environment(minio, bucket, proxy.endpoint, timeout_ms=TIMEOUT_MS)


def hang(server: ServerProcess, proxy: S3Proxy) -> Ledger:
    """Stop the store from answering, and wait until the node waits for it."""
    ledger = Ledger()
    proxy.fail_all(Fault.LATE)
    ledger.write(server.port, 5)
    wait_until(lambda: proxy.done[Fault.LATE] >= 2, "requests are under way")
    return ledger


@needs_strace
def test_a_failing_disk_stops_a_node_at_once_though_its_store_hangs(
    environment: dict[str, str], proxy: S3Proxy, tmp_path: Path
) -> None:
    wrapper = injecting("fdatasync", "error=EIO", "100+", tmp_path / "trace")
    node = ServerProcess(tmp_path / "data", environment=environment, wrapper=wrapper)
    with node as server:
        ledger = hang(server, proxy)
        ledger.write(server.port, 1_000)
        began = time.monotonic()
        assert server.wait() == 1
        assert time.monotonic() - began < PROMPT_S
    assert "Input/output error" in server.output
    assert 0 < ledger.counts["acknowledged"] < 1_000
    with ServerProcess(tmp_path / "data") as repaired:
        ledger.verify(repaired.port)


def test_a_node_whose_store_hangs_stops_on_a_signal(
    environment: dict[str, str], proxy: S3Proxy, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        hang(server, proxy)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < PROMPT_S
    assert "Traceback" not in server.output


def test_a_hung_store_delays_the_start_by_one_time_limit_and_is_named(
    minio: MinioServer, bucket: str, proxy: S3Proxy, tmp_path: Path
) -> None:
    limit_s = 8
    environment = cold_environment(minio, bucket, proxy.endpoint, timeout_ms=limit_s * 1000)
    began = time.monotonic()
    with ServerProcess(tmp_path / "usual", environment=environment):
        usual_s = time.monotonic() - began
    proxy.fail_all(Fault.LATE)
    began = time.monotonic()
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        # A busy machine is slow in both.
        assert time.monotonic() - began < 2 * limit_s + 2 * usual_s
        proxy.heal()
        ledger = Ledger()
        ledger.write(server.port, 5)
        ledger.verify(server.port)
        assert server.stop() == 0
    assert f"cannot be written: not within {limit_s} s" in server.output
