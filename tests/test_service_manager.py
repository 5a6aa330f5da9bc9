"""A server that systemd started reports when it is ready, alive and stopping."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from streamd.process.service_manager import READY, keep_watchdog_quiet, notify
from tests.support.server_process import ServerProcess

_DEADLINE_S = 60.0
_ALIVE = b"WATCHDOG=1"


@contextmanager
def manager(address: str) -> Iterator[socket.socket]:
    """The socket of a service manager; an address that begins with NUL is an abstract one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.settimeout(_DEADLINE_S)
        yield receiver


def test_a_server_reports_its_life_from_ready_to_stopping(tmp_path: Path) -> None:
    with manager(str(tmp_path / "notify")) as receiver:
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000"}
        with ServerProcess(tmp_path / "data", environment=variables) as server:
            first = [receiver.recv(100) for _ in range(4)]
            assert first.count(READY.encode()) == 1
            assert set(first) == {READY.encode(), _ALIVE}
            assert server.stop() == 0
            while (last := receiver.recv(100)) == _ALIVE:
                pass
            assert last == b"STOPPING=1"


def test_an_abstract_socket_is_one_with_an_at_sign() -> None:
    name = f"streamd-tests-{os.getpid()}"
    with manager(f"\0{name}") as receiver:
        notify(READY, {"NOTIFY_SOCKET": f"@{name}"})
        assert receiver.recv(100) == b"READY=1"


@pytest.mark.parametrize("name", [None, "", "relative", "/nowhere/at/all"])
def test_without_a_manager_that_takes_it_a_message_is_lost(name: str | None) -> None:
    notify(READY, {} if name is None else {"NOTIFY_SOCKET": name})


async def test_a_manager_that_does_not_read_stops_nothing(tmp_path: Path) -> None:
    with manager(str(tmp_path / "notify")):
        for _ in range(10_000):
            notify(READY, {"NOTIFY_SOCKET": str(tmp_path / "notify")})


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
    ],
)
async def test_a_process_that_is_not_watched_sends_nothing(variables: Mapping[str, str]) -> None:
    with trio.fail_after(_DEADLINE_S):
        await keep_watchdog_quiet(variables)


async def test_the_watchdog_hears_three_times_in_its_interval(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    variables = {
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "6000000",
        "WATCHDOG_PID": str(os.getpid()),
    }
    with manager(str(tmp_path / "notify")) as receiver:
        with trio.move_on_after(5.0):
            await keep_watchdog_quiet(variables)
        assert [receiver.recv(100) for _ in range(3)] == [_ALIVE] * 3
        receiver.setblocking(False)
        with pytest.raises(BlockingIOError):
            receiver.recv(100)
