"""The options of a node, which override the environment and the file."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_OPTIONS = (
    click.option(
        "--config", "file", type=click.Path(path_type=Path), help="The configuration file (TOML)."
    ),
    click.option("--node-id", type=int, help="This node's id, 1 or more. [default: 1]"),
    click.option(
        "--listen", help="The address at which clients connect. [default: 127.0.0.1:4437]"
    ),
    click.option("--advertise", help="The address at which others reach this node."),
    click.option("--data-dir", help="The data directory. [default: ./data]"),
    click.option("--http", help="front-door (HTTP/1.1, fast) or hypercorn (HTTP/2 as well)."),
    click.option("--workers", type=int, help="Processes that serve the clients. [default: 1]"),
    click.option(
        "--admin-listen", help="The address at which operators connect. [default: that of clients]"
    ),
    click.option("--auth-mode", help="Whether clients need tokens: none or required."),
    click.option("--log-level", help="debug, info, warning or error. [default: info]"),
    click.option("--log-format", help="console or json. [default: console]"),
)
# The others are of the section `server`.
_PLACES = {
    "admin_listen": ("admin", "listen"),
    "auth_mode": ("auth", "mode"),
    "log_level": ("log", "level"),
    "log_format": ("log", "format"),
}
_NAMES = ("node_id", "listen", "advertise", "data_dir", "http", "workers", *_PLACES)

Flags = dict[str, dict[str, Any]]


def node_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options; it gets the file, and the values by section and key."""

    @functools.wraps(command)
    def wrapped(file: Path | None, **given: Any) -> None:
        flags: Flags = {}
        for name in _NAMES:
            section, key = _PLACES.get(name, ("server", name))
            if (value := given.pop(name)) is not None:
                flags.setdefault(section, {})[key] = value
        command(file, flags, **given)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped
