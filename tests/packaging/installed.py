"""Programs that were installed from what the Makefile builds, away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support import tether
from tests.support.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
_INSTALL_TIMEOUT_S = 600


def environment(**more: str) -> dict[str, str]:
    """This process's variables without those that lead Python or streamd somewhere else."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "STREAMD_", "VIRTUAL_ENV"))
    }
    return {**kept, **more}


def run(
    *command: str | Path, cwd: Path, given: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, however it ends."""
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment(**variables),
        input=given,
        capture_output=True,
        text=True,
        timeout=_INSTALL_TIMEOUT_S,
    )


def output(*command: str | Path, cwd: Path, given: str = "", **variables: str) -> str:
    """What a command prints. Raises `AssertionError` with what it says if it fails."""
    done = run(*command, cwd=cwd, given=given, **variables)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


class Venv:
    """A fresh virtual environment with some packages, in the versions of requirements.lock."""

    def __init__(self, directory: Path, *packages: Path) -> None:
        self.directory = directory
        self.python = directory / "bin" / "python"
        self.streamd = directory / "bin" / "streamd"
        output(sys.executable, "-m", "venv", "--without-pip", directory, cwd=directory.parent)
        self.install(*packages)

    def install(self, *packages: Path, flags: Sequence[str] = ()) -> None:
        """Install packages by pip, with what they need from the index."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.directory), "install", "--quiet"]
        lock = ROOT / "requirements.lock"
        output(*pip, "--constraint", lock, *flags, *packages, cwd=self.directory)

    def run_python(self, program: str) -> subprocess.CompletedProcess[str]:
        return run(self.python, "-c", program, cwd=self.directory)

    def type_errors(self, program: str) -> str:
        """What mypy, strict, says about a user's program in this environment."""
        path = self.directory / "program.py"
        path.write_text(program)
        flags = [f"--python-executable={self.python}", f"--cache-dir={self.directory}/mypy"]
        mypy = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *flags]
        return run(*mypy, path, cwd=self.directory).stdout


class InstalledServer(ServerProcess):
    """`serve` of a program that was installed somewhere."""

    def __init__(
        self,
        program: Sequence[str | Path],
        data_dir: Path,
        *,
        flags: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__(data_dir, flags=flags, port=port)
        self._program = list(map(str, program))
        self.variables = dict(variables or {})

    def start(self) -> None:
        self.process = tether.start(
            [*self._program, *self._arguments],
            cwd="/",
            env=environment(**self.variables),
            stdout=self._output,
            stderr=self._output,
        )
