"""Arguments of commands: templates of the configuration, filled with checked values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from streamd.streams.operations.hosts import Host, HostError, is_release

# No name begins with a dash, or has a space or a character that a shell reads.
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:.]{2,45}")


def values_of(host: Host, *, release: str = "", lines: int = 0) -> Mapping[str, str]:
    """What the names in braces stand for. Raises `HostError` for an address or a release that
    could be read as something else."""
    name, _, port = host.peer_address.rpartition(":")
    name = name.strip("[]")
    if _HOST.fullmatch(name) is None or not (port.isascii() and port.isdigit()):
        raise HostError(f"node {host.node_id}: {host.peer_address!r} names no host")
    if release and not is_release(release):
        raise HostError(f"{release!r} names no release: it can have A-Z a-z 0-9 . _ + -")
    return {
        "id": str(host.node_id),
        "ordinal": str(host.node_id - 1),
        "host": name,
        "address": host.peer_address,
        "version": release,
        "lines": str(lines),
    }


def filled(template: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The arguments of a template. Each stays one argument, whatever the values are."""
    return [argument.format_map(values) for argument in template]
