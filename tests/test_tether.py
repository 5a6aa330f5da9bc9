"""A test run that is interrupted, at any moment and by any signal, leaves no server running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATIENCE_S = 30.0

# A run of one test, which hangs while a server and one under a wrapper serve.
RUN = """
import time
from pathlib import Path
from tests.support.server_process import ServerProcess

def test_that_hangs(tmp_path):
    with (
        ServerProcess(tmp_path / "one") as one,
        ServerProcess(tmp_path / "two", wrapper=["sh", "-c", '"$@" & wait', "sh"]) as two,
    ):
        told = Path(__file__).with_suffix(".told")
        told.with_suffix(".part").write_text(f"{one.process.pid} {two.process.pid}")
        told.with_suffix(".part").rename(told)
        time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_server(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "test_run.py").write_text(RUN)
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"),
         "-p", "no:cacheprovider", "--rootdir", str(ROOT), str(tmp_path / "test_run.py")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    with run:
        told = tmp_path / "test_run.told"
        wait_until(lambda: told.exists() or run.poll() is not None)
        assert told.exists(), run.communicate()[0].decode()
        groups = [int(pid) for pid in told.read_text().split()]
        assert all(members(group) for group in groups)
        run.send_signal(number)
        run.wait(PATIENCE_S)
        wait_until(lambda: not any(members(group) for group in groups))


def members(group: int) -> list[int]:
    """Processes of a group that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it has just ended
        if int(its_group) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
