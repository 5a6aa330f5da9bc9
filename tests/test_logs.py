"""Logs: one structured event a line, without anything that clients sent."""

from __future__ import annotations

import http.client
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from streamd.process import logs
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
from streamd.process.logs import set_up_logging

def handle(header):
    raise RuntimeError("a mistake of ours")

set_up_logging({rendering!r}, "info")
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
        pytest.param(
            ["head", "/a/b", "--url", "operator:whisper@127.0.0.1:1"], marks=pytest.mark.long
        ),
        pytest.param(
            ["cluster", "--url", "http://operator:whisper@127.0.0.1:1", "status"],
            marks=pytest.mark.long,
        ),
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


# -- bounds ---------------------------------------------------------------------------------------

HOSTILE: dict[str, object] = {
    "long": "n" * 3500,
    "wide": "\N{SNOWMAN}" * 3000,
    "control": "\x00\x07\b\x7f" * 100,
    "newlines": "one\n2026-01-01 [error] forged\r\nthree\x0b\x0c\x85\u2028",
    "ansi": "\x1b[2J\x1b]0;title\x07\x1b[31m\x9b31m",
    "direction": "\u202egnp.exe\u2066",
    "surrogates": "\udcff\ud800" * 50,
    "formats": "%s%n{0}{event}%(name)s" * 5,
    "bytes": bytes(range(256)) * 10,
    "number": 10**5000,
    "nested": [["x" * 2000] * 100, {"k" * 2000: "v" * 2000}],
    "many": dict.fromkeys(map(str, range(1000)), "x"),
    "quotes": '"\\' * 600,
}


@contextmanager
def logged(rendering: Any) -> Iterator[io.StringIO]:
    """What this process logs inside, through the handler of a node and no other."""
    out, root = io.StringIO(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stderr", out)
            patch.setattr(logs, "_rate_limit", logs.RateLimit())
            logs.set_up_logging(rendering, "info")
            yield out
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()


@pytest.mark.parametrize("rendering", ["json", "console"])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_value_makes_a_line_long_or_forges_one(name: str, rendering: str) -> None:
    value = HOSTILE[name]
    with logged(rendering) as out:
        log: Any = structlog.get_logger("streamd.test")
        log.warning("a stranger", value=value, **{f"other{i}": value for i in range(5)})
        log.warning("all", **HOSTILE)
        if not isinstance(value, int):  # Which Python itself would not print.
            logging.getLogger("hypercorn.error").error("%s", value)
        else:
            log.warning("a third")
    lines = out.getvalue().split("\n")
    assert len(lines) == 4
    assert lines.pop() == ""
    for line in lines:
        assert line.isprintable()
        assert 0 < len(line.encode()) <= logs.MAX_LINE_BYTES
        if line.startswith("{"):
            assert {"event", "level", "timestamp"} <= json.loads(line).keys()


@pytest.mark.parametrize("rendering", ["json", "console"])
def test_a_bug_that_quotes_a_client_stays_within_a_bound(rendering: str) -> None:
    with logged(rendering) as out:
        log: Any = structlog.get_logger("streamd.test")
        try:
            raise ValueError("\x1b[2J" + "whole body " * 100_000)
        except ValueError:
            log.exception("handler failed")
    shown = out.getvalue()
    assert "ValueError" in shown
    assert "test_logs.py" in shown
    assert "\x1b" not in shown
    assert len(shown) < logs.MAX_TRACEBACK_BYTES


def test_a_flood_of_an_event_becomes_a_count() -> None:
    now_s = 0.0
    limit = logs.RateLimit(lambda: now_s)

    def passes(event: str | None, name: str = "streamd") -> logging.LogRecord | None:
        message: Any = "GET %s" if event is None else {"event": event}
        record = logging.LogRecord(name, logging.WARNING, "", 0, message, ("/x",), None)
        if event is not None:
            record.args = ()
        return record if limit.filter(record) else None

    for event in ("one", "two", None):
        assert [passes(event) is not None for _ in range(1000)].count(True) == logs.BURST
    assert passes("another") is not None
    assert limit.suppressed == 3 * (1000 - logs.BURST)
    now_s = 10 / logs.PER_S
    later = [passes("one") for _ in range(1000)]
    told = [record.msg for record in later if record is not None]
    assert len(told) == 10
    assert told[0] == {"event": "one", "suppressed": 1000 - logs.BURST}
    assert "suppressed" not in told[1]
    foreign = passes(None)
    assert foreign is not None
    assert foreign.getMessage() == f"GET /x (suppressed={1000 - logs.BURST})"


def test_events_of_many_names_are_bounded_together() -> None:
    limit = logs.RateLimit(lambda: 0.0)
    records = (
        logging.LogRecord("streamd", logging.WARNING, "", 0, {"event": str(i)}, (), None)
        for i in range(100_000)
    )
    assert sum(map(limit.filter, records)) <= 1000 + logs.BURST
