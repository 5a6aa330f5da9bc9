"""A bundle has the reports of all nodes that answer, says which are missing, and has no secrets."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from streamd.commands import bundle
from streamd.commands.cli import main
from streamd.node.reports import DEBUG_REPORTS, FACTS
from streamd.process.logs import LogTail
from tests.jepsen_like.cluster_processes import ClusterProcesses
from tests.support import prefork
from tests.support.server_process import ServerProcess

ROOT = "sd_0000000000000000_" + "a" * 32
TEXTS = {"metrics", "log", "tasks", "profile"}
NAMES = {f"{one}.{'txt' if one in TEXTS else 'json'}" for one in (FACTS, *DEBUG_REPORTS)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("bundle"), proxied=False) as cluster:
        yield cluster


def unpacked(file: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest of a bundle, and its other files."""
    found: dict[str, bytes] = {}
    with tarfile.open(file) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            found[member.name] = content.read()
    return json.loads(found.pop("manifest.json")), found


def test_a_bundle_has_the_reports_of_all_nodes(cluster: ClusterProcesses, tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    where = ["--url", cluster.nodes[1].url]
    ran = prefork.run_text("debug", "bundle", *where, "-o", str(file))
    assert ran.returncode == 0, ran.stderr
    assert file.stat().st_mode & 0o077 == 0
    manifest, files = unpacked(file)
    assert set(files) == {f"node-{node}/{name}" for node in (1, 2, 3) for name in NAMES}
    assert manifest["missing"] == []
    for listed in manifest["files"]:
        content = files[listed["name"]]
        assert (listed["bytes"], listed["sha256"]) == (len(content), sha256(content).hexdigest())
    for node in (1, 2, 3):
        status = json.loads(files[f"node-{node}/status.json"])
        assert status["node_id"] == node
        assert json.loads(files[f"node-{node}/facts.json"])["node_id"] == node
        assert json.loads(files[f"node-{node}/config.json"])["server"]["node_id"] == node
        assert b"streamd_fsync_latency_seconds_count" in files[f"node-{node}/metrics.txt"]
        assert b"<init> at " in files[f"node-{node}/tasks.txt"]
        assert b"MainThread;" in files[f"node-{node}/profile.txt"]
        logged = files[f"node-{node}/log.txt"].decode().splitlines()
        assert logged
        assert set(logged) <= set(cluster.nodes[node].output.splitlines())


def test_a_node_that_hangs_is_named_and_the_others_are_there(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    file = tmp_path / "bundle.tar.gz"
    cluster.nodes[2].pause()
    try:
        where = ["--url", cluster.nodes[1].url]
        ran = prefork.run_text("debug", "bundle", *where, "-o", str(file))
    finally:
        cluster.nodes[2].resume()
    cluster.wait_ready()
    assert ran.returncode == 0, ran.stderr
    assert "node 2, status: " in ran.stderr
    manifest, files = unpacked(file)
    assert {name.partition("/")[0] for name in files} == {"node-1", "node-3"}
    assert [one["node"] for one in manifest["missing"]] == [2] * len(NAMES)


def test_a_file_that_exists_is_left_alone_and_a_failure_leaves_none(tmp_path: Path) -> None:
    nowhere = ["--url", "http://127.0.0.1:1", "-o"]
    taken, free = tmp_path / "taken", tmp_path / "free"
    taken.write_text("mine")
    assert prefork.run_text("debug", "bundle", *nowhere, str(taken)).returncode == 4
    assert taken.read_text() == "mine"
    assert prefork.run_text("debug", "bundle", *nowhere, str(free)).returncode == 3
    assert not free.exists()


def test_a_bundle_and_its_files_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "_MAX_FILE_BYTES", 1000)
    monkeypatch.setattr(bundle, "_MAX_BYTES", 3500)
    file = tmp_path / "bundle.tar.gz"
    with ServerProcess(tmp_path / "data") as server:
        done = CliRunner().invoke(main, ["debug", "bundle", "--url", server.url, "-o", str(file)])
    assert done.exit_code == 0, done.output
    manifest, files = unpacked(file)
    assert max(map(len, files.values())) == 1000
    assert sum(map(len, files.values())) == 3500
    errors = {one["error"] for one in manifest["missing"]}
    assert errors == {"cut: it is too long", "the archive is full"}


def test_a_bundle_has_no_secret_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "streamd.toml").write_text(
        '[cold]\nbackend = "fs"\ns3_secret_access_key = "hush-key"\ns3_access_key_id = "hush-id"\n'
        '[heads]\npublish = ["https://127.0.0.1:1/hooks/hush-path?token=hush-query"]\n'
    )
    environment = {"STREAMD_ROOT_TOKEN": ROOT, "STREAMD_AUTH_MODE": "required"}
    flags = ["--config", str(tmp_path / "streamd.toml"), "--log-level", "debug"]
    file = tmp_path / "bundle.tar.gz"
    with ServerProcess(tmp_path / "data", flags=flags, environment=environment) as server:
        given = {"STREAMD_TOKEN": ROOT, "PATH": "/usr/bin"}
        where = ["--url", server.url, "-o", str(file)]
        ran = prefork.run_text("debug", "bundle", *where, environment=given)
        assert ran.returncode == 0, ran.stderr
        refused = prefork.run_text("debug", "bundle", *where[:-1], str(tmp_path / "other"))
        assert refused.returncode == 1
        assert not (tmp_path / "other").exists()
    _, files = unpacked(file)
    assert json.loads(files["node-1/config.json"])["heads"]["publish"] == [
        "https://127.0.0.1:1/***"
    ]
    assert json.loads(files["node-1/cold.json"])["archive"] is not None
    for name, content in files.items():
        assert b"hush" not in content, name
        assert ROOT.encode() not in content, name


@pytest.mark.parametrize("report", ["facts", "flush", "Status", "%2e%2e"])
def test_a_report_that_there_is_not_is_refused(cluster: ClusterProcesses, report: str) -> None:
    answer = cluster.nodes[1].get(f"/cluster/debug/nodes/2/{report}")
    assert answer is not None
    assert answer[0] in (400, 404)


def test_the_tail_of_a_log_is_bounded_by_bytes_and_keeps_the_last_lines() -> None:
    tail = LogTail(100)
    for number in range(1000):
        tail.add(f"ä line {number}")
    kept = tail.text().splitlines()
    assert kept == [f"ä line {number}" for number in range(1000 - len(kept), 1000)]
    assert 80 < len(tail.text().encode()) <= 100
    tail.add("x" * 1000)
    assert tail.text() == ""
