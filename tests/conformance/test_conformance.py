"""The upstream conformance suite, run whole against a real server process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess

HERE = Path(__file__).parent
BASE_SUITE = 332


@pytest.mark.conformance
@pytest.mark.parametrize("stack", ["front-door", "hypercorn"])
def test_the_upstream_suite_passes(stack: str, tmp_path: Path) -> None:
    assert shutil.which("npx"), "the conformance suite needs Node 20 or newer"
    report = tmp_path / "report.json"
    flags = ["--http", stack]
    environment = {"STREAMD_SERVER_LONG_POLL_TIMEOUT_MS": "2000"}
    with ServerProcess(tmp_path / "data", flags=flags, environment=environment) as server:
        run = subprocess.run(
            ["npx", "vitest", "run", "--reporter=json", f"--outputFile={report}"],
            cwd=HERE,
            env={**os.environ, "STREAMD_TEST_URL": server.url},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert report.exists(), run.stderr
    result = json.loads(report.read_text())
    failed = [
        f"{case['fullName']}: {case['failureMessages'][0]}"
        for file in result["testResults"]
        for case in file["assertionResults"]
        if case["status"] == "failed"
    ]
    assert not failed, "\n\n".join(failed)
    assert result["numPassedTests"] >= BASE_SUITE
