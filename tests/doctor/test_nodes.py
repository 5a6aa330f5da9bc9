"""The doctor at real nodes: a cluster with a wrong clock and a node that hangs, a server with TLS
and a cold store, and machines on which no node runs yet."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from streamd import __version__
from tests.jepsen_like.cluster_processes import ClusterProcesses, NodeProcess, wait_until
from tests.support import prefork
from tests.support.minio import MinioServer, minio_or_skip
from tests.support.mounts import tmpfs
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess
from tests.support.skewed_clock import SkewedClock

ROOT = "sd_0000000000000000_" + "a" * 32
AHEAD_S = 3600
Findings = dict[str, list[dict[str, Any]]]


def examine(
    *arguments: str, environment: dict[str, str] | None = None
) -> tuple[int, Findings, str]:
    """The exit status of a doctor, its findings by check, and its errors."""
    given = {"PATH": "/usr/bin", **(environment or {})}
    ran = prefork.run_text("doctor", "--json", *arguments, environment=given)
    found: Findings = {}
    for finding in json.loads(ran.stdout or '{"findings": []}')["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    return ran.returncode, found, ran.stderr


def levels(found: Findings, check: str) -> dict[int | None, str]:
    """The level of each node's last finding."""
    return {finding["node"]: finding["level"] for finding in found[check]}


# -- a cluster ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three nodes; the clock of the third is an hour fast, where a compiler is at hand."""
    directory = tmp_path_factory.mktemp("doctor")
    cluster = ClusterProcesses(directory, proxied=False)
    if shutil.which("cc") is not None:
        cluster.nodes[3].environment.update(SkewedClock(directory).ahead(AHEAD_S))
    with cluster:
        yield cluster


def test_one_node_tells_of_all(cluster: ClusterProcesses) -> None:
    status, found, errors = examine("--url", cluster.nodes[1].url)
    assert errors == ""
    assert status in (0, 1, 2)
    for check in ("node.answer", "port.clients", "disk.room", "disk.sync", "limit.files"):
        assert {finding["node"] for finding in found[check]} == {1, 2, 3}, check
    assert levels(found, "node.answer") == dict.fromkeys((1, 2, 3), "ok")
    assert levels(found, "port.clients") == dict.fromkeys((1, 2, 3), "ok")
    assert len(found["port.peers"]) == 6
    assert {finding["level"] for finding in found["port.peers"]} == {"ok"}
    assert levels(found, "quorum.now") == {None: "ok"}
    assert found["node.release"][0]["found"] == __version__
    assert "store.access" not in found


def test_a_clock_that_is_wrong_is_measured(cluster: ClusterProcesses) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no compiler to skew a clock with")
    _, found, _ = examine("--url", cluster.nodes[1].url)
    assert levels(found, "node.clock") == {2: "ok", 3: "fail"}
    measured = found["node.clock"][1]["found"]
    match = re.match(r"\+([0-9.]+) ms ± ([0-9.]+) ms", measured)
    assert match is not None, measured
    assert abs(float(match[1]) - AHEAD_S * 1000) <= float(match[2]) + 1


def test_a_node_that_hangs_is_a_failure_and_the_others_are_examined(
    cluster: ClusterProcesses,
) -> None:
    cluster.nodes[2].pause()
    try:
        status, found, _ = examine("--url", cluster.nodes[1].url)
    finally:
        cluster.nodes[2].resume()
    cluster.wait_ready()
    assert status == 2
    assert levels(found, "node.answer") == {1: "ok", 2: "fail", 3: "ok"}
    assert levels(found, "quorum.now") == {None: "warn"}
    assert "nothing could be written" in found["quorum.loss"][0]["found"]
    assert {finding["node"] for finding in found["disk.room"]} == {1, 3}


def test_people_read_a_line_for_each_finding_and_what_to_do(cluster: ClusterProcesses) -> None:
    ran = prefork.run_text("doctor", "--url", cluster.nodes[3].url)
    *lines, last = ran.stdout.splitlines()
    assert all(re.match(r"(ok|warn|fail) +[a-z.]+ +\S| +-> \S", line) for line in lines), ran.stdout
    assert re.fullmatch(r"\d+ ok, \d+ warn, \d+ fail", last)


def test_a_node_that_is_not_a_member_is_refused(cluster: ClusterProcesses) -> None:
    for path, expected in (("9", 404), ("0x1", 400), ("-1", 400), ("1" * 30, 400)):
        answer = cluster.nodes[1].get(f"/cluster/nodes/{path}")
        assert answer is not None
        assert answer[0] == expected, (path, answer)


def test_without_a_node_there_is_no_diagnosis(tmp_path: Path) -> None:
    absent = NodeProcess(9, tmp_path, {})
    status, found, errors = examine("--url", absent.url)
    assert (status, found) == (3, {})
    assert "cannot be reached" in errors


@pytest.mark.long
def test_a_port_that_is_open_in_one_direction_only_is_found(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path) as cluster:
        cluster.close_port(3)
        third = cluster.nodes[3]
        wait_until(lambda: third.get("/healthz") is not None, "the third node serves")

        def unreached() -> dict[int, list[str]]:
            found: dict[int, list[str]] = {}
            for one in examine("--url", third.url)[1]["port.peers"]:
                if one["level"] == "fail":
                    found.setdefault(one["node"], []).append(one["found"])
            return found

        wait_until(lambda: set(unreached()) == {1, 2, 3}, "all nodes notice the closed port")
        found = unreached()
        address = re.escape(cluster.peer_address(3))
    for node in (1, 2):
        [text] = found[node]
        cannot = rf"cannot connect to node 3 at {address} \(.+\), is connected from there"
        assert re.fullmatch(cannot, text), text
    assert [text.partition(" node ")[0] for text in found[3]] == ["connects to"] * 2
    assert all(text.endswith("gets no connection from there") for text in found[3])


# -- one server -----------------------------------------------------------------------------------


def certificate(directory: Path, *names: str, days: int) -> dict[str, str]:
    """The variables for a certificate that ends soon, and its authority in `ca.pem`."""
    authority = trustme.CA()
    ends = datetime.now(UTC) + timedelta(days=days)
    issued = authority.issue_cert(*names, not_after=ends)
    issued.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
    issued.private_key_pem.write_to_path(str(directory / "key.pem"))
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    (directory / "key.pem").chmod(0o644)
    return {
        "STREAMD_SERVER_TLS_CERT": str(directory / "cert.pem"),
        "STREAMD_SERVER_TLS_KEY": str(directory / "key.pem"),
    }


def test_a_server_tells_of_its_certificate_its_files_its_store_and_its_tokens(
    tmp_path: Path,
) -> None:
    settings = {
        **certificate(tmp_path, "localhost", "127.0.0.1", days=5),
        "STREAMD_SERVER_ADVERTISE": "streams.example.net:4437",
        "STREAMD_AUTH_MODE": "required",
        "STREAMD_ROOT_TOKEN": ROOT,
        "STREAMD_COLD_BACKEND": "fs",
        "STREAMD_COLD_FS_PATH": str(tmp_path / "cold"),
    }
    with ServerProcess(tmp_path / "data", environment=settings) as server:
        where = ["--url", server.url, "--cacert", str(tmp_path / "ca.pem")]
        token = {"STREAMD_TOKEN": ROOT, "PATH": "/usr/bin"}
        made = ["token", "create", *where, "--name", "ci", "--scope", "read:*", "--expires", "2d"]
        assert prefork.run_text(*made, environment=token).returncode == 0
        before = sorted(str(path) for path in (tmp_path / "cold").rglob("checks/*"))
        status, found, errors = examine(*where, environment=token)
        assert (status, errors) == (2, "")
        assert sorted(str(path) for path in (tmp_path / "cold").rglob("checks/*")) == before
        refused, refusal, _ = examine(*where)
    ends, name = found["secret.certificate"]
    assert ends["level"] == "warn"
    assert re.search(r"ends in (4|5) days", ends["found"])
    assert name["level"] == "fail"
    assert name["found"].endswith("and others look for streams.example.net")
    modes = {one["found"].split()[-2]: one for one in found["secret.mode"]}
    assert modes["server.tls_key"]["cure"] == f"chmod go= {tmp_path}/key.pem"
    assert [one["level"] for one in found["secret.mode"]].count("warn") == 1
    assert levels(found, "store.access") == {1: "ok"}
    assert levels(found, "store.hot") == {None: "ok"}
    [ending] = found["secret.token"]
    assert ending["level"] == "warn"
    assert re.search(r"token [0-9a-f]{16} ends in", ending["found"])
    assert refused == 2
    assert levels(refusal, "node.answer") == {None: "fail"}


@pytest.mark.long
def test_a_store_that_has_gone_is_a_failure(tmp_path: Path) -> None:
    minio = MinioServer(minio_or_skip(), tmp_path / "minio")
    settings = {
        "STREAMD_COLD_BACKEND": "s3",
        "STREAMD_COLD_S3_BUCKET": "doctor",
        "STREAMD_COLD_S3_ENDPOINT": minio.endpoint,
        "STREAMD_COLD_S3_ACCESS_KEY_ID": minio.access_key_id,
        "STREAMD_COLD_S3_SECRET_ACCESS_KEY": minio.secret_access_key,
        "STREAMD_COLD_TIMEOUT_MS": "2000",
    }
    with minio:
        minio.client().make_bucket("doctor")
        with ServerProcess(tmp_path / "data", environment=settings) as server:
            _, found, _ = examine("--url", server.url)
            assert levels(found, "store.access") == {1: "ok"}
            data = ["--data-dir", str(tmp_path / "other"), "--listen", f"127.0.0.1:{unused_port()}"]
            _, found, _ = examine(*data, environment=settings)
            assert levels(found, "store.access") == {1: "ok"}
            assert not list(minio.client().list_objects("doctor", "checks/", recursive=True))
            minio.kill()
            status, found, _ = examine("--url", server.url)
    assert status == 2
    assert levels(found, "store.access") == {1: "fail"}


# -- before a start -------------------------------------------------------------------------------


def test_before_a_start_the_machine_is_examined_and_nothing_is_changed(tmp_path: Path) -> None:
    listen = f"127.0.0.1:{unused_port()}"
    before = sorted(tmp_path.rglob("*"))
    status, found, errors = examine("--data-dir", str(tmp_path / "data"), "--listen", listen)
    assert errors == ""
    assert status in (0, 1, 2)
    assert sorted(tmp_path.rglob("*")) == before
    assert levels(found, "configuration") == {None: "ok"}
    assert levels(found, "port.own") == {1: "ok"}
    assert found["disk.sync"][0]["found"].startswith("measured now: 99 % of ")
    assert "quorum.now" not in found


def test_a_port_in_use_and_a_route_to_nowhere_are_found_before_a_start(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s" * 64)
    (tmp_path / "secret").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "streamd.toml").write_text(
            f'[server]\nlisten = "127.0.0.1:{port}"\ndata_dir = "{tmp_path}/data"\n'
            f'[cluster]\nname = "c"\nlisten = "127.0.0.1:{unused_port()}"\n'
            f'secret_file = "{tmp_path}/secret"\nroutes = ["127.0.0.1:1", "127.0.0.1:{port}"]\n'
        )
        status, found, _ = examine("--config", str(tmp_path / "streamd.toml"))
    assert status == 2
    assert [one["level"] for one in found["port.own"]] == ["fail", "ok", "warn", "ok"]
    assert "Address already in use" in found["port.own"][0]["found"]
    assert found["port.own"][2]["found"].startswith("cluster.routes 127.0.0.1:1: ")


def test_a_configuration_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    status, found, _ = examine("--config", str(tmp_path / "absent.toml"))
    assert status == 2
    assert set(found) == {"configuration"}


@pytest.mark.parametrize(
    ("value", "mode", "expected"),
    [(ROOT, 0o644, ["warn"]), (ROOT, 0o600, ["ok"]), ("$OPERATORS_TOKEN", 0o644, [])],
)
def test_a_configuration_file_with_a_secret_is_private(
    value: str, mode: int, expected: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "streamd.toml"
    file.write_text(
        f'[server]\ndata_dir = "{tmp_path}/data"\nlisten = "127.0.0.1:{unused_port()}"\n'
        f'[auth]\nmode = "required"\nroot_token = "{value}"\n'
    )
    file.chmod(mode)
    _, found, _ = examine("--config", str(file), environment={"OPERATORS_TOKEN": ROOT})
    assert levels(found, "configuration") == {None: "ok"}
    assert [one["level"] for one in found.get("secret.mode", [])] == expected


def test_a_disk_in_memory_is_no_place_for_data(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "memory", "64m") as memory:
        listen = f"127.0.0.1:{unused_port()}"
        status, found, _ = examine("--data-dir", str(memory / "data"), "--listen", listen)
    assert status == 2
    assert found["disk.kind"][0]["found"].startswith("tmpfs: ")


def test_a_cluster_and_a_configuration_are_not_examined_at_once() -> None:
    status, _, errors = examine("--url", "http://127.0.0.1:1", "--data-dir", "data")
    assert status == 2
    assert "the options of serve are not" in errors


def test_an_address_in_the_environment_is_for_commands_without_options_of_a_node(
    tmp_path: Path,
) -> None:
    elsewhere = {"STREAMD_URL": "http://127.0.0.1:1"}
    assert examine(environment=elsewhere)[0] == 3
    arguments = ["--data-dir", str(tmp_path), "--listen", f"127.0.0.1:{unused_port()}"]
    assert "configuration" in examine(*arguments, environment=elsewhere)[1]
