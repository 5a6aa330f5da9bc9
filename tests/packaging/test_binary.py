"""The single file: it runs where there is no Python, and is a whole server."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import streamd
from tests.conformance.test_conformance import SETTINGS, run_suite
from tests.packaging.conftest import Built
from tests.packaging.installed import InstalledServer, output, run
from tests.support.ports import unused_port
from tests.support.tools import MOUNTING, needs

pytestmark = pytest.mark.long

# What the file needs to unpack itself, and the loader and parts of the C library for it all.
TOOLS = ("sh", "mkdir", "mktemp", "mv", "rm", "tail", "tar", "gzip", "sync")
LIBRARY_PARTS = (
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libutil.so.1",
)
needs_root = needs(MOUNTING, os.geteuid() == 0)


@pytest.fixture(scope="module")
def binary(built: Built) -> Path:
    return built.binary


@pytest.fixture(scope="module")
def bare_system(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root of a system with a shell, few tools and no Python; the file is in it."""
    root = tmp_path_factory.mktemp("system")
    programs = [Path(str(shutil.which(tool))).resolve() for tool in TOOLS]
    linked = subprocess.run(["ldd", *programs], check=True, capture_output=True, text=True).stdout
    libraries = {Path(word) for word in linked.split() if word.startswith("/") and word[-1] != ":"}
    beside_libc = next(path for path in libraries if path.name == "libc.so.6").parent
    libraries |= {beside_libc / name for name in LIBRARY_PARTS}
    for path in libraries:
        (root / path.parent.relative_to("/")).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path.relative_to("/"))
    for name in ("bin", "dev", "etc", "proc", "root", "tmp"):
        (root / name).mkdir()
    for tool, program in zip(TOOLS, programs, strict=True):
        shutil.copy(program, root / "bin" / tool)
    shutil.copy(binary, root / "bin" / "streamd")
    shutil.copy("/etc/hosts", root / "etc")
    os.mknod(root / "dev" / "null", 0o20666, os.makedev(1, 3))
    yield root
    shutil.rmtree(root)


def inside(root: Path) -> list[str | Path]:
    """The command of the file in a system of its own, with a `/proc` that ends with it."""
    enter = 'mount -t proc proc "$0/proc" && exec chroot "$0" /bin/streamd "$@"'
    return ["unshare", "--mount", "sh", "-c", enter, root]


@needs_root
def test_it_runs_where_there_is_no_python(bare_system: Path, tmp_path: Path) -> None:
    assert not list(bare_system.rglob("*python*"))
    said = output(*inside(bare_system), "--version", cwd=tmp_path, HOME="/root")
    assert said.startswith(f"streamd, version {streamd.__version__} ")


@needs_root
@pytest.mark.conformance
def test_it_conforms_where_there_is_no_python(bare_system: Path, tmp_path: Path) -> None:
    variables = {**SETTINGS, "HOME": "/root", "STREAMD_SERVER_WORKERS": "2"}
    with InstalledServer(inside(bare_system), Path("/data"), variables=variables) as server:
        run_suite(server.url, tmp_path, token="")
        assert server.stop() == 0


def test_it_unpacks_once_also_when_several_start_at_once(binary: Path, tmp_path: Path) -> None:
    starts = [
        subprocess.Popen([binary, "--version"], env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
        for _ in range(3)
    ]
    assert [start.wait() for start in starts] == [0, 0, 0]
    (tree,) = (tmp_path / "streamd").iterdir()
    before = tree.stat()
    output(binary, "--version", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path))
    assert list((tmp_path / "streamd").iterdir()) == [tree]
    assert tree.stat() == before


def test_without_a_place_to_unpack_to_it_says_what_to_set(binary: Path, tmp_path: Path) -> None:
    done = run(binary, "--version", cwd=tmp_path, HOME="", XDG_CACHE_HOME="")
    assert (done.returncode, done.stderr) == (
        2,
        "streamd unpacks itself below XDG_CACHE_HOME or HOME: set one of them\n",
    )


def test_a_cluster_of_three_serves_from_it(binary: Path, tmp_path: Path) -> None:
    unpacked = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    output(binary, "--version", cwd=tmp_path, **unpacked)
    peers = [f"127.0.0.1:{unused_port()}" for _ in range(3)]
    with ExitStack() as running:
        nodes = []
        for number, peer in enumerate(peers, 1):
            variables = {
                **unpacked,
                "STREAMD_SERVER_NODE_ID": str(number),
                "STREAMD_CLUSTER_NAME": "binary",
                "STREAMD_CLUSTER_LISTEN": peer,
                "STREAMD_CLUSTER_ROUTES": ",".join(peers),
                "STREAMD_CLUSTER_BOOTSTRAP_NODE_ID": "1",
            }
            node = InstalledServer([binary], tmp_path / f"data{number}", variables=variables)
            node.start()
            running.callback(node.kill)
            nodes.append(node)
        for node in nodes:
            node.wait_ready()

        def command(node: InstalledServer, *words: str, given: str = "") -> str:
            more = {"STREAMD_URL": node.url, **unpacked}
            return output(binary, *words, cwd=tmp_path, given=given, **more)

        command(nodes[0], "cluster", "wait-ready")
        command(nodes[0], "create", "demo/hello")
        command(nodes[1], "append", "demo/hello", given="hi\n")
        nodes[0].kill()
        assert command(nodes[2], "read", "demo/hello") == "hi\n"
