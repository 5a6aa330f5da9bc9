"""The servers that the benchmark knows, and those that the environment adds."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from bench.errors import ToolMissing
from bench.servers import Streamd, known


def test_without_binaries_only_installable_servers_are_measured() -> None:
    assert list(known({})) == ["streamd", "node-memory", "node-file"]


def test_binaries_in_the_environment_add_their_servers(tmp_path: Path) -> None:
    servers = known({"BENCH_RUST": "/opt/rust-server", "BENCH_CADDY": "/opt/caddy-server"})
    assert list(servers) == ["streamd", "node-memory", "node-file", "rust", "caddy"]
    data = tmp_path / "streams"
    assert servers["rust"].command(4500, data) == [
        "/opt/rust-server", "--port", "4500", "--data-dir", str(data),
    ]  # fmt: skip
    *start, site, _, adapter = servers["caddy"].command(4501, data)
    assert (start, adapter) == (["/opt/caddy-server", "run", "--config"], "caddyfile")
    assert f"data_dir {data}\n" in Path(site).read_text()
    assert "http://127.0.0.1:4501 {" in Path(site).read_text()


def test_an_error_for_a_binary_names_its_variable(tmp_path: Path) -> None:
    server = tmp_path / "server"
    server.write_text("")
    for path in (tmp_path / "absent", tmp_path, server):
        with pytest.raises(ToolMissing, match=f"BENCH_RUST: {path} is not a program"):
            known({"BENCH_RUST": str(path)})["rust"].set_up()
    server.chmod(stat.S_IRWXU)
    known({"BENCH_RUST": str(server)})["rust"].set_up()


def test_the_report_names_the_python_and_how_it_was_built() -> None:
    assert f"Python {sys.version.split()[0]} (" in Streamd().version()
    assert "optimised build)" in Streamd().version()
