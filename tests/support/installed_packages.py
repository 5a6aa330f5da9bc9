"""Packages for tests that are too large for every checkout, or not to be in the environment of all
tests: installed once a machine for each lock file, in the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from tests.support.tools import INDEX, REGISTRY, cache_directory, node_or_skip, skip_without

_INSTALL_TIMEOUT_S = 900
_UNREACHABLE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|ETIMEDOUT"
    r"|NewConnectionError|NameResolutionError|ConnectTimeout|ProxyError"
)


def node_packages_or_skip(folder: Path) -> Path:
    """A folder in the cache with the `node_modules` of a folder's lock file. Without Node, or where
    npm's registry cannot be reached, the test is skipped.

    Raises `AssertionError` when npm refuses the lock file.
    """
    node_or_skip()
    lock_file = folder / "package-lock.json"

    def install(kept: Path) -> None:
        for name in ("package.json", lock_file.name):
            shutil.copy(folder / name, kept)
        # It begins by removing what an installation that was broken off has left.
        npm = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        _run_or_skip(npm, kept, REGISTRY)

    return _kept(folder.name, lock_file.read_bytes(), install)


def python_or_skip(lock_file: Path) -> Path:
    """The Python of an environment with the packages of a lock file. Where the index cannot be
    reached, the test is skipped.

    Raises `AssertionError` when pip refuses the lock file.
    """

    def install(kept: Path) -> None:
        venv.create(kept, with_pip=True, clear=False)
        pip = [str(kept / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
        _run_or_skip([*pip, "--requirement", str(lock_file)], kept, INDEX)

    key = lock_file.read_bytes() + sys.version.encode()
    return _kept(lock_file.stem, key, install) / "bin" / "python"


def _kept(name: str, key: bytes, install: Callable[[Path], None]) -> Path:
    """The folder in the cache for a key, in which `install` was called once."""
    kept = cache_directory() / f"{name}-{hashlib.sha256(key).hexdigest()[:16]}"
    kept.mkdir(parents=True, exist_ok=True)
    with open(kept / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one installs; the others wait for it
        if not (kept / "installed").exists():
            install(kept)
            (kept / "installed").touch()
    return kept


def _run_or_skip(command: list[str], directory: Path, source: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        skip_without(source, str(error))
    if done.returncode and (why := _UNREACHABLE.search(done.stderr)):
        skip_without(source, why[0])
    assert done.returncode == 0, done.stderr
