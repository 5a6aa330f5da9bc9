"""Which command does something to a node, for each kind of supervisor.

Nothing is run here. A list without elements means that the kind has no command for it, so that an
operator has to do it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from streamd.config.supervisor import TEMPLATES, SupervisorConfig
from streamd.hosts.templates import filled, values_of
from streamd.streams.operations.hosts import Host, HostError

Deed = Literal["start", "stop", "restart", "install", "status", "logs", "exec"]

_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--")


class Given(NamedTuple):
    """What a deed needs: the `release` to install, how many `lines` of the log to show and whether
    to `follow` it, the `words` of a command to execute; or whether to `wait` for the end of what
    systemd begins."""

    release: str = ""
    lines: int = 100
    follow: bool = False
    words: Sequence[str] = ()
    wait: bool = True


def command_for(
    config: SupervisorConfig, deed: Deed, host: Host, given: Given | None = None
) -> list[str]:
    """The command that does a deed to the node on a host; empty if the kind has none. Raises
    `HostError` for values that could be read as something else."""
    given = given or Given()
    values = values_of(host, release=given.release, lines=given.lines)
    found = _BY_KIND[config.kind](config, deed, values, given)
    if found and deed == "exec" and not given.words:
        raise HostError("exec needs a command to execute")
    return found


def _manual(
    config: SupervisorConfig, deed: Deed, values: Mapping[str, str], given: Given
) -> list[str]:
    return []


def _templates(
    config: SupervisorConfig, deed: Deed, values: Mapping[str, str], given: Given
) -> list[str]:
    template: Sequence[str] = getattr(config, deed)
    words = given.words if deed == "exec" and template else ()
    return [*filled(template, values), *words]


def _systemd(
    config: SupervisorConfig, deed: Deed, values: Mapping[str, str], given: Given
) -> list[str]:
    sudo = ["sudo", "-n"] if config.sudo else []
    unit = config.unit.format_map(values)
    match deed:
        case "install":
            own = filled(config.install, values)
        case "exec":
            own = list(given.words)
        case "status":
            own = [*sudo, "systemctl", "status", "--no-pager", unit]
        case "logs":
            follow = ["--follow"] if given.follow else []
            lines = ["--lines", values["lines"], *follow]
            own = [*sudo, "journalctl", "--no-pager", "--unit", unit, *lines]
        case _:
            # A unit that is only stopped would start with its host.
            verb = {"start": ["enable", "--now"], "stop": ["disable", "--now"]}.get(deed, [deed])
            wait = [] if given.wait else ["--no-block"]
            own = [*sudo, "systemctl", *verb, *wait, unit]
    if config.ssh is None or not own:
        return own
    # The other end gives these words to a shell.
    return [*_SSH, config.ssh.format_map(values), shlex.join(own)]


def _kubernetes(
    config: SupervisorConfig, deed: Deed, values: Mapping[str, str], given: Given
) -> list[str]:
    kubectl = ["kubectl", *(["--namespace", config.namespace] if config.namespace else [])]
    pod, container = config.pod.format_map(values), ["--container", config.container]
    match deed:
        case "restart":
            return [*kubectl, "delete", "pod", pod, "--ignore-not-found", "--wait=true"]
        case "install" if config.image is not None:
            image = f"{config.container}={config.image.format_map(values)}"
            return [*kubectl, "set", "image", f"statefulset/{config.stateful_set}", image]
        case "status":
            return [*kubectl, "get", "pod", pod, "--output", "wide"]
        case "logs":
            follow = ["--follow"] if given.follow else []
            return [*kubectl, "logs", pod, *container, "--tail", values["lines"], *follow]
        case "exec":
            return [*kubectl, "exec", pod, *container, "--", *given.words]
    return []


_BY_KIND: Mapping[str, Callable[[SupervisorConfig, Deed, Mapping[str, str], Given], list[str]]] = {
    "manual": _manual,
    "systemd": _systemd,
    "command": _templates,
    "kubernetes": _kubernetes,
}


def programs_of(config: SupervisorConfig) -> Mapping[str, str]:
    """The programs that a node has to find, by the keys of the section that call for them."""
    match config.kind:
        case "systemd" if config.ssh is not None:
            return {"ssh": "ssh"}
        case "systemd":
            install = {"install": config.install[0]} if config.install else {}
            return {"kind": "systemctl", **({"sudo": "sudo"} if config.sudo else {}), **install}
        case "kubernetes":
            return {"kind": "kubectl"}
    templates: Mapping[str, list[str]] = {key: getattr(config, key) for key in TEMPLATES}
    return {key: template[0] for key, template in templates.items() if template}


def pod_report(config: SupervisorConfig, host: Host) -> list[str]:
    """The command that prints a pod's unique id, and whether it is ready: nothing without a pod."""
    own = _kubernetes(config, "status", values_of(host), Given())
    ready = '{.metadata.uid} {.status.conditions[?(@.type=="Ready")].status}'
    return [*own[:-2], "--ignore-not-found", "--output", f"jsonpath={ready}"]


def update_strategy(config: SupervisorConfig, host: Host) -> list[str]:
    """The command that prints how the stateful set replaces its pods."""
    kubectl = _kubernetes(config, "status", values_of(host), Given())
    own = kubectl[: kubectl.index("get")]
    strategy = "jsonpath={.spec.updateStrategy.type}"
    return [*own, "get", "statefulset", config.stateful_set, "--output", strategy]
