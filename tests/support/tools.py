"""What some tests need of a machine beyond Python. Without it they are skipped, and name it.

`make test` and `make test-all` list at their end what was skipped (`tests.support.skipped`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

NEEDS = "needs "
NODE = "Node 20 or newer, with npm"
REGISTRY = "npm's registry, or what was installed from it before"
INDEX = "Python's package index, or what was installed from it before"
JAVA = "Java 17 or newer"
COMPILER = "a C compiler (cc)"
CURL = "curl"
WRK = "wrk"
STRACE = "strace, and the right to trace processes"
ATTACHING = "strace, and the right to attach to a process, which root has"
MOUNTING = "root, and the right to mount file systems"
MINIO = "MinIO, or Go to build it"
GIT = "git"
HISTORY = "git, and a clone with its history"
HELM = "Helm, or Go to build it"
BUILDING = "`build`, which `make test-all` installs"
PROMETHEUS = "Prometheus with promtool, or apt-get and dpkg to fetch Debian's"
_OLDEST_NODE = 20


def needs(tool: str, found: bool) -> pytest.MarkDecorator:
    """Marks tests that are skipped where the tool was not `found`."""
    return pytest.mark.skipif(not found, reason=NEEDS + tool)


def skip_without(tool: str, why: str = "") -> NoReturn:
    """Skip the test that runs, for want of a tool."""
    pytest.skip(NEEDS + tool + (f": {why}" if why else ""))


def cache_directory() -> Path:
    """What the tests keep for further runs on a machine, and CI from one clean room to the next."""
    if own := os.environ.get("STREAMD_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "streamd"


def has_java() -> bool:
    """Whether there is a Java where Spark looks for one, however old."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(f"{home}/bin/java" if home else "java") is not None


def node_or_skip() -> None:
    """Skip the test that runs where there is no Node, or one too old."""
    if not _has_node():
        skip_without(NODE)


@cache
def _has_node() -> bool:
    if shutil.which("node") is None or shutil.which("npm") is None:
        return False
    told = subprocess.run(["node", "--version"], capture_output=True, text=True)
    version = re.match(r"v(\d+)\.", told.stdout)
    return version is not None and int(version[1]) >= _OLDEST_NODE
