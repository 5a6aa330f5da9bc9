"""Loads on real processes: tails, processor time, and readers that wait meanwhile."""

from __future__ import annotations

import select
import shutil
import socket
import sys
from pathlib import Path

from bench import figures
from bench.loaded import append_loaded
from bench.machine import Cores
from bench.process import ServerProcess
from bench.results import Results
from bench.servers import Streamd
from bench.sse import Subscriber
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
        live_streams=20,
        readers=5,
        results=Results(),
    )


@needs(WRK, shutil.which("wrk") is not None)
def test_appends_on_a_loaded_node_have_a_rate_tails_and_processor_time(tmp_path: Path) -> None:
    given = trial(tmp_path)
    expected = figures.APPEND_64_LOADED
    values = append_loaded(expected, 4, given)
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


def test_a_reader_whose_response_ended_is_noticed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reader = Subscriber(listener.getsockname()[1], "/s")
        server, _ = listener.accept()
        with reader.socket, server:
            server.sendall(b"event: control\n\n")
            reader.await_ready()
            assert not reader.has_ended()
            server.sendall(b": heartbeat\n\n0\r\n\r\n")
            select.select([reader.socket], [], [], 10)
            assert reader.has_ended()
            server.shutdown(socket.SHUT_RDWR)
            select.select([reader.socket], [], [], 10)
            assert reader.has_ended()
