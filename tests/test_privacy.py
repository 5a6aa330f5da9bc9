"""Other users of the machine read nothing that a node stores."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import trustme

from streamd.auth.tokens import mint
from tests.support.server_process import ServerProcess

TEXT = {"Content-Type": "text/plain"}
# The most permissive umask: a file that is private then was made so by the node.
GENEROUS = ("sh", "-c", 'umask 0; exec "$@"', "sh")


def modes(directory: Path) -> dict[str, str]:
    """The permissions of a directory and all below it that are not the user's alone."""
    found = {}
    for path in (directory, *directory.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode != (0o700 if path.is_dir() else 0o600):
            found[str(path.relative_to(directory))] = oct(mode)
    return found


def cold(place: Path) -> dict[str, str]:
    keys = {"BACKEND": "fs", "FS_PATH": place, "FLUSH_AFTER_MS": 50, "PACK_BYTES": 65536}
    return {f"STREAMD_COLD_{key}": str(value) for key, value in keys.items()}


def run(*words: str) -> str:
    command = [*GENEROUS, sys.executable, "-m", "streamd", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_only_a_nodes_user_can_access_its_files(tmp_path: Path) -> None:
    data, place = tmp_path / "above" / "data", tmp_path / "cold"
    place.mkdir(mode=0o700)
    with ServerProcess(data, environment=cold(place), wrapper=GENEROUS) as server:
        made = httpx.put(f"{server.url}/v1/stream/s", headers=TEXT, content=b"x" * 200_000)
        assert made.status_code == 201
        run("cold", "--url", server.url, "flush")
        run("cluster", "--url", server.url, "snapshot")
        assert len(list(data.rglob("*"))) > 8
        assert [path for path in place.rglob("*") if path.is_file()], "nothing was flushed"
        assert modes(data) == modes(place) == {}
        assert "readable by other users" not in server_output(server)
    restored = tmp_path / "restored"
    run("restore", "--from", f"fs:{place}", "--no-fence", "--data-dir", str(restored))
    assert modes(restored) == {}


def test_directories_that_others_may_read_are_closed_to_them_at_the_next_start(
    tmp_path: Path,
) -> None:
    data, place = tmp_path / "data", tmp_path / "cold"
    with ServerProcess(data, environment=cold(place)) as server:
        httpx.put(f"{server.url}/v1/stream/s", headers=TEXT, content=b"kept")
        assert server.stop() == 0
    for path in (data, *data.rglob("*"), place, *place.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with ServerProcess(data, environment=cold(place)) as server:
        assert httpx.get(f"{server.url}/v1/stream/s").content == b"kept"
        output = server_output(server)
    for directory in (data, place):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert f"path={directory}" in output
    assert "could read the directory; its mode was corrected" in output
    assert "readable by other users" not in output
    with ServerProcess(data, environment=cold(place)) as server:
        assert "could read the directory" not in server_output(server)


def test_a_sealing_secret_that_others_may_read_causes_a_warning(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 64)
    secret.chmod(0o644)
    environment = {"STREAMD_SUBSCRIPTIONS_SECRET_FILE": str(secret)}
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        output = server_output(server)
    assert "readable by other users" in output
    assert f"path={secret}" in output


def test_a_directory_where_anyone_may_make_files_stays_so_with_a_warning(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o1777)
    with ServerProcess(data) as server:
        output = server_output(server)
    assert stat.S_IMODE(data.stat().st_mode) == 0o1777
    assert "readable by other users" in output
    assert f"path={data}" in output


@pytest.mark.parametrize(("mode", "is_told"), [(0o644, True), (0o640, True), (0o600, False)])
def test_a_key_that_others_may_read_causes_a_warning(
    tmp_path: Path, mode: int, is_told: bool
) -> None:
    issued = trustme.CA().issue_cert("127.0.0.1")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(str(key))
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    key.chmod(mode)
    environment = {
        "STREAMD_SERVER_TLS_CERT": str(certificate),
        "STREAMD_SERVER_TLS_KEY": str(key),
    }
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        output = server_output(server)
    assert (f"path={key}" in output) == is_told


def server_output(server: ServerProcess) -> str:
    """Everything it printed until it ended."""
    assert server.stop() == 0
    return server.output


@pytest.mark.parametrize("name", ["STREAMD_ROOT_TOKEN", "STREAMD_AUTH_ROOT_TOKEN", "ANY_NAME"])
def test_a_node_keeps_no_root_token_in_its_environment(tmp_path: Path, name: str) -> None:
    secret = mint(1, b"root" * 5)
    file = tmp_path / "streamd.toml"
    file.write_text("[auth]\n" + ('root_token = "$ANY_NAME"\n' if name == "ANY_NAME" else ""))
    # Not forked: the environment is the one that the system passed.
    server = ServerProcess(
        tmp_path / "data",
        flags=["--config", str(file)],
        environment={name: secret, "BESIDE": "stays"},
        wrapper=["env"],
    )
    with server:
        assert server.process is not None
        found = Path(f"/proc/{server.process.pid}/environ").read_bytes()
        assert secret.encode() not in found
        assert b"BESIDE=stays" in found
