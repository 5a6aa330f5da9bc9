"""Nodes are restarted and stopped, and releases installed, by real programs under the names of
systemctl, ssh, sudo and kubectl."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from streamd.config.supervisor import SupervisorConfig
from streamd.hosts.commands import Deed
from streamd.hosts.control import ConfiguredHostControl
from streamd.hosts.own_host import act_on_own_host, answer_leader, ask_node
from streamd.streams.operations.hosts import Host, HostError
from tests.hosts.programs import SSH, SUDO, Programs

TWO = Host(2, "10.0.0.2:4438", "10.0.0.2:4437")
# A pod `streamd-1` whose unique id changes when it is deleted. It is not ready at once, and the
# stateful set replaces pods as the file `strategy` says.
KUBECTL = """
import pathlib
here = pathlib.Path({here!r})
words = sys.argv[1:]
if words[0] == "delete":
    (here / "uid").write_text("second")
    (here / "asked").write_text("")
elif words[:2] == ["get", "statefulset"]:
    print((here / "strategy").read_text(), end="")
elif words[0] == "get":
    uid = (here / "uid").read_text()
    asked = len((here / "asked").read_text())
    (here / "asked").write_text("x" * (asked + 1))
    print(uid, "True" if uid == "first" or asked else "False", end="")
"""


def control(config: SupervisorConfig) -> ConfiguredHostControl:
    """The control of hosts of node 1, which reaches no other node over the peer port."""

    async def ask(host: Host, deed: Deed, release: str) -> str:
        raise HostError(f"node {host.node_id} cannot be reached")

    return ConfiguredHostControl(config, ask)


async def test_an_operator_does_what_no_command_does() -> None:
    manual = control(SupervisorConfig())
    assert await manual.restart(TWO) == "restart node 2 (10.0.0.2:4438)"
    assert await manual.stop(TWO) == (
        "stop node 2 (10.0.0.2:4438), so that it does not start again"
    )
    assert await manual.install(TWO, "1.2") == "install release 1.2 for node 2 (10.0.0.2:4438)"
    half = control(SupervisorConfig(kind="command", restart=["true"]))
    assert await half.restart(TWO) == ""
    assert (await half.stop(TWO)).startswith("stop node 2")


async def test_commands_of_the_configuration_are_run(programs: Programs) -> None:
    programs.add("ctl")
    config = SupervisorConfig(
        kind="command",
        restart=["ctl", "restart", "{id}"],
        stop=["ctl", "stop", "{host}"],
        install=["ctl", "install", "{version}"],
    )
    done = control(config)
    assert [await done.restart(TWO), await done.stop(TWO), await done.install(TWO, "1.2")] == [
        "", "", "",
    ]  # fmt: skip
    assert programs.calls == [
        ["ctl", "restart", "2"], ["ctl", "stop", "10.0.0.2"], ["ctl", "install", "1.2"],
    ]  # fmt: skip


async def test_a_unit_of_another_host_is_restarted_by_ssh(programs: Programs) -> None:
    programs.add("ssh", SSH)
    programs.add("sudo", SUDO)
    programs.add("systemctl")
    config = SupervisorConfig(kind="systemd", ssh="ops@{host}", sudo=True)
    assert await control(config).restart(TWO) == ""
    ssh, sudo, systemctl = programs.calls
    assert ssh[-2:] == ["ops@10.0.0.2", "sudo -n systemctl restart streamd.service"]
    assert sudo == ["sudo", "-n", *systemctl]
    assert systemctl == ["systemctl", "restart", "streamd.service"]


async def test_what_a_remote_command_says_of_its_failure_is_reported(programs: Programs) -> None:
    programs.add("ssh", SSH)
    programs.add(
        "systemctl", "sys.stderr.write('Failed: Unit streamd.service not found.')\nsys.exit(5)"
    )
    config = SupervisorConfig(kind="systemd", ssh="ops@{host}")
    with pytest.raises(HostError, match=r"status 5: Failed: Unit streamd.service not found\.\Z"):
        await control(config).restart(TWO)


async def test_without_ssh_a_node_restarts_its_own_unit_when_it_is_asked(
    programs: Programs,
) -> None:
    programs.add("systemctl")
    config = SupervisorConfig(kind="systemd")

    async def ask(host: Host, deed: Deed, release: str) -> str:
        async def send(payload: bytes) -> bytes:
            return await answer_leader(config, host, payload)

        return await ask_node(send, deed, release)

    leader = ConfiguredHostControl(config, ask)
    assert await leader.restart(TWO) == ""
    assert await leader.stop(TWO) == ""
    assert programs.calls == [
        ["systemctl", "restart", "--no-block", "streamd.service"],
        ["systemctl", "disable", "--now", "--no-block", "streamd.service"],
    ]
    assert await leader.install(TWO, "1.2") == "install release 1.2 for node 2 (10.0.0.2:4438)"
    programs.add("systemctl", "sys.exit(4)")
    with pytest.raises(HostError, match="ended with status 4"):
        await leader.restart(TWO)


@pytest.mark.parametrize(
    "config",
    [
        SupervisorConfig(),
        SupervisorConfig(kind="systemd", ssh="ops@{host}"),
        SupervisorConfig(kind="command", restart=["ctl"]),
    ],
)
async def test_a_node_that_is_not_configured_as_a_unit_does_nothing(
    config: SupervisorConfig,
) -> None:
    with pytest.raises(HostError, match="node 2 is not configured as a unit of systemd"):
        await act_on_own_host(config, TWO, "restart", "")


@pytest.mark.parametrize(
    "payload",
    [b"", b"{}", b'{"deed":"exec"}', b'{"deed":"logs"}', b'{"deed":["restart"]}', b'"restart"'],
)
async def test_a_peer_can_ask_for_no_other_deed(payload: bytes, programs: Programs) -> None:
    programs.add("systemctl")
    with pytest.raises(msgspec.DecodeError):
        await answer_leader(SupervisorConfig(kind="systemd"), TWO, payload)
    assert programs.calls == []


@pytest.fixture
def cluster_of_pods(programs: Programs, tmp_path: Path) -> Path:
    """What the kubectl in PATH knows."""
    (tmp_path / "uid").write_text("first")
    (tmp_path / "asked").write_text("")
    (tmp_path / "strategy").write_text("OnDelete")
    programs.add("kubectl", KUBECTL.format(here=str(tmp_path)))
    return tmp_path


async def test_a_pod_is_deleted_and_its_successor_waited_for(
    programs: Programs, cluster_of_pods: Path
) -> None:
    assert (cluster_of_pods / "uid").read_text() == "first"
    assert await control(SupervisorConfig(kind="kubernetes")).restart(TWO) == ""
    verbs = [call[1] for call in programs.calls]
    assert verbs == ["get", "delete", "get", "get"]
    assert programs.calls[1][2:4] == ["pod", "streamd-1"]


async def test_an_image_is_set_only_if_pods_are_replaced_when_they_are_deleted(
    programs: Programs, cluster_of_pods: Path
) -> None:
    pods = control(SupervisorConfig(kind="kubernetes", image="registry/streamd:{version}"))
    assert await pods.install(TWO, "1.2") == ""
    assert programs.calls[-1][1:] == [
        "set", "image", "statefulset/streamd", "streamd=registry/streamd:1.2",
    ]  # fmt: skip
    (cluster_of_pods / "strategy").write_text("RollingUpdate")
    with pytest.raises(HostError, match=r"updateStrategy RollingUpdate\): set .* to OnDelete"):
        await pods.install(TWO, "1.2")
    assert [call[1] for call in programs.calls].count("set") == 1
