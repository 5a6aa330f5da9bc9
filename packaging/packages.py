"""Makes the packages for Debian and Red Hat of a tree (`tree.py`), by nfpm.

python packaging/packages.py TREE DIRECTORY [VERSION]
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def make_packages(tree: Path, directory: Path, version: str) -> None:
    """Write both. Raises `subprocess.CalledProcessError` when nfpm fails."""
    variables = {
        "ARCH": _ARCHITECTURES[platform.machine()],
        "GLIBC": platform.libc_ver()[1],
        "TREE": str(tree.resolve()),
        # Both package managers sort `~` before anything else: the release is newer.
        "VERSION": version.replace(".dev", "~dev"),
    }
    nfpm = str(Path(sys.executable).with_name("nfpm"))
    for kind in ("deb", "rpm"):
        command = [nfpm, "package", "--config", "packaging/linux/nfpm.yaml", "--packager", kind]
        subprocess.run(
            [*command, "--target", str(directory.resolve())],
            cwd=ROOT,
            env={**os.environ, **variables},
            check=True,
        )


def version_of(tree: Path) -> str:
    """The version of the streamd in a tree."""
    program = "import streamd; print(streamd.__version__)"
    command = [str(tree / "bin" / "python3"), "-I", "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    made_of = Path(sys.argv[1])
    make_packages(made_of, Path(sys.argv[2]), (*sys.argv[3:], version_of(made_of))[0])
