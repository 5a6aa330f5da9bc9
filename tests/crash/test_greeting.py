"""What `streamd serve` prints at its start: a line, or a few for a person at a terminal."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streamd import __version__
from streamd.commands import greeting
from streamd.config.settings import AuthConfig, ClusterConfig, Config, ServerConfig
from tests.support.ports import unused_port

_END = "try "


def _of_terminal(*flags: str) -> tuple[subprocess.Popen[bytes], str]:
    """A server whose output is a terminal, and what it has printed when it serves."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "streamd", "serve", *flags]
    server = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL)
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        shown = b""
        while b"\n" not in shown.partition(_END.encode())[2]:
            shown += terminal.read(4096)
    return server, shown.decode().replace("\r\n", "\n")


def test_a_terminal_shows_how_to_begin_and_that_works(tmp_path: Path) -> None:
    listen = f"127.0.0.1:{unused_port()}"
    data = tmp_path / "data"
    server, shown = _of_terminal("--data-dir", str(data), "--listen", listen)
    try:
        assert shown.startswith(f"streamd {__version__}, node 1. Ctrl-C ends it.\n")
        rows = dict(re.findall(r"^  (\w+) +(.*)$", shown, re.MULTILINE))
        assert rows["address"] == f"http://{listen}"
        assert rows["data"] == str(data)
        assert rows["auth"].startswith("none: anyone who reaches the address")
        assert "cluster" not in rows
        first, *arguments = shlex.split(rows["try"])
        assert first == "streamd"
        command = [sys.executable, "-m", "streamd", *arguments]
        tried = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert tried.returncode == 0, tried.stderr
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0


@pytest.mark.parametrize(
    ("url", "command"),
    [
        ("http://127.0.0.1:4437", "streamd create demo/hello"),
        ("http://0.0.0.0:4437", "streamd create demo/hello"),
        ("http://10.0.0.1:4437", "streamd create demo/hello --url http://10.0.0.1:4437"),
        ("http://[::]:80", "streamd create demo/hello --url http://[::1]:80"),
    ],
)
def test_the_first_command_names_the_address_unless_it_is_the_usual_one(
    url: str, command: str
) -> None:
    shown = greeting.lines(Config(), url, None, Path("/data"))
    assert shown.splitlines()[-1] == f"  try        {command}"


def test_the_lines_have_what_the_node_has_besides() -> None:
    config = Config(
        server=ServerConfig(workers=2, tls_cert="c.pem", tls_key="k.pem"),
        cluster=ClusterConfig(name="prod", listen="10.0.0.1:4438"),
        auth=AuthConfig(mode="required"),
    )
    shown = greeting.lines(config, "https://h:1", "http://127.0.0.1:4439", Path("/d"))
    first = "streamd create demo/hello --url https://h:1 --cacert AUTHORITY.pem"
    assert shown.splitlines()[1:] == [
        "  address    https://h:1  (2 workers)",
        "  operators  http://127.0.0.1:4439",
        "  data       /d",
        "  auth       required: requests need a token",
        "  cluster    prod, peers at 10.0.0.1:4438",
        f"  try        STREAMD_TOKEN=TOKEN {first}",
    ]
    line = greeting.line(config, "https://h:1", "http://127.0.0.1:4439", Path("/d"))
    assert line == (
        f"streamd {__version__} node 1 serves https://h:1 from /d with 2 workers, and "
        "operations at http://127.0.0.1:4439"
    )
