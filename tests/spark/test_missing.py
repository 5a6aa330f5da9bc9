"""The errors of a job that lacks something on this machine: one line, and the exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
CHUNKS = [str(ROOT / "spark" / "audit_chunks.py")]


def run(arguments: list[str], tmp_path: Path, **environment: str) -> str:
    """The last line printed by a job that could not run."""
    ended = subprocess.run(
        [sys.executable, *arguments, "--store", str(tmp_path), "--out", str(tmp_path / "out")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 2, ended
    assert ended.stdout == ""
    return ended.stderr


def test_a_job_without_java_says_so(tmp_path: Path) -> None:
    told = run(CHUNKS, tmp_path, PATH=str(tmp_path), JAVA_HOME="")
    assert told == (
        "could not be run: Spark needs Java 17 or newer: install it, or set JAVA_HOME\n"
    )


def test_a_wrong_java_home_is_named(tmp_path: Path) -> None:
    told = run(CHUNKS, tmp_path, JAVA_HOME="/nowhere")
    assert told == (
        "could not be run: Spark needs Java 17 or newer: there is none in JAVA_HOME=/nowhere\n"
    )


def test_a_java_too_old_for_spark_is_named_with_its_version(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\nexit 1\n")
    java.chmod(0o755)
    told = run(CHUNKS, tmp_path, JAVA_HOME=str(tmp_path))
    assert told.splitlines()[-1] == (
        f'could not be run: Spark needs Java 17 or newer: {java} is openjdk version "11.0.2"'
    )
    assert "Traceback" not in told


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_a_job_without_the_extra_says_how_to_install_it(missing: str, tmp_path: Path) -> None:
    script = (
        f"import runpy, sys; sys.modules[{missing!r}] = None; sys.argv[0] = {CHUNKS[0]!r}; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    told = run(["-c", script], tmp_path)
    cure = "pip install '.[spark]' in streamd's checkout"
    assert told == f"could not be run: {missing} is not installed: {cure}\n"
