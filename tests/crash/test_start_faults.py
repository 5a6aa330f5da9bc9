"""Every error at the start names its cause and a cure that loses nothing.

Each start fails, without a traceback, with a sentence that says what to do and does not advise to
abandon data that are whole. Once the cause is gone the node serves every byte.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path

import httpx
import pytest

from tests.crash.strace import needs_strace
from tests.support.mounts import needs_root, tmpfs
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess

_STREAM = "/v1/stream/whole"
_BYTES = b"acknowledged" * 1000
_NOBODY = 65534

# What a cure must not say while the data are whole.
_GIVES_UP = ("Traceback", "Restore the data directory", "move it away", "start empty")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with bytes in the log and in the state."""
    data = tmp_path_factory.mktemp("filled") / "data"
    for parts in (_BYTES[:6000], _BYTES[6000:]):
        with ServerProcess(data) as server:
            text = {"Content-Type": "text/plain"}
            httpx.put(f"{server.url}{_STREAM}", headers=text)
            assert httpx.post(f"{server.url}{_STREAM}", content=parts, headers=text).is_success
            assert server.stop() == 0
    return data


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    """A copy of it, for one test."""
    return shutil.copytree(filled, tmp_path / "data")


def _assert_refused(server: ServerProcess, *words: str, status: int) -> None:
    try:
        server.start()
        assert server.wait() == status, server.output
    finally:
        server.kill()
    _assert_names(server, *words)


def _assert_names(server: ServerProcess, *words: str) -> None:
    """It has printed in one line why it ended."""
    last = server.output.splitlines()[-1]
    assert last.startswith("streamd: "), server.output
    for word in words:
        assert word in last
    for wrong in _GIVES_UP:
        assert wrong not in server.output


def _assert_whole(data: Path, **options: Sequence[str]) -> None:
    with ServerProcess(data, **options) as server:  # type: ignore[arg-type]
        assert httpx.get(f"{server.url}{_STREAM}?offset=-1").content == _BYTES
        assert server.stop() == 0


# -- real faults ------------------------------------------------------------------------------


def _fill_up(disk: Path) -> Path:
    """A file that takes all the space that was left."""
    file = disk / "filling"
    with suppress(OSError), file.open("wb", buffering=0) as opened:
        while opened.write(bytes(4096)):
            pass
    return file


@needs_root
def test_a_full_disk(filled: Path, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "8m") as disk:
        shutil.copytree(filled, disk / "data")
        filling = _fill_up(disk)
        _assert_refused(
            ServerProcess(disk / "data"), "No space left on device", "make room on it", status=1
        )
        filling.unlink()
        _assert_whole(disk / "data")


@needs_root
def test_a_disk_that_is_mounted_read_only(filled: Path, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "64m") as disk:
        shutil.copytree(filled, disk / "data")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        _assert_refused(
            ServerProcess(disk / "data"), "Read-only file system", "mount it writable", status=1
        )
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        _assert_whole(disk / "data")


_AS_NOBODY = ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups")


@pytest.fixture
def data_of_nobody(filled: Path) -> Iterator[Path]:
    """A copy of the data for another user, in a directory of its own: each run of pytest closes
    those that pytest makes, also while another run is using them."""
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o755)
        probe = [*_AS_NOBODY, sys.executable, "-c", f"import os, streamd; os.stat({above!r})"]
        if shutil.which("setpriv") is None or subprocess.run(probe).returncode != 0:
            pytest.skip("another user cannot run streamd or reach temporary files here")
        data = shutil.copytree(filled, Path(above) / "data")
        for path in (data, *data.rglob("*")):
            os.chown(path, _NOBODY, _NOBODY)
        yield data


@needs_root
@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["", "LOCK", "identity.json", "log", "log/journal", "log/CURRENT", "floor", "state"]
)
def test_data_of_another_user(name: str, data_of_nobody: Path) -> None:
    """Files that a run as root has left are the commonest of all."""
    changed = data_of_nobody / name
    os.chown(changed, 0, 0)
    changed.chmod(0o700 if changed.is_dir() else 0o600)
    server = ServerProcess(data_of_nobody, wrapper=_AS_NOBODY)
    _assert_refused(server, "Permission denied", "chown", status=1)
    os.chown(changed, _NOBODY, _NOBODY)
    _assert_whole(data_of_nobody, wrapper=_AS_NOBODY)


def test_too_few_descriptors(data: Path) -> None:
    _assert_refused(_with_descriptors(data, 12), *_FEW_DESCRIPTORS, status=1)
    _assert_whole(data)


@pytest.mark.long
def test_each_number_of_descriptors_suffices_or_is_too_few(data: Path) -> None:
    """Each part of a server is the one for which the last is missing; none makes it wait."""
    for limit in range(13, 100):
        server = _with_descriptors(data, limit)
        if _begins_to_serve(server):
            break
        assert server.wait() in (1, 2)  # 2 if it cannot listen
        _assert_names(server, *_FEW_DESCRIPTORS)
    assert limit > 16
    _assert_whole(data)


_FEW_DESCRIPTORS = "Too many open files", "ulimit -n"


def _with_descriptors(data: Path, limit: int) -> ServerProcess:
    return ServerProcess(data, wrapper=["prlimit", f"--nofile={limit}"], expect_death=True)


def _begins_to_serve(server: ServerProcess) -> bool:
    with server:
        return server.ready


def test_a_limit_of_the_size_of_files(data: Path) -> None:
    server = ServerProcess(data, wrapper=["prlimit", "--fsize=4096"])
    _assert_refused(server, "too large", "ulimit -f", status=1)
    _assert_whole(data)


def test_a_file_in_place_of_the_directory_or_of_one_above_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, words in (("file", "File exists"), ("file/data", "Not a directory")):
        _assert_refused(ServerProcess(tmp_path / path), words, "configured path", status=1)


def test_a_directory_in_use(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as first:
        _assert_refused(ServerProcess(tmp_path / "data"), "in use", "stop that one", status=1)
        assert first.stop() == 0


# -- damage ------------------------------------------------------------------------------------


def _damage_the_vote(data: Path) -> None:
    content = bytearray((data / "vote").read_bytes())
    content[-1] ^= 1
    (data / "vote").write_bytes(content)


def test_a_node_without_peers_whose_vote_is_damaged(data: Path) -> None:
    """It has data that nobody else has, and only a backup has them, too."""
    _damage_the_vote(data)
    server = ServerProcess(data)
    server.start()
    assert server.wait() == 1
    last = server.output.splitlines()[-1]
    assert f"{data}/vote is damaged. " in last
    assert "Restore the data directory from a backup" in last


def test_a_member_whose_vote_is_damaged(tmp_path: Path) -> None:
    """An earlier state of its data would have forgotten what it confirmed to the others."""
    data = tmp_path / "data"
    member = {
        "STREAMD_CLUSTER_NAME": "letters",
        "STREAMD_CLUSTER_INSECURE": "true",
        "STREAMD_CLUSTER_LISTEN": f"127.0.0.1:{unused_port()}",
    }
    with ServerProcess(data, environment=member) as server:
        assert server.stop() == 0
    _damage_the_vote(data)
    server = ServerProcess(data, environment=member)
    words = (f"{data}/vote is damaged. ", "never used before", "cluster add", "--replacing")
    _assert_refused(server, *words, status=1)


# -- addresses and files of the configuration --------------------------------------------------

_KEYS_OF_ADDRESSES = ("server.listen", "admin.listen", "cluster.listen")


def _variables(key: str, value: str) -> dict[str, str]:
    more = {
        "cluster.listen": {"STREAMD_CLUSTER_NAME": "c", "STREAMD_CLUSTER_INSECURE": "true"},
        "cluster.secret_file": {"STREAMD_CLUSTER_NAME": "c"},
        "server.tls_cert": {"STREAMD_SERVER_TLS_KEY": value},
        "cluster.tls_ca": {
            "STREAMD_CLUSTER_NAME": "c",
            "STREAMD_CLUSTER_TLS_CERT": value,
            "STREAMD_CLUSTER_TLS_KEY": value,
        },
        "cold.fs_path": {"STREAMD_COLD_BACKEND": "fs"},
        "auth.jwt.jwks": {
            "STREAMD_AUTH_JWT_ISSUER": "https://issuer.example",
            "STREAMD_AUTH_JWT_AUDIENCE": "streamd",
            "STREAMD_AUTH_JWT_ALGORITHMS": "RS256",
        },
    }.get(key, {})
    return {f"STREAMD_{key.upper().replace('.', '_')}": value, "STREAMD_AUTH_MODE": "none", **more}


def _with_address(data: Path, key: str, address: str, wrapper: Sequence[str]) -> ServerProcess:
    if key == "server.listen":
        return ServerProcess(data, flags=["--listen", address], wrapper=wrapper,
                             environment={"STREAMD_AUTH_MODE": "none"})  # fmt: skip
    return ServerProcess(data, environment=_variables(key, address), wrapper=wrapper)


@pytest.mark.parametrize("key", _KEYS_OF_ADDRESSES)
def test_an_address_that_another_program_has(key: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        server = _with_address(tmp_path / "data", key, taken, [])
        _assert_refused(server, key, taken, "Address already in use", "ss -ltnp", status=2)


@pytest.mark.parametrize("key", _KEYS_OF_ADDRESSES)
def test_an_address_of_another_machine(key: str, tmp_path: Path) -> None:
    address = f"192.0.2.1:{unused_port()}"
    server = _with_address(tmp_path / "data", key, address, [])
    words = ("Cannot assign requested address", "ip addr")
    _assert_refused(server, key, address, *words, status=2)


@needs_strace
@pytest.mark.long
@pytest.mark.parametrize("key", _KEYS_OF_ADDRESSES)
def test_a_privileged_port(key: str, tmp_path: Path) -> None:
    # The first address that a node takes is its clients'.
    when = 1 if key == "server.listen" else 2
    fault = f"inject=bind:error=EACCES:when={when}"
    trace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", fault]
    server = _with_address(tmp_path / "data", key, f"127.0.0.1:{unused_port()}", trace)
    _assert_refused(server, key, "Permission denied", "Ports below 1024", status=2)


@pytest.mark.parametrize("key", _KEYS_OF_ADDRESSES)
def test_a_name_that_does_not_exist(key: str, tmp_path: Path) -> None:
    server = _with_address(tmp_path / "data", key, "nowhere.invalid:4440", [])
    _assert_refused(server, key, "nowhere.invalid", "Check the name", status=2)


_FILES_OF_THE_CONFIGURATION = {
    "server.tls_cert": "server.tls_cert",
    "cluster.tls_ca": "cluster.tls_cert",
    "cluster.secret_file": "cluster.secret_file",
    "auth.jwt.jwks": "auth.jwt.jwks",
    "log.audit": "log.audit",
    "cold.fs_path": "the directory",
}


def _in_place_of_a_directory(tmp_path: Path) -> tuple[Path, str]:
    (tmp_path / "file").touch()
    return tmp_path / "file" / "below", "Not a directory"


def _in_a_circle(tmp_path: Path) -> tuple[Path, str]:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    return tmp_path / "circle" / "below", "Too many levels of symbolic links"


@pytest.mark.parametrize("fault", [_in_place_of_a_directory, _in_a_circle])
@pytest.mark.parametrize("key", _FILES_OF_THE_CONFIGURATION)
def test_a_file_of_the_configuration_that_cannot_be_opened(
    key: str, fault: Callable[[Path], tuple[Path, str]], tmp_path: Path
) -> None:
    path, words = fault(tmp_path)
    server = ServerProcess(tmp_path / "data", environment=_variables(key, str(path)))
    # A directory is made, which fails where something else has its name.
    words = "cannot be written" if key == "cold.fs_path" else words
    named = _FILES_OF_THE_CONFIGURATION[key]
    _assert_refused(server, named, words, "configured path", status=2)


@pytest.mark.parametrize("fault", [_in_place_of_a_directory, _in_a_circle])
def test_a_configuration_that_cannot_be_opened(
    fault: Callable[[Path], tuple[Path, str]], tmp_path: Path
) -> None:
    path, words = fault(tmp_path)
    server = ServerProcess(tmp_path / "data", flags=["--config", str(path)])
    _assert_refused(server, str(path), words, "configured path", status=2)


# -- errors injected at system calls -----------------------------------------------------------

# An error of the system, and what its cure says.
_ERRORS = {
    "ENOSPC": "make room on it",
    "EDQUOT": "disk quota",
    "EACCES": "chown",
    "EPERM": "chown",
    "EROFS": "mount it writable",
    "EMFILE": "ulimit -n",
    "ENFILE": "fs.file-max",
    "ENOMEM": "more memory",
    "EIO": "copy the directory to a healthy disk",
    "ESTALE": "does not answer",
    "ENOLCK": "cannot lock files",
}
# What a start opens, and a pattern for what has another name each time.
_OPENED = (
    "LOCK", "identity.json", "floor", "vote", "log", "log/journal", "log/LOCK", "log/CURRENT",
    "log/MANIFEST-*", "state", "state/LOCK", "state/CURRENT", "state/MANIFEST-*", "root-token",
)  # fmt: skip
_EACH = 3


def _table() -> list[tuple[str, str]]:
    """Each file with some errors, and each error with some files."""
    errors = cycle(name for name in _ERRORS if name != "ENOLCK")
    return [(name, error) for name in _OPENED for error in islice(errors, _EACH)]


@pytest.mark.long
@needs_strace
@pytest.mark.parametrize(("name", "error"), _table())
def test_a_file_that_cannot_be_opened(name: str, error: str, data: Path, tmp_path: Path) -> None:
    (data / "root-token").write_text("00" * 32)
    [file] = data.glob(name)
    trace = [
        *("strace", "-f", "-qq", "-o", str(tmp_path / "trace"), "-P", str(file)),
        *("-e", "trace=openat", "-e", f"inject=openat:error={error}"),
    ]
    words = os.strerror(getattr(errno, error))
    _assert_refused(ServerProcess(data, wrapper=trace), words, _ERRORS[error], status=1)
    (data / "root-token").unlink()
    _assert_whole(data)


@pytest.mark.long
@needs_strace
@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("flock", "ENOLCK"),
        ("fdatasync", "EIO"),
        ("fdatasync", "ENOSPC"),
        ("fsync", "EIO"),
        ("rename", "EDQUOT"),
        ("rename", "EROFS"),
        ("pwrite64", "ENOSPC"),
        ("ftruncate", "EIO"),
        ("statx,newfstatat", "EIO"),
    ],
)
def test_a_call_that_fails(call: str, error: str, data: Path, tmp_path: Path) -> None:
    # Python looks at many other files.
    only = ["-P", str(data / "floor")] if "stat" in call else []
    trace = [
        *("strace", "-f", "-qq", "-o", str(tmp_path / "trace"), *only),
        *("-e", f"trace={call}", "-e", f"inject={call}:error={error}"),
    ]
    words = os.strerror(getattr(errno, error))
    _assert_refused(ServerProcess(data, wrapper=trace), words, _ERRORS[error], status=1)
    _assert_whole(data)
