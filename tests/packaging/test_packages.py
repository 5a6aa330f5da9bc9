"""The packages for Debian and Red Hat: installed, served from, upgraded, removed and purged.

All of it on a copy of this machine's files that only these tests see: an overlay file system.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import streamd
from tests.packaging.conftest import Built
from tests.packaging.installed import ROOT, InstalledServer, output, run
from tests.support.tools import MOUNTING, NEEDS, needs

pytestmark = [pytest.mark.long, needs(MOUNTING, os.geteuid() == 0)]

LATER = "99.0.0"
CONFIGURATION = "/etc/streamd/streamd.toml"
DATA = Path("/var/lib/streamd/data")
ENTER = """
mount -t overlay overlay -o "lowerdir=/,upperdir=$0/changes,workdir=$0/work" "$0/root"
mount -t proc proc "$0/root/proc"
mount --rbind /dev "$0/root/dev"
exec chroot "$0/root" "$@"
"""


class Manager(NamedTuple):
    """The words of a package manager."""

    install: tuple[str, ...]
    remove: tuple[str, ...]
    purge: tuple[str, ...] | None


MANAGERS = {
    "deb": Manager(
        ("dpkg", "--install"), ("dpkg", "--remove", "streamd"), ("dpkg", "--purge", "streamd")
    ),
    # Its database does not know what Debian has installed.
    "rpm": Manager(("rpm", "--upgrade", "--nodeps"), ("rpm", "--erase", "streamd"), None),
}


class Machine:
    """What this machine would be like after some commands; they change files of its own alone."""

    def __init__(self, directory: Path) -> None:
        for name in ("changes", "work", "root"):
            (directory / name).mkdir()
        self.changes = directory / "changes"
        self.enter = ["unshare", "--mount", "sh", "-ec", ENTER, str(directory)]

    def run(self, *command: str) -> str:
        return output(*self.enter, *command, cwd=self.changes)

    def has(self, path: str) -> bool:
        return run(*self.enter, "test", "-e", path, cwd=self.changes).returncode == 0

    def serve(self) -> InstalledServer:
        program = [*self.enter, "/usr/bin/streamd"]
        return InstalledServer(program, DATA, flags=["--config", CONFIGURATION])


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    yield Machine(tmp_path)
    shutil.rmtree(tmp_path / "work")


@pytest.fixture(scope="module")
def later(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with packages of the next release, which has the same files."""
    directory = tmp_path_factory.mktemp("later")
    script = ROOT / "packaging" / "packages.py"
    output(sys.executable, script, built.tree, directory, LATER, cwd=directory)
    return directory


@pytest.mark.parametrize("kind", MANAGERS)
def test_a_package_is_installed_upgraded_and_purged_but_the_streams_stay(
    kind: str, built: Built, later: Path, machine: Machine
) -> None:
    manager = MANAGERS[kind]
    if shutil.which(manager.install[0]) is None:
        pytest.skip(f"{NEEDS}{manager.install[0]}")
    shutil.copy({"deb": built.deb, "rpm": built.rpm}[kind], machine.changes / "first")
    shutil.copy(next(later.glob(f"*.{kind}")), machine.changes / "second")

    machine.run(*manager.install, "/first")
    assert streamd.__version__ in machine.run("/usr/bin/streamd", "--version")
    said = run(*machine.enter, "systemd-analyze", "verify", "streamd.service", cwd=machine.changes)
    assert "streamd.service" not in said.stderr
    machine.run("sh", "-c", f"echo '# ours' >> {CONFIGURATION} && mkdir -p {DATA.parent}")
    with machine.serve() as server:
        machine.run("streamd", "create", "demo/kept", "--url", server.url)
        assert server.stop() == 0

    machine.run(*manager.install, "/second")
    assert "# ours" in machine.run("tail", "-n", "1", CONFIGURATION)
    with machine.serve() as server:
        assert "kept" in machine.run("streamd", "list", "demo", "--url", server.url)
        assert server.stop() == 0

    machine.run(*manager.remove)
    assert not any(map(machine.has, ("/usr/bin/streamd", "/usr/lib/streamd")))
    if manager.purge is not None:
        assert machine.has(CONFIGURATION)
        assert "were not deleted" in machine.run(*manager.purge)
    assert not machine.has(CONFIGURATION)
    assert machine.has(str(DATA))


def test_the_unit_exposes_little(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip(f"{NEEDS}systemd-analyze")
    unit = ROOT / "packaging" / "systemd" / "streamd.service"
    # In tenths: below 2 of 10.
    output("systemd-analyze", "security", "--offline=yes", "--threshold=20", unit, cwd=tmp_path)
