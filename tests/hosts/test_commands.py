"""Which command each kind of supervisor has, and that no value becomes an option or a command."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as some

from streamd.config.supervisor import SupervisorConfig
from streamd.hosts.commands import Deed, Given, command_for
from streamd.streams.operations.hosts import Host, HostError

TWO = Host(2, "10.0.0.2:4438", "10.0.0.2:4437")
SSH = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", "ops@10.0.0.2"]


@pytest.mark.parametrize(
    ("deed", "command"),
    [
        ("restart", "systemctl restart streamd@2.service"),
        ("stop", "systemctl disable --now streamd@2.service"),
        ("start", "systemctl enable --now streamd@2.service"),
        ("status", "systemctl status --no-pager streamd@2.service"),
        ("logs", "journalctl --no-pager --unit streamd@2.service --lines 100"),
        ("install", "pip install durable-streamd==1.2"),
        ("exec", "df -h"),
    ],
)
def test_systemd_acts_on_the_unit_here_or_by_ssh(deed: Deed, command: str) -> None:
    config = SupervisorConfig(
        kind="systemd",
        unit="streamd@{id}.service",
        install=["pip", "install", "durable-streamd=={version}"],
    )
    what = Given("1.2", words=["df", "-h"])
    assert command_for(config, deed, TWO, what) == command.split()
    config.ssh = "ops@{host}"
    assert command_for(config, deed, TWO, what) == [*SSH, command]


def test_systemd_may_need_sudo_and_need_not_wait() -> None:
    config = SupervisorConfig(kind="systemd", sudo=True)
    command = command_for(config, "restart", TWO, Given(wait=False))
    assert command == ["sudo", "-n", "systemctl", "restart", "--no-block", "streamd.service"]
    logs = command_for(config, "logs", TWO, Given(lines=5, follow=True))
    assert logs[-3:] == ["--lines", "5", "--follow"]


@pytest.mark.parametrize(
    ("deed", "command"),
    [
        ("restart", "delete pod streamd-1 --ignore-not-found --wait=true"),
        ("install", "set image statefulset/streamd streamd=registry/streamd:1.2"),
        ("status", "get pod streamd-1 --output wide"),
        ("logs", "logs streamd-1 --container streamd --tail 100"),
        ("exec", "exec streamd-1 --container streamd -- df -h"),
    ],
)
def test_kubernetes_acts_on_the_pod_of_the_stateful_set(deed: Deed, command: str) -> None:
    config = SupervisorConfig(
        kind="kubernetes", namespace="data", image="registry/streamd:{version}"
    )
    found = command_for(config, deed, TWO, Given("1.2", words=["df", "-h"]))
    assert found == ["kubectl", "--namespace", "data", *command.split()]


@pytest.mark.parametrize("deed", ["stop", "start"])
def test_no_command_stops_one_pod_of_a_stateful_set(deed: Deed) -> None:
    assert command_for(SupervisorConfig(kind="kubernetes"), deed, TWO) == []


def test_a_template_gets_the_values_of_its_node() -> None:
    template = ["ctl", "{id}", "{ordinal}", "{host}", "{address}", "--to={version}", "{lines}"]
    config = SupervisorConfig(kind="command", restart=template, exec=["in", "{host}"])
    command = command_for(config, "restart", TWO, Given("1.2", lines=3))
    assert command == ["ctl", "2", "1", "10.0.0.2", "10.0.0.2:4438", "--to=1.2", "3"]
    words = ["sh", "-c", "echo {id} $HOME"]
    assert command_for(config, "exec", TWO, Given(words=words)) == ["in", "10.0.0.2", *words]
    assert command_for(config, "logs", TWO) == []
    with pytest.raises(HostError, match="needs a command"):
        command_for(config, "exec", TWO)


def test_nothing_is_done_by_a_command_unless_it_is_configured() -> None:
    assert command_for(SupervisorConfig(), "restart", TWO) == []


@pytest.mark.parametrize(
    "address",
    ["-oProxyCommand=x:1", "a b:1", "$(reboot):1", "a;b:1", "ops@b:1", "a:b c", ":1", "a", "a/b:1"],
)
def test_an_address_that_could_be_an_option_or_a_command_is_refused(address: str) -> None:
    config = SupervisorConfig(kind="command", restart=["ctl", "{host}"])
    with pytest.raises(HostError, match="names no host"):
        command_for(config, "restart", Host(2, address, "c:1"))


@pytest.mark.parametrize("release", ["-e .", "--index-url=x", "1;2", "1 2", "$(id)", "../x", "a/b"])
def test_a_release_that_could_be_an_option_or_a_command_is_refused(release: str) -> None:
    config = SupervisorConfig(kind="command", install=["pip", "install", "{version}"])
    with pytest.raises(HostError, match="names no release"):
        command_for(config, "install", TWO, Given(release))


def test_the_host_of_an_ipv6_address_has_no_brackets() -> None:
    config = SupervisorConfig(kind="command", restart=["ctl", "{host}", "{address}"])
    found = command_for(config, "restart", Host(3, "[fd00::3]:4438", "x:1"))
    assert found == ["ctl", "fd00::3", "[fd00::3]:4438"]


@given(
    name=some.one_of(some.text(min_size=1, max_size=40), some.from_regex(r"[a-z0-9.:-]{1,9}")),
    release=some.one_of(some.text(max_size=20), some.from_regex(r"\A[a-z0-9.+-]{1,9}\Z")),
)
def test_no_value_is_more_than_a_part_of_its_argument(name: str, release: str) -> None:
    install = ["install", "{version}", "{host}", "x{id}"]
    config = SupervisorConfig(kind="systemd", ssh="ops@{host}", install=install)
    host = Host(2, f"{name}:4438", "c:1")
    try:
        *ssh, target, text = command_for(config, "install", host, Given(release or "1"))
    except HostError:
        return
    assert ssh == SSH[:-1]
    assert target == f"ops@{name.strip('[]')}"
    assert not set(target) & set(" '\"\\$`;&|<>\n")
    # A shell at the other end finds as many words, and none is an option.
    words = shlex.split(text)
    assert text == " ".join(words)
    assert len(words) == 4
    assert not any(word.startswith("-") for word in words)
