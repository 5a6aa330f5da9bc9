"""Real nodes break, and a real Prometheus that scrapes them fires the alert for each fault, and
none while nothing is broken. Its rules are the ones for operators, with shorter time spans."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import trustme
import yaml

from tests.crash.strace import injecting, needs_strace
from tests.jepsen_like.cluster_processes import (
    ClusterProcesses,
    NodeProcess,
    status_of,
    wait_until,
)
from tests.monitoring.rules import write_faster
from tests.objectstore.nodes.running import cold_environment
from tests.support.minio import MinioServer, minio_or_skip
from tests.support.mounts import needs_root, tmpfs
from tests.support.prometheus import PrometheusServer, prometheus_or_skip
from tests.support.server_process import ServerProcess

pytestmark = [pytest.mark.long, needs_root, needs_strace]

# A minute of the rules takes 1.5 s here.
FASTER = 40
# They measure the machine, which other tests keep busy.
OF_THE_MACHINE = {"StreamdDiskSlow", "StreamdLoopLate", "StreamdGcPauses"}
# One a second: an hour of the rules' time.
QUIET_SAMPLES = 90
PATIENCE_S = 60.0
_DISK = "256m"
_PAUSE_S = 0.05


class Fired(NamedTuple):
    """An alert and the target it is for, which is empty for an alert of the cluster."""

    alert: str
    instance: str


class Load:
    """Small appends to each node in turn, some twenty a second, whatever is answered."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        number = 0
        while not self._ended.wait(_PAUSE_S):
            number += 1
            port = self._ports[number % len(self._ports)]
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
            with suppress(OSError, http.client.HTTPException):
                method = "PUT" if number <= len(self._ports) else "POST"
                headers = {"Content-Type": "text/plain"}
                connection.request(method, "/v1/stream/load/one", "x" * 1000, headers)
                connection.getresponse().read()
            connection.close()


class Watched:
    """A cluster over a MinIO, its disks small file systems; a node of its own with TLS; and the
    Prometheus that scrapes them."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        programs, executable = prometheus_or_skip(), minio_or_skip()
        self.minio = stack.enter_context(MinioServer(executable, directory / "minio" / "data"))
        self.minio.client().make_bucket("watched")
        environment = cold_environment(
            self.minio, "watched", self.minio.endpoint, gc_interval_ms=5000,
            snapshot_interval_minutes=1, archive_retention_hours=1,
        )  # fmt: skip
        self.cluster = ClusterProcesses(directory, environment=environment)
        for node in self.cluster.nodes.values():
            stack.enter_context(tmpfs(node.data_dir, _DISK))
        stack.enter_context(self.cluster)
        self._authority = trustme.CA()
        self._certificate, self._key = directory / "cert.pem", directory / "key.pem"
        self.renew(timedelta(days=90))
        tls = {
            "STREAMD_SERVER_TLS_CERT": str(self._certificate),
            "STREAMD_SERVER_TLS_KEY": str(self._key),
        }
        self.lone = stack.enter_context(ServerProcess(directory / "lone", environment=tls))
        configuration = directory / "prometheus.yml"
        configuration.write_text(self._configuration(directory))
        self._prometheus = stack.enter_context(PrometheusServer(programs, configuration))
        self._prometheus.await_alive(lambda: bool(self._ask("up")), "scraping")
        ports = [node.client_port for node in self.cluster.nodes.values()]
        stack.enter_context(Load(ports))

    def _configuration(self, directory: Path) -> str:
        nodes = [_instance(node) for node in self.cluster.nodes.values()]
        lone = f"127.0.0.1:{self.lone.port}"
        found = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "rule_files": [str(path) for path in write_faster(directory, FASTER)],
            "scrape_configs": [
                {
                    "job_name": "streamd",
                    "static_configs": [{"targets": nodes, "labels": {"cluster": "three"}}],
                },
                {
                    "job_name": "lone",
                    "scheme": "https",
                    "tls_config": {"insecure_skip_verify": True},
                    "static_configs": [
                        {"targets": [lone], "labels": {"cluster": "lone", "job": "streamd"}}
                    ],
                },
            ],
        }
        return str(yaml.safe_dump(found))

    def renew(self, life: timedelta) -> None:
        """Put a certificate into the place of the one before it."""
        issued = self._authority.issue_cert("127.0.0.1", not_after=datetime.now(UTC) + life)
        issued.private_key_pem.write_to_path(str(self._key))
        issued.cert_chain_pems[0].write_to_path(str(self._certificate))

    def firing(self, over: str = "") -> set[Fired]:
        """What fires now, or has fired within a time such as ``[30s]``."""
        expression = 'ALERTS{alertstate="firing"}'
        found = self._ask(f"max_over_time({expression}{over})" if over else expression)
        return {Fired(one["alertname"], one.get("instance", "")) for one in found}

    def wait_firing(self, *expected: Fired) -> None:
        """Wait until all of these fire at once."""
        with self._shown():
            wait_until(lambda: set(expected) <= self.firing(), f"{expected} fire", PATIENCE_S)

    def wait_over(self, *alerts: str) -> None:
        """Wait until none of these alerts fires, for any node."""

        def is_over() -> bool:
            return not {one.alert for one in self.firing()} & set(alerts)

        with self._shown():
            wait_until(is_over, f"{alerts} are over", PATIENCE_S)

    def wait_samples(self, count: int) -> None:
        """Wait until each target was scraped so often."""

        def has_samples() -> bool:
            return bool(self._ask(f"min(count_over_time(streamd_ready[10m])) >= {count}"))

        wait_until(has_samples, f"{count} samples", PATIENCE_S + count)

    def _ask(self, expression: str) -> list[dict[str, str]]:
        url = f"http://127.0.0.1:{self._prometheus.port}/api/v1/query?query={quote(expression)}"
        try:
            with urlopen(url, timeout=10) as response:
                found: dict[str, Any] = json.load(response)
        except OSError:  # it does not serve yet
            return []
        return [one["metric"] for one in found["data"]["result"]]

    def _shown(self) -> ExitStack:
        """Prints what fires if the block fails."""
        stack = ExitStack()
        stack.push(lambda kind, *_: print("firing:", sorted(self.firing())) if kind else None)
        return stack


def _instance(node: NodeProcess) -> str:
    return f"127.0.0.1:{node.client_port}"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with ExitStack() as stack:
        yield Watched(tmp_path_factory.mktemp("watched"), stack)


def test_nothing_fires_in_quiet_load(watched: Watched) -> None:
    """The first of these tests, so that nothing is left of faults."""
    watched.wait_samples(QUIET_SAMPLES)
    fired = {one for one in watched.firing("[10m]") if one.alert not in OF_THE_MACHINE}
    assert not fired


def test_a_node_that_was_killed(watched: Watched) -> None:
    node = watched.cluster.followers(watched.cluster.leader())[0]
    node.kill()
    leader = _instance(watched.cluster.leader(but=node.node_id))
    watched.wait_firing(
        Fired("StreamdNodeDown", _instance(node)),
        Fired("StreamdPeerSilent", leader),
        Fired("StreamdPeerDisconnected", leader),
    )
    node.start()
    watched.cluster.wait_ready()
    watched.wait_over("StreamdNodeDown", "StreamdPeerSilent", "StreamdPeerDisconnected")
    assert Fired("StreamdNodeDown", _instance(node)) in watched.firing("[1m]")


def test_a_link_that_is_cut(watched: Watched) -> None:
    leader = watched.cluster.leader()
    other = watched.cluster.followers(leader)[0]
    watched.cluster.links.cut_both_ways(leader.node_id, other.node_id)
    watched.wait_firing(
        Fired("StreamdPeerSilent", _instance(leader)),
        Fired("StreamdNodeNotReady", _instance(other)),
    )
    watched.cluster.links.heal()
    watched.cluster.wait_ready()
    watched.wait_over("StreamdPeerSilent", "StreamdNodeNotReady")


def test_a_majority_that_was_lost(watched: Watched) -> None:
    followers = watched.cluster.followers(watched.cluster.leader())
    for node in followers:
        node.kill()
    watched.wait_firing(Fired("StreamdNoLeader", ""))
    for node in followers:
        node.start()
    watched.cluster.wait_ready()
    watched.wait_over("StreamdNoLeader")


def test_a_disk_that_is_nearly_full(watched: Watched) -> None:
    node = watched.cluster.leader()
    disk = status_of(node)["disk"]
    ballast = node.data_dir / "ballast"
    # A quarter of the reserve is taken; without the rest the node would end.
    ballast.write_bytes(bytes(disk["free_bytes"] - disk["min_free_bytes"] * 3 // 4))
    watched.wait_firing(Fired("StreamdDiskLow", _instance(node)))
    ballast.unlink()
    watched.wait_over("StreamdDiskLow")


def test_a_slow_disk_and_a_certificate_that_expires_soon(watched: Watched, tmp_path: Path) -> None:
    """At the same time, on two clusters."""
    node = watched.cluster.followers(watched.cluster.leader())[0]
    assert node.stop() == 0
    node.start(injecting("fdatasync", "delay_enter=300000", "1+", tmp_path / "trace"))
    watched.renew(timedelta(days=2))
    lone = f"127.0.0.1:{watched.lone.port}"
    watched.wait_firing(
        Fired("StreamdDiskSlow", _instance(node)),
        Fired("StreamdCertificateExpires", lone),
        Fired("StreamdCertificateExpiresSoon", lone),
    )
    watched.renew(timedelta(days=90))
    node.kill()
    node.start()
    watched.cluster.wait_ready()
    watched.wait_over("StreamdCertificateExpires", "StreamdCertificateExpiresSoon")


def test_a_store_that_is_away(watched: Watched) -> None:
    watched.minio.kill()
    leader = _instance(watched.cluster.leader())
    watched.wait_firing(
        Fired("StreamdColdStoreAway", leader), Fired("StreamdColdTaskFails", leader)
    )
    watched.minio.start()
    watched.wait_over("StreamdColdStoreAway", "StreamdColdTaskFails")
