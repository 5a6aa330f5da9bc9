"""How the tests are shared out among processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.scheduling import longest

ROOT = Path(__file__).parents[1]
WHERE = """
import os
from pathlib import Path

def test_where():
    Path(__file__).with_suffix(".worker").write_text(os.environ["PYTEST_XDIST_WORKER"])
"""
WHERE_EACH = """
import os
from pathlib import Path
import pytest

@pytest.mark.parametrize("seed", [1, 2])
def test_where(seed):
    Path(__file__).with_name(f"{seed}.worker").write_text(os.environ["PYTEST_XDIST_WORKER"])
"""


@pytest.mark.long
def test_the_tests_of_spark_run_in_one_process_and_others_in_all(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    for folder in ("tests/spark", "tests/spark/sink", "tests/others"):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(4):
            (tmp_path / folder / f"test_{number}.py").write_text(WHERE)
    run_in_two_processes(tmp_path)
    workers = defaultdict(set)
    for told in tmp_path.rglob("*.worker"):
        workers[told.relative_to(tmp_path).parts[1]].add(told.read_text())
    assert len(workers["spark"]) == 1
    assert workers["spark"] | workers["others"] == {"gw0", "gw1"}


@pytest.mark.long
def test_the_simulations_of_one_file_are_shared_out(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (tmp_path / "tests/sim").mkdir(parents=True)
    (tmp_path / "tests/sim/test_simulation.py").write_text(WHERE_EACH)
    run_in_two_processes(tmp_path)
    assert {told.read_text() for told in tmp_path.rglob("*.worker")} == {"gw0", "gw1"}


def run_in_two_processes(directory: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-n", "2", "--dist", "loadfile"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=directory,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout


def test_long_files_begin_first() -> None:
    scopes = ["tests/test_cli.py", "tests/sim/test_live.py", "tests/spark/"]
    assert longest(scopes) == "tests/spark/"
    assert longest(scopes[:2]) == "tests/sim/test_live.py"
    assert longest(["tests/b.py", "tests/a.py"]) == "tests/b.py", "the one with most tests"
