"""Killed at any sync, the server keeps every promise it made."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path

import pytest

from tests.crash.strace import injecting, needs_strace
from tests.crash.workload import Workload
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

_AT_ONCE = 2


def _killed_at(occurrence: int, syscall: str, directory: Path) -> Workload:
    """Run the workload, kill the server at that point, start it again, and check."""
    directory.mkdir()
    data_dir = directory / "data"
    wrapper = injecting(syscall, "signal=KILL", str(occurrence), directory / "trace")
    workload = Workload()
    with ServerProcess(data_dir, wrapper=wrapper, expect_death=True) as doomed:
        if doomed.ready:
            workload.run(doomed.port)
    with ServerProcess(data_dir) as again:
        workload.verify(again.port)
    return workload


@needs_strace
@pytest.mark.parametrize("syscall", ["fdatasync", "rename"])
def test_a_kill_at_every_sync_neither_loses_nor_repeats_an_append(
    syscall: str, tmp_path: Path
) -> None:
    occurrences = count(1)
    survived: list[int] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        while not any(survived):
            wave = list(islice(occurrences, _AT_ONCE))
            runs = [
                pool.submit(_killed_at, number, syscall, tmp_path / f"{syscall}-{number}")
                for number in wave
            ]
            survived = [
                number for number, run in zip(wave, runs, strict=True) if run.result().finished
            ]
    print(f"killed at each of the first {survived[0] - 1} calls of {syscall}")
    if syscall == "fdatasync":
        assert survived[0] > 20, "the workload is one sync an append, and the start's syncs"


@needs_strace
def test_no_append_is_answered_before_its_sync_has_ended(tmp_path: Path) -> None:
    """A killed process loses nothing that was written, synced or not; only the order of the
    system calls shows that a power cut would not either."""
    trace = tmp_path / "trace"
    wrapper = ["strace", "-f", "--seccomp-bpf", "-qq", "-s", "20", "-o", str(trace)]
    wrapper += ["-e", "trace=fdatasync,sendto"]
    workload = Workload()
    with ServerProcess(tmp_path / "data", wrapper=wrapper) as server:
        workload.run(server.port)
        assert server.stop() == 0
    assert workload.finished
    # Not 200, which the readiness probe also gets.
    interesting = re.compile(r"(fdatasync)\(.*= 0$|sendto\(.*\"HTTP/1.1 (20[14])", re.MULTILINE)
    calls = interesting.findall(trace.read_text())
    synced = False
    answers = 0
    for sync, status in calls:
        if sync:
            synced = True
        elif status:
            assert synced, f"answer {answers} came before a sync"
            synced = False
            answers += 1
    creations, plain_appends, the_close_and_the_deletion = 4, 2 * 5, 2
    assert answers == creations + plain_appends + the_close_and_the_deletion
