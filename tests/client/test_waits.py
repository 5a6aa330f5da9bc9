"""No command waits longer for a server than it may, and none waits without a word."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from streamd.commands.cli import main
from tests.client.many import Ended, leaves, run_all
from tests.client.running import Shell
from tests.jepsen_like.cluster_processes import ClusterProcesses
from tests.support.breaking_off import BUSY, breaking_off
from tests.support.ports import unused_port

RETRY_FOR_S = 1.0
# Two seconds beyond it, and what a busy machine takes from a process. `test_bounds.py` has the
# exact bound, by a virtual clock.
_MOST_S = RETRY_FOR_S + 2 + 5

# The arguments of each command that asks a server; a command without a line here fails a test.
ARGUMENTS = {
    "append": "demo/x",
    "backup save": "{directory}/saved",
    "bootstrap": "demo/x",
    "close": "demo/x",
    "cluster add": "127.0.0.1:1",
    "cluster features": "",
    "cluster promote": "2",
    "cluster remove": "2",
    "cluster snapshot": "",
    "cluster status": "",
    "cluster transfer": "2",
    "cluster wait-ready": "--timeout 1",
    "cold flush": "",
    "cold gc": "",
    "cold scrub start": "--wait",
    "cold scrub status": "",
    "cold status": "",
    "create": "demo/x",
    "debug bundle": "-o {directory}/bundle.tar.gz",
    "delete": "demo/x",
    "doctor": "",
    "fork": "demo/x demo/y",
    "head": "demo/x",
    "limits clear": "bucket demo",
    "limits list": "",
    "limits set": "bucket demo --max-streams 1",
    "list": "demo",
    "log-head": "",
    "keys rotate": "--revoke",
    "log-key rotate": "",
    "node exec": "--config {directory}/node.toml 2 true",
    "node logs": "--config {directory}/node.toml 2",
    "node restart": "--config {directory}/node.toml 2",
    "node start": "--config {directory}/node.toml 2",
    "node status": "--config {directory}/node.toml 2",
    "node stop": "--config {directory}/node.toml 2",
    "operations bootstrap": "127.0.0.1:1",
    "operations cancel": "1",
    "operations done": "1",
    "operations drain": "2",
    "operations list": "",
    "operations pause": "1",
    "operations replace-node": "2 127.0.0.1:1",
    "operations restart-recovery": "2",
    "operations resume": "1",
    "operations rolling-restart": "",
    "operations scale-down": "2",
    "operations scale-up": "127.0.0.1:1",
    "operations show": "1",
    "operations upgrade": "--to 0.3.0",
    "operations wait": "1",
    "prove": "demo/x --offset -1",
    "read": "demo/x",
    "snapshot publish": "demo/x pyproject.toml --at 0000000000000000_0000000000000000",
    "snapshot read": "demo/x",
    "subscription create": "a --pattern demo/* --wake-stream demo/wakes",
    "subscription delete": "a",
    "subscription list": "",
    "subscription show": "a",
    "subscription test": "a",
    "tail": "demo/x -f --from-start",
    "token create": "--name a --scope read:*",
    "token list": "",
    "token revoke": "a",
    "token rotate": "a",
    "token show": "a",
}
# Any node answers these by itself, with or without a leader.
_LOCAL = {"cluster status", "cluster snapshot", "cold status", "cold scrub status"}
_LOCAL |= {
    "token list",
    "token show",
    "limits list",
    "log-head",
    "log-key rotate",
    "keys rotate",
    "prove",
}
_LOCAL |= {"debug bundle", "doctor"} | {words for words in ARGUMENTS if words.startswith("node ")}


_SUPERVISOR = """
[supervisor]
kind = "command"
status = ["true"]
logs = ["true"]
start = ["true"]
stop = ["true"]
restart = ["true"]
exec = ["true"]
"""


def run_each(url: str, directory: Path) -> dict[str, Ended]:
    (directory / "node.toml").write_text(_SUPERVISOR)
    commands = {
        words: [
            *words.split(),
            *(one.format(directory=directory) for one in arguments.split()),
            *("--retry-for", str(RETRY_FOR_S)),
        ]
        for words, arguments in ARGUMENTS.items()
    }
    return run_all(commands, {"STREAMD_URL": url}, directory)


def faults(ended: dict[str, Ended]) -> list[str]:
    """The commands that did not end in time with one sentence, after one on what they wait for."""
    found = []
    for words, (status, took_s, errors) in ended.items():
        lines = errors.splitlines()
        is_in_time = status in (1, 3) and took_s < _MOST_S
        if not is_in_time or not 1 <= len(lines) <= 2 or "Traceback" in errors:
            found.append(f"{words}: exit {status} after {took_s:.1f} s: {errors}")
    return found


def silent(ended: dict[str, Ended]) -> list[str]:
    """The commands that waited for an answer in vain, and did not say so before."""
    return [
        words
        for words, one in ended.items()
        if "no answer in time" in one.errors and "streamd: waiting for" not in one.errors
    ]


def test_the_table_has_every_command_that_asks_a_server() -> None:
    asking = {
        words
        for words, command in leaves(main)
        if any("--url" in parameter.opts for parameter in command.params)
    }
    assert asking == set(ARGUMENTS)


@pytest.mark.long
def test_no_command_waits_long_or_silently_for_a_server_that_hangs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        ended = run_each(f"http://127.0.0.1:{listener.getsockname()[1]}", tmp_path)
    assert all("streamd: waiting for" in one.errors for one in ended.values())
    assert (faults(ended), silent(ended)) == ([], [])


def test_no_command_waits_long_where_nobody_listens(tmp_path: Path) -> None:
    ended = run_each(f"http://127.0.0.1:{unused_port()}", tmp_path)
    assert faults(ended) == []


@pytest.mark.long
def test_no_command_waits_long_for_the_server_of_a_proxy(tmp_path: Path) -> None:
    with breaking_off(BUSY) as (url, _):
        ended = run_each(url, tmp_path)
    assert faults(ended) == []


@pytest.mark.long
def test_no_command_waits_long_or_silently_for_a_leader(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, proxied=False) as cluster:
        leader = cluster.leader()
        last, *others = [node for node in cluster.alive if node is not leader]
        Shell(leader.url)("create", "demo/x", "-t", "json")
        for node in (leader, *others):
            node.kill()
        ended = run_each(last.url, tmp_path)
    local = {words: ended.pop(words) for words in _LOCAL}
    assert [words for words, one in local.items() if one.took_s > _MOST_S] == []
    assert (faults(ended), silent(ended)) == ([], [])
