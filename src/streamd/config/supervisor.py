"""The `[supervisor]` section of the configuration: what restarts nodes on their hosts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter
from typing import Annotated, Literal

import msgspec

from streamd.process.redaction import shown

_UNIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_.@-]*")
_SSH = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*@)?(\{host\}|[A-Za-z0-9][A-Za-z0-9.-]*)")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._/:@-]*")
# What may stand in braces, and what it is in a template without any mistake.
_EXAMPLES: Mapping[str, str] = {
    "id": "2",
    "ordinal": "1",
    "host": "h",
    "address": "h:1",
    "version": "1.0",
    "lines": "100",
}

Kind = Literal["manual", "systemd", "command", "kubernetes"]
# What is done to a node by a command that the configuration can name.
TEMPLATES = ("start", "stop", "restart", "install", "status", "logs", "exec")


class SupervisorConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The `[supervisor]` section: how nodes are started, stopped and restarted. It is the same on
    all nodes.

    With `kind` ``manual`` an operator does it. With ``systemd`` a node is the unit `unit`, on its
    own host, or on the host that the leader reaches by `ssh`; `sudo` puts ``sudo -n`` before
    systemctl and journalctl. With ``kubernetes`` it is the pod `pod` of the stateful set
    `stateful_set`, whose `container` runs `image`. With ``command`` it is whatever the commands
    `start`, `stop`, `restart`, `status`, `logs` and `exec` act on; each is a list of arguments, and
    no shell sees it. `install` installs a release, for ``systemd`` and ``command``.

    In braces stand ``{id}``, ``{ordinal}`` (the id less one), ``{host}`` and ``{address}`` (of the
    node's peers' port), ``{version}`` and ``{lines}``. A command ends within `timeout_s`,
    an installation within `install_timeout_s`.
    """

    kind: Kind = "manual"
    timeout_s: Annotated[int, msgspec.Meta(ge=1, le=110)] = 100
    install_timeout_s: Annotated[int, msgspec.Meta(ge=1, le=590)] = 590
    unit: str = "streamd.service"
    ssh: str | None = None
    sudo: bool = False
    namespace: str | None = None
    stateful_set: str = "streamd"
    pod: str = "streamd-{ordinal}"
    container: str = "streamd"
    image: str | None = None
    start: list[str] = []
    stop: list[str] = []
    restart: list[str] = []
    install: list[str] = []
    status: list[str] = []
    logs: list[str] = []
    exec: list[str] = []

    def limit_s(self, deed: str) -> int:
        """How long a deed may take, in seconds."""
        return self.install_timeout_s if deed == "install" else self.timeout_s


# The keys that each kind reads, besides `kind` and those of times.
_KEYS: Mapping[Kind, frozenset[str]] = {
    "manual": frozenset(),
    "systemd": frozenset(("unit", "ssh", "sudo", "install")),
    "command": frozenset(TEMPLATES),
    "kubernetes": frozenset(("namespace", "stateful_set", "pod", "container", "image")),
}


def supervisor_fault(config: SupervisorConfig) -> str | None:
    """What is wrong with the section, beginning with the key; None if nothing is."""
    defaults = SupervisorConfig()
    for key in frozenset().union(*_KEYS.values()) - _KEYS[config.kind]:
        if getattr(config, key) != getattr(defaults, key):
            kinds = " or ".join(f'"{kind}"' for kind, keys in _KEYS.items() if key in keys)
            return f'{key} is for supervisor.kind = {kinds}, and this is "{config.kind}"'
    for key in TEMPLATES:
        if (fault := _template_fault(getattr(config, key))) is not None:
            return f"{key}: {fault}"
    for key, form in (("unit", _UNIT), ("pod", _NAME)):
        text = getattr(config, key)
        if _filled(text) is None or form.fullmatch(_filled(text) or "") is None:
            return f"{key}: {shown(text)!r} names no {key}"
    for key in ("namespace", "stateful_set", "container"):
        name = getattr(config, key)
        if name is not None and _NAME.fullmatch(name) is None:
            return f"{key}: {shown(name)!r} names no {key.replace('_', ' ')}"
    if config.ssh is not None and _SSH.fullmatch(config.ssh) is None:
        return f"ssh: {shown(config.ssh)!r} is not a host such as ops@{{host}}"
    if config.image is not None and _IMAGE.fullmatch(_filled(config.image) or "") is None:
        return f"image: {shown(config.image)!r} names no image such as registry/streamd:{{version}}"
    if config.kind == "command" and not config.restart:
        return 'restart is missing: supervisor.kind = "command" needs it'
    return None


def _template_fault(template: list[str]) -> str | None:
    for argument in template:
        if _filled(argument) is None:
            names = ", ".join(f"{{{name}}}" for name in _EXAMPLES)
            return f"{shown(argument)!r}: in braces can stand {names}"
    if template and (not template[0] or template[0] != _filled(template[0])):
        return f"{shown(template[0])!r} is not a program"
    return None


def _filled(text: str) -> str | None:
    """A template with an example of each value; None if it names another value."""
    try:
        for _, name, form, conversion in Formatter().parse(text):
            if name is not None and (name not in _EXAMPLES or form or conversion):
                return None
    except ValueError:
        return None
    return text.format_map(_EXAMPLES)
