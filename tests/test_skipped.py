"""The list of what was not tested, over several runs of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import skipped
from tests.support.tools import STRACE

ROOT = Path(__file__).parents[1]
TESTS = f"""
import pytest
from tests.support.tools import needs, skip_without

@needs({STRACE!r}, found=False)
@pytest.mark.parametrize("number", [1, 2])
def test_that_traces(number): ...

@needs("a tool that is here", found=True)
def test_that_runs(): ...

def test_that_finds_out_late():
    skip_without({STRACE!r})

@pytest.mark.skip("long")
def test_that_is_long(): ...
"""


def run(tmp_path: Path, *flags: str) -> None:
    """Run the tests above in a project with this one's hooks."""
    (tmp_path / "test_tools.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    subprocess.run(
        [sys.executable, "-m", "pytest", *flags],
        env={**os.environ, "PYTHONPATH": str(ROOT), skipped.FILE: str(tmp_path / "skipped")},
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )


@pytest.mark.long
def test_tests_that_lack_a_tool_are_listed_once_over_all_runs(tmp_path: Path) -> None:
    run(tmp_path)
    run(tmp_path, "-n", "2", "--dist", "loadfile")
    assert skipped.summary((tmp_path / "skipped").read_text().splitlines()) == [
        "-- not tested, for want of a tool:",
        f"    3 tests: needs {STRACE}",
        "             test_tools.py",
        "-- not tested, by choice:",
        "    1 tests: long",
        "             test_tools.py",
    ]


def test_where_nothing_is_missing_the_list_says_so() -> None:
    assert skipped.summary([]) == ["-- no tool was missing"]
