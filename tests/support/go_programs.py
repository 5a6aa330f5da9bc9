"""Programs in Go for tests: found on the PATH, or built from their source, once a machine."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.support.tools import cache_directory

_BUILD_TIMEOUT_S = 3000


class NotBuilt(Exception):
    """A program is not on this machine and could not be built; the message says why."""


class GoProgram(NamedTuple):
    """A program of this name, which `go install PACKAGE@VERSION` builds."""

    name: str
    package: str
    version: str

    def find(self, *, build: bool = True) -> Path:
        """The executable, built if need be, in some minutes. Raises `NotBuilt`."""
        on_path = shutil.which(self.name)
        if on_path is not None:
            return Path(on_path)
        built = cache_directory() / f"{self.name}-{self.version}" / self.name
        if built.exists():
            return built
        if not build:
            raise NotBuilt(f"{self.name} is neither on the PATH nor built")
        built.parent.mkdir(parents=True, exist_ok=True)
        with open(built.parent / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one build at a time; the others wait for it
            if not built.exists():
                self._build(built)
        return built

    def _build(self, target: Path) -> None:
        go = shutil.which("go")
        if go is None:
            raise NotBuilt(f"{self.name} is not on the PATH, and without go it cannot be built")
        source = f"{self.package}@{self.version}"
        with tempfile.TemporaryDirectory(dir=target.parent) as directory:
            try:
                subprocess.run(
                    ["nice", go, "install", "-trimpath", "-ldflags=-s -w", source],
                    env={**os.environ, "GOBIN": directory},
                    check=True,
                    capture_output=True,
                    text=True,
                    timeout=_BUILD_TIMEOUT_S,
                )
            except subprocess.CalledProcessError as error:
                last_lines = "\n".join(error.stderr.strip().splitlines()[-5:])
                raise NotBuilt(f"{self.name} could not be built:\n{last_lines}") from error
            except (OSError, subprocess.TimeoutExpired) as error:
                raise NotBuilt(f"{self.name} could not be built: {error}") from error
            os.rename(Path(directory) / self.name, target)
