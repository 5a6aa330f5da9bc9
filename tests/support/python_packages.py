"""Python packages for tests that are not to be in the environment of all: installed once a machine,
for each lock file and Python, in an environment of their own.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tests.support.tools import INDEX, cache_directory, skip_without

_INSTALL_TIMEOUT_S = 900
_UNREACHABLE = re.compile(r"NewConnectionError|NameResolutionError|ConnectTimeout|ProxyError")


def python_or_skip(lock_file: Path) -> Path:
    """The Python of an environment with the packages of a lock file. Where the index cannot be
    reached, the test is skipped.

    Raises `AssertionError` when pip refuses the lock file.
    """
    digest = hashlib.sha256(lock_file.read_bytes() + sys.version.encode()).hexdigest()[:16]
    kept = cache_directory() / f"{lock_file.stem}-{digest}"
    kept.mkdir(parents=True, exist_ok=True)
    with open(kept / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one installs; the others wait for it
        if not (kept / "installed").exists():
            _install(lock_file, kept)
            (kept / "installed").touch()
    return kept / "bin" / "python"


def _install(lock_file: Path, kept: Path) -> None:
    venv.create(kept, with_pip=True, clear=False)
    command = [str(kept / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
    with tempfile.TemporaryDirectory(dir=kept) as directory:
        try:
            done = subprocess.run(
                [*command, "--requirement", str(lock_file)],
                cwd=directory,
                capture_output=True,
                text=True,
                timeout=_INSTALL_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            skip_without(INDEX, str(error))
    if done.returncode and (why := _UNREACHABLE.search(done.stderr)):
        skip_without(INDEX, why[0])
    assert done.returncode == 0, done.stderr
