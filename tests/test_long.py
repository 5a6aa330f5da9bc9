"""What `make test` leaves to `make test-all`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.long import ALL_BUT_LONG

ROOT = Path(__file__).parents[1]
QUICK = """
import pytest
from hypothesis import settings
from tests.support.long import first_quick

@pytest.mark.parametrize("way", ["usual", pytest.param("odd", marks=pytest.mark.long)])
def test_ways(way): ...

@pytest.mark.parametrize("place", first_quick("ab"))
def test_places(place): ...

@pytest.mark.parametrize("examples", [settings().max_examples])
def test_examples(examples): ...

@pytest.mark.long
def test_that_takes_long(): ...
"""
LONG = """
import pytest, sys

pytestmark = {mark}
assert "-m" not in sys.argv, "imported though it is not wanted"

def test_of_a_long_module(): ...
"""


@pytest.mark.parametrize(
    "mark",
    [
        "[\n    pytest.mark.long,\n    pytest.mark.usefixtures(),\n]",
        pytest.param("pytest.mark.long", marks=pytest.mark.long),
    ],
)
def test_long_tests_are_left_out_on_request_and_long_modules_not_imported(
    mark: str, tmp_path: Path
) -> None:
    (tmp_path / "test_quick.py").write_text(QUICK)
    (tmp_path / "test_long.py").write_text(LONG.format(mark=mark))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    assert collected(tmp_path) == {
        "test_long.py::test_of_a_long_module",
        "test_quick.py::test_ways[usual]",
        "test_quick.py::test_ways[odd]",
        "test_quick.py::test_places[a]",
        "test_quick.py::test_places[b]",
        "test_quick.py::test_examples[100]",
        "test_quick.py::test_that_takes_long",
    }
    assert collected(tmp_path, "-m", ALL_BUT_LONG) == {
        "test_quick.py::test_ways[usual]",
        "test_quick.py::test_places[a]",
        "test_quick.py::test_examples[25]",
    }


def collected(directory: Path, *flags: str) -> set[str]:
    """The ids of the tests that would run."""
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--collect-only", "-q", *flags],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=directory,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return set(re.findall(r"^test_\S+::\S+", ended.stdout, re.MULTILINE))


def test_make_test_leaves_them_out_and_nothing_else_does() -> None:
    selecting = re.findall(r"-m (?:\S* )?[\"'].*[\"']", (ROOT / "Makefile").read_text())
    assert selecting == [f'-m "{ALL_BUT_LONG}"']
