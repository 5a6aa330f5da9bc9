"""What type checkers say about users' programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def type_errors(program: str, directory: Path) -> list[str]:
    """What mypy finds wrong in a program that uses the installed package, a line for each error.

    It is strict, which refuses a `type: ignore` that hides nothing.
    """
    path = directory / "program.py"
    path.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(path)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    assert not done.stderr
    return [line for line in done.stdout.splitlines() if ": error:" in line]
