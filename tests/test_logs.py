"""Logs: one structured event a line, without anything that clients sent."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess

# Without the warning about descriptors, which depends on the system's limits.
FEW = {"STREAMD_SERVER_MAX_CONNECTIONS": "100"}


def test_json_logs_are_one_object_a_line(tmp_path: Path) -> None:
    flags = ["--log-format", "json"]
    with ServerProcess(tmp_path / "data", flags=flags, environment=FEW) as server:
        assert server.stop() == 0
    events = [json.loads(line) for line in server.output.splitlines()[1:]]
    assert [event["event"] for event in events] == ["draining", "drained"]
    assert all({"level", "timestamp"} <= set(event) for event in events)
    assert events[0]["signal"] == "SIGTERM"


def test_a_level_hides_lower_levels(tmp_path: Path) -> None:
    flags = ["--log-level", "warning"]
    with ServerProcess(tmp_path / "data", flags=flags, environment=FEW) as server:
        assert server.stop() == 0
    assert len(server.output.splitlines()) == 1, "the line for people is not a log event"


def test_nothing_that_a_client_sent_is_logged(tmp_path: Path) -> None:
    flags = ["--log-level", "debug", "--log-format", "json"]
    with ServerProcess(tmp_path / "data", flags=flags) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        headers = {"Content-Type": "text/plain", "Authorization": "Bearer whisper-header"}
        for method, body in (("PUT", None), ("POST", b"whisper-body"), ("PATCH", b"whisper")):
            connection.request(method, "/v1/stream/whisper-name", body, headers)
            connection.getresponse().read()
        assert server.stop() == 0
    assert "whisper" not in server.output


FAILING = """
import structlog
from streamd.config import LogConfig
from streamd.logs import set_up_logging

def handle(header):
    raise RuntimeError("a mistake of ours")

set_up_logging(LogConfig(format={rendering!r}))
try:
    handle("whis" + "per")
except RuntimeError:
    structlog.get_logger("streamd").exception("a handler failed")
"""


@pytest.mark.parametrize("rendering", ["json", "console"])
def test_a_traceback_names_places_and_not_values(rendering: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FAILING.format(rendering=rendering)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "a mistake of ours" in ran.stderr
    assert "handle" in ran.stderr
    assert "whisper" not in ran.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["head", "/a/b", "--url", "http://operator:whisper@127.0.0.1:1"],
        ["head", "/a/b", "--url", "operator:whisper@127.0.0.1:1"],
        ["cluster", "--url", "http://operator:whisper@127.0.0.1:1", "status"],
        ["backup", "status", "--from", "s3://key:whisper@127.0.0.1:1"],
    ],
)
def test_a_failing_address_is_logged_without_its_credentials(command: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "streamd", *command], capture_output=True, text=True
    )
    assert ran.returncode in (2, 3)
    assert "127.0.0.1:1" in ran.stdout + ran.stderr
    assert "whisper" not in ran.stdout + ran.stderr
