"""The command line: what it answers, and how it fails."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import streamd
from streamd.http.sockets.batch_io import LANGUAGE
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess

ROOT = Path(__file__).parent.parent


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streamd", *arguments],
        env=environment or None,
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_the_version_is_printed_with_the_language_of_what_may_be_compiled() -> None:
    printed = f"streamd, version {streamd.__version__} (batch I/O in {LANGUAGE})"
    assert _run("--version").stdout.strip() == printed
    pure = _run("--version", STREAMD_PURE_PYTHON="1").stdout.strip()
    assert pure == f"streamd, version {streamd.__version__} (batch I/O in Python)"


def test_each_manual_page_names_the_release() -> None:
    release = streamd.__version__.partition(".dev")[0]
    for page in sorted((ROOT / "man").glob("*.1")):
        title = page.read_text().partition("\n")[0]
        assert f'"streamd {release}"' in title, page.name


def test_a_wrong_flag_value_stops_the_start_with_status_2_and_one_line() -> None:
    run = _run("serve", "--node-id", "0")
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert "the command line: server.node_id" in run.stderr


def test_an_unusable_data_directory_stops_the_start_with_status_1(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = _run("serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "file"))
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
    assert str(tmp_path / "file") in run.stderr


def test_a_port_open_to_others_without_a_word_about_tokens_stops_the_start(tmp_path: Path) -> None:
    run = _run("serve", "--listen", "0.0.0.0:0", "--data-dir", str(tmp_path / "data"))
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert 'auth.mode = "required"' in run.stderr
    assert "--auth-mode none" in run.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("host", "is_told"), [("0.0.0.0", True), ("127.0.0.1", False)])  # noqa: S104
def test_a_port_open_to_everyone_causes_a_warning_at_each_start(
    tmp_path: Path, host: str, is_told: bool
) -> None:
    port = unused_port()
    flags = ("--listen", f"{host}:{port}", "--auth-mode", "none")
    for _ in range(2):
        with ServerProcess(tmp_path, flags=flags, port=port) as server:
            assert server.stop() == 0
        assert ("anyone who reaches the port" in server.output) == is_told


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    config = tmp_path / "streamd.toml"
    config.write_text('[server]\ntls_cert = "absent.pem"\ntls_key = "absent.key"\n')
    run = _run("serve", "--config", str(config), "--data-dir", str(tmp_path / "data"))
    assert run.returncode == 2
    assert "server.tls_cert" in run.stderr
    assert not (tmp_path / "data").exists()


def test_the_status_of_a_single_node_is_a_line_without_a_table(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        shown = _run("cluster", "--url", server.url, "status")
        assert shown.stdout.startswith("cluster (a single node)  term ")
        assert len(shown.stdout.splitlines()) == 1
        assert server.stop() == 0


def test_the_manual_page_covers_every_flag_and_exit_status() -> None:
    manual = (ROOT / "man" / "streamd.1").read_text().replace("\\-", "-")
    flags = set(re.findall(r"--[a-z-]+", _run("serve", "--help").stdout)) - {"--help"}
    assert flags
    for flag in flags:
        assert flag in manual, flag
    for status in ("0", "1", "2"):
        assert f".B {status}" in manual
