"""Logs: one structured event a line, without what clients said."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

from tests.support.server_process import ServerProcess


def test_json_logs_are_one_object_a_line(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", flags=["--log-format", "json"]) as server:
        assert server.stop() == 0
    events = [json.loads(line) for line in server.output.splitlines()[1:]]
    assert [event["event"] for event in events] == ["draining", "drained"]
    assert all({"level", "timestamp"} <= set(event) for event in events)
    assert events[0]["signal"] == "SIGTERM"


def test_a_level_hides_what_is_below_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", flags=["--log-level", "warning"]) as server:
        assert server.stop() == 0
    assert len(server.output.splitlines()) == 1, "the line for people is no log event"


def test_nothing_a_client_sent_is_logged(tmp_path: Path) -> None:
    flags = ["--log-level", "debug", "--log-format", "json"]
    with ServerProcess(tmp_path / "data", flags=flags) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        headers = {"Content-Type": "text/plain", "Authorization": "Bearer whisper-header"}
        for method, body in (("PUT", None), ("POST", b"whisper-body"), ("PATCH", b"whisper")):
            connection.request(method, "/v1/stream/whisper-name", body, headers)
            connection.getresponse().read()
        assert server.stop() == 0
    assert "whisper" not in server.output
