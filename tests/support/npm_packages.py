"""Packages of npm that are large: installed once a machine for each lock file."""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.tools import REGISTRY, cache_directory, node_or_skip, skip_without

_INSTALL_TIMEOUT_S = 900
_UNREACHABLE = re.compile(r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|ETIMEDOUT")


def installed_or_skip(folder: Path) -> Path:
    """A folder in the cache with the `node_modules` of a folder's lock file. Without Node, or where
    npm's registry cannot be reached, the test is skipped.

    Raises `AssertionError` when npm refuses the lock file.
    """
    node_or_skip()
    lock_file = folder / "package-lock.json"
    digest = hashlib.sha256(lock_file.read_bytes()).hexdigest()[:16]
    kept = cache_directory() / f"{folder.name}-{digest}"
    kept.mkdir(parents=True, exist_ok=True)
    with open(kept / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one installs; the others wait for it
        if not (kept / "node_modules").exists():
            _install(folder, kept)
    return kept


def _install(folder: Path, kept: Path) -> None:
    with tempfile.TemporaryDirectory(dir=kept) as directory:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(folder / name, directory)
            shutil.copy(folder / name, kept)  # bundlers take it for the root of what they may read
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        try:
            done = subprocess.run(
                [*command, "--loglevel=error"],
                cwd=directory,
                capture_output=True,
                text=True,
                timeout=_INSTALL_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            skip_without(REGISTRY, str(error))
        if done.returncode and _UNREACHABLE.search(done.stderr):
            skip_without(REGISTRY, done.stderr.strip().splitlines()[0])
        assert done.returncode == 0, done.stderr
        (Path(directory) / "node_modules").rename(kept / "node_modules")
