"""Small file systems of their own, which can be filled up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.tools import MOUNTING, needs, skip_without

needs_root = needs(MOUNTING, os.geteuid() == 0)


@contextmanager
def tmpfs(directory: Path, size: str) -> Iterator[Path]:
    """A new directory with a file system of a `size` such as ``64m``; skips the test where none may
    be mounted."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        skip_without(MOUNTING)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)
