"""Commands end in time, with little output, and their failure is a sentence."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio

from streamd.hosts.running import MAX_OUTPUT_BYTES, run_command
from streamd.streams.operations.hosts import HostError
from tests.hosts.programs import Programs

PATIENCE_S = 30.0


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_the_output_of_a_command_is_returned(programs: Programs) -> None:
    programs.add("ctl", "print('out')\nprint('errors', file=sys.stderr)")
    output = await run_command(["ctl", "a b"], timeout_s=PATIENCE_S)
    assert sorted(output.split()) == ["errors", "out"]
    assert programs.calls == [["ctl", "a b"]]


async def test_a_failure_names_the_command_its_status_and_its_last_lines(
    programs: Programs,
) -> None:
    programs.add("ctl", "for n in range(9): print('line', n)\nprint('\\x1b[31mred')\nsys.exit(5)")
    with pytest.raises(HostError) as raised:
        await run_command(["ctl", "restart", "a b"], timeout_s=PATIENCE_S)
    assert str(raised.value) == (
        "`ctl restart 'a b'` ended with status 5: line 5; line 6; line 7; line 8; ?[31mred"
    )


async def test_a_command_that_a_signal_ends_and_one_that_is_missing_are_named(
    programs: Programs,
) -> None:
    programs.add("ctl", "os.kill(os.getpid(), 9)")
    with pytest.raises(HostError, match=r"`ctl` was ended by signal 9\Z"):
        await run_command(["ctl"], timeout_s=PATIENCE_S)
    with pytest.raises(HostError, match="`absent-program` cannot be started: No such file"):
        await run_command(["absent-program"], timeout_s=PATIENCE_S)


async def test_only_the_end_of_much_output_is_kept(programs: Programs) -> None:
    programs.add("ctl", f"print('x' * {8 * MAX_OUTPUT_BYTES})\nprint('the end')")
    found = await run_command(["ctl"], timeout_s=PATIENCE_S)
    assert len(found) == MAX_OUTPUT_BYTES
    assert found.endswith("x\nthe end\n")


async def test_a_command_whose_time_is_over_is_ended() -> None:
    with trio.fail_after(PATIENCE_S), pytest.raises(HostError) as raised:
        await run_command(["sleep", "600"], timeout_s=0.2)
    assert str(raised.value) == "`sleep 600` did not end within 0.2 s"


async def test_a_command_and_its_children_end_with_a_cancellation(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    # Both ignore SIGTERM.
    script = f"trap '' TERM; sleep 600 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait"
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                await run_command(["sh", "-c", script], timeout_s=600)

            nursery.start_soon(run)
            while not pids.exists():  # noqa: ASYNC110 - another process makes it
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        for pid in map(int, pids.read_text().split()):
            while not has_ended(pid):  # noqa: ASYNC110 - no event tells of another's child
                await trio.sleep(0.01)


async def test_a_process_that_is_left_running_is_neither_waited_for_nor_ended() -> None:
    with trio.fail_after(PATIENCE_S):
        output = await run_command(["sh", "-c", "sleep 600 & echo $!"], timeout_s=600)
    pid = int(output)
    assert not has_ended(pid)
    os.kill(pid, signal.SIGKILL)


async def test_a_command_gets_no_variable_of_this_node(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMD_SERVER_NODE_ID", "1")
    monkeypatch.setenv("STREAMD_ROOT_TOKEN", "secret")
    monkeypatch.setenv("KUBECONFIG", "/etc/kube")
    programs.add("ctl", "print([n for n in os.environ if n.startswith(('STREAMD', 'KUBE'))])")
    assert await run_command(["ctl"], timeout_s=PATIENCE_S) == "['KUBECONFIG']\n"
