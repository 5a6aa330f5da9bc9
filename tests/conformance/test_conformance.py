"""The upstream conformance suite, run whole against a real server process."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.http.authorized import ROOT
from tests.http.pki import make_pki
from tests.jepsen_like.cluster_processes import ClusterProcesses
from tests.support.server_process import ServerProcess
from tests.support.tools import node_or_skip

HERE = Path(__file__).parent
SUITE = 338
# The time limit of one test, unless it sets its own: HTTP/2 takes several times as long.
TEST_TIMEOUT = "--testTimeout=60000"
SETTINGS = {
    "STREAMD_SERVER_LONG_POLL_TIMEOUT_MS": "2000",
    # The receivers of webhooks are on this machine.
    "STREAMD_SUBSCRIPTIONS_ALLOW_LOCAL_HTTP": "true",
}


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("version", "workers"),
    # Each run takes most of a minute, mostly of waiting; these four have each pair that differs.
    [
        ("HTTP/1.1", 1),
        pytest.param("HTTP/1.1", 2, marks=pytest.mark.long),
        pytest.param("HTTP/2", 1, marks=pytest.mark.long),
        pytest.param("HTTP/1.1 with a token", 2, marks=pytest.mark.long),
    ],
)
def test_the_upstream_suite_passes(version: str, workers: int, tmp_path: Path) -> None:
    environment = {**SETTINGS, "STREAMD_SERVER_WORKERS": str(workers)}
    if version.endswith("token"):
        environment |= {"STREAMD_AUTH_MODE": "required", "STREAMD_ROOT_TOKEN": ROOT}
    if version == "HTTP/2":
        pki = make_pki(tmp_path)
        environment |= {
            "STREAMD_SERVER_HTTP": "hypercorn",
            "STREAMD_SERVER_TLS_CERT": str(pki.certificate),
            "STREAMD_SERVER_TLS_KEY": str(pki.key),
        }
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        run_suite(server.url, tmp_path, environment.get("STREAMD_ROOT_TOKEN", ""))


@pytest.mark.conformance
@pytest.mark.long
def test_the_upstream_suite_passes_through_a_follower(tmp_path: Path) -> None:
    environment = {**SETTINGS, "STREAMD_AUTH_MODE": "required", "STREAMD_ROOT_TOKEN": ROOT}
    cluster = ClusterProcesses(tmp_path, environment=environment, proxied=False)
    follower = cluster.nodes[2]
    for node in cluster.nodes.values():
        # The leader calls webhooks, and their receivers call back at the follower.
        node.environment["STREAMD_SUBSCRIPTIONS_CALLBACK_URL"] = follower.url
    with cluster:
        if cluster.leader() is follower:
            assert follower.post("/cluster/transfer", {"node_id": 1})[0] == 200
        run_suite(follower.url, tmp_path, ROOT)


def run_suite(url: str, directory: Path, token: str) -> None:
    """Run all of it against the server at a URL, with a token if that is not empty."""
    node_or_skip()
    report = directory / "report.json"
    run = subprocess.run(
        ["npx", "vitest", "run", "--reporter=json", f"--outputFile={report}", TEST_TIMEOUT],
        cwd=HERE,
        env={**os.environ, "STREAMD_TEST_URL": url, "STREAMD_TEST_TOKEN": token},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert report.exists(), run.stderr
    result = json.loads(report.read_text())
    failed = [
        f"{case['fullName']}: {_reason(case['failureMessages'][0])}"
        for file in result["testResults"]
        for case in file["assertionResults"]
        if case["status"] == "failed"
    ]
    assert not failed, "\n\n".join(failed)
    assert result["numPassedTests"] >= SUITE


def _reason(message: str) -> str:
    """Why a case failed; for a time-out vitest's report has only a placeholder."""
    if "STACK_TRACE_ERROR" in message:
        return f"time-out of the suite's own, not a wrong answer\n{message}"
    return message
