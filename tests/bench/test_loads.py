"""Loads on real processes: tails, processor time, and readers that wait meanwhile."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from bench import figures
from bench.load import append_to_one
from bench.machine import Cores
from bench.process import ServerProcess
from bench.results import Results
from bench.servers import Streamd
from bench.trial import Trial
from tests.jepsen_like.cluster_processes import wait_until
from tests.support.tools import WRK, needs

BURNS = """
import os, signal, time
if (child := os.fork()) == 0:
    while time.process_time() < 0.2: pass
    os._exit(0)
os.waitpid(child, 0)
print("burnt", flush=True)
signal.pause()
"""


def trial(directory: Path) -> Trial:
    return Trial(
        server=Streamd(),
        cores=Cores(None, None),
        data_dir=directory,
        duration_s=1.0,
        idle_streams=1,
        results=Results(),
    )


@needs(WRK, shutil.which("wrk") is not None)
def test_appends_have_a_rate_tails_and_processor_time(tmp_path: Path) -> None:
    given = trial(tmp_path)
    expected = figures.APPEND_64
    with given.running() as server:
        values = append_to_one(given, server, expected, connections=4)
    assert set(values) == set(expected.all)
    assert 0 < values[expected.p50] <= values[expected.p99] <= values[expected.p99_9]
    assert values[expected.rate] > 0
    # 10 µs is less than any append takes, 100 ms more than any does.
    assert 10 < values[expected.cpu] < 100_000
    assert given.results.remarks == []


def test_processor_time_is_also_that_of_children_that_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = ServerProcess([sys.executable, "-c", BURNS], port=0, core=None, log=log)
    try:
        wait_until(lambda: "burnt" in log.read_text(), "the child has ended")
        used_s = process.all_cpu_s()
        assert used_s is not None
        # The system counts in hundredths of a second.
        assert used_s - process.cpu_s() > 0.18
    finally:
        process.kill()


def test_without_proc_the_report_says_that_processor_times_are_not_known(tmp_path: Path) -> None:
    given = trial(tmp_path)
    assert given.processor_time(figures.CREATE.cpu, 5.0) == {figures.CREATE.cpu: 5.0}
    assert given.results.remarks == []
    assert given.processor_time(figures.CREATE.cpu, None) == {}
    assert given.results.remarks == [
        "this system has no /proc, so that processor times are not known"
    ]
