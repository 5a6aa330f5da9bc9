"""`streamd node` acts on a node's host as its configuration says, from where it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.running import Shell
from tests.hosts.programs import SSH, Programs
from tests.jepsen_like.cluster_processes import ClusterProcesses
from tests.support.ports import unused_port

CLUSTER = '[cluster]\nname = "prod"\nlisten = "10.0.0.1:4438"\ninsecure = true\n'
BY_SSH = '[supervisor]\nkind = "systemd"\nssh = "ops@{host}"\n'
HERE = '[supervisor]\nkind = "systemd"\n'
TEMPLATES = '[supervisor]\nkind = "command"\nrestart = ["ctl", "restart", "{id}"]\n'
TWO = ("--address", "10.0.0.2:4438")


@pytest.fixture
def shell(programs: Programs) -> Shell:
    """A shell whose PATH begins with the programs; nothing serves."""
    return Shell(f"http://127.0.0.1:{unused_port()}")


def configured(directory: Path, text: str) -> tuple[str, str]:
    file = directory / "node1.toml"
    file.write_text(CLUSTER + text)
    return "--config", str(file)


def test_commands_are_executed_on_the_host_of_a_node(
    shell: Shell, programs: Programs, tmp_path: Path
) -> None:
    programs.add("ssh", SSH)
    config = configured(tmp_path, BY_SSH)
    found = shell("node", "exec", "2", *config, *TWO, "--", "echo", "a  b", "$HOME;", "--help")
    assert found == b"a  b $HOME; --help\n"
    assert programs.calls[0][-2] == "ops@10.0.0.2"
    done = shell.run("node", "exec", "2", *config, *TWO, "--", "sh", "-c", "exit 7")
    assert done.returncode == 7


def test_logs_and_status_are_those_of_the_supervisor(
    shell: Shell, programs: Programs, tmp_path: Path
) -> None:
    programs.add("systemctl", "print('inactive (dead)')\nsys.exit(3)")
    programs.add("journalctl", "print('a line')")
    config = configured(tmp_path, HERE)
    done = shell.run("node", "status", "1", *config)
    assert (done.returncode, done.stdout) == (3, b"inactive (dead)\n")
    assert shell("node", "logs", "1", *config, "-n", "7", "--follow") == b"a line\n"
    assert programs.calls[1][-3:] == ["--lines", "7", "--follow"]


def test_a_restart_reports_how_its_command_failed(
    shell: Shell, programs: Programs, tmp_path: Path
) -> None:
    config = configured(tmp_path, TEMPLATES)
    programs.add("ctl")
    assert shell("node", "restart", "2", *config, *TWO) == b""
    assert programs.calls == [["ctl", "restart", "2"]]
    programs.add("ctl", "print('no such node')\nsys.exit(5)")
    assert shell.fails(1, "node", "restart", "2", *config, *TWO) == (
        "`ctl restart 2` ended with status 5: no such node"
    )


def test_a_unit_is_stopped_for_good_and_started_again(
    shell: Shell, programs: Programs, tmp_path: Path
) -> None:
    programs.add("systemctl")
    config = configured(tmp_path, HERE)
    assert shell("node", "stop", "1", *config) == shell("node", "start", "1", *config) == b""
    assert programs.calls == [
        ["systemctl", "disable", "--now", "streamd.service"],
        ["systemctl", "enable", "--now", "streamd.service"],
    ]
    config = configured(tmp_path, '[supervisor]\nkind = "kubernetes"\n')
    assert 'no command does that with supervisor.kind = "kubernetes"' in shell.fails(
        1, "node", "stop", "2", *config, *TWO
    )


def test_a_unit_of_another_machine_is_refused_without_ssh(
    shell: Shell, programs: Programs, tmp_path: Path
) -> None:
    programs.add("systemctl")
    config = configured(tmp_path, HERE)
    for words in (["restart", "2"], ["status", "2"], ["exec", "2", "--", "true"]):
        assert "node 2 is on another machine" in shell.fails(
            1, "node", words[0], words[1], *config, *TWO, *words[2:]
        )
    assert programs.calls == []
    assert shell("node", "restart", "1", *config) == b""
    assert programs.calls == [["systemctl", "restart", "streamd.service"]]


def test_what_no_command_does_is_refused_with_the_key_that_is_missing(
    shell: Shell, tmp_path: Path
) -> None:
    config = configured(tmp_path, "")
    assert 'no command does that with supervisor.kind = "manual"' in shell.fails(
        1, "node", "restart", "2", *config, *TWO
    )
    config = configured(tmp_path, TEMPLATES)
    assert "supervisor.logs is not set" in shell.fails(1, "node", "logs", "2", *config, *TWO)
    config = configured(tmp_path, '[supervisor]\nkind = "runit"\n')
    assert "supervisor.kind" in shell.fails(2, "node", "status", "1", *config)


def test_an_address_that_is_an_option_is_refused(
    shell: Shell, programs: Programs, tmp_path: Path
) -> None:
    programs.add("ssh", SSH)
    config = configured(tmp_path, BY_SSH)
    for address in ("-oProxyCommand=reboot:1", "a;reboot:1", "$(reboot):1"):
        sentence = shell.fails(1, "node", "status", "2", *config, f"--address={address}")
        assert "names no host" in sentence
    assert programs.calls == []


def test_the_cluster_knows_where_a_node_is(programs: Programs, tmp_path: Path) -> None:
    template = '[supervisor]\nkind = "command"\nrestart = ["true"]\nstatus = ["ctl", "{address}"]\n'
    config = configured(tmp_path, template)
    programs.add("ctl")
    with ClusterProcesses(tmp_path, proxied=False) as cluster:
        shell = Shell(cluster.nodes[3].url)
        shell("node", "status", "2", *config)
        assert programs.calls == [["ctl", cluster.peer_address(2)]]
        assert "the cluster has no member 9" in shell.fails(1, "node", "status", "9", *config)
        # Without a URL the node of the configuration is asked.
        here = cluster.nodes[1].url.removeprefix("http://")
        config = configured(tmp_path, f'{template}[server]\nlisten = "{here}"\n')
        del shell.environment["STREAMD_URL"]
        shell("node", "status", "3", *config)
        assert programs.calls[1] == ["ctl", cluster.peer_address(3)]
    lonely = Shell(f"http://127.0.0.1:{unused_port()}")
    assert "Name it with --address" in lonely.fails(
        1, "node", "status", "2", *config, "--retry-for", "0"
    )
