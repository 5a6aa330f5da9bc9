"""``streamd limits``: what buckets may keep, and how much clients may ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from urllib.parse import quote

import click
from rich.console import Console
from rich.table import Table

from streamd.commands.operating import Operator, server_group
from streamd.commands.options import json_option
from streamd.streams.limits import ABOUT

_PATHS = {"bucket": "buckets", "identity": "identities"}
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"([0-9]{1,16})(|KiB|MiB|GiB|TiB)")


def _size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    match = _SIZE.fullmatch(value or "")
    if value is None or match is None:
        if value is not None:
            raise click.BadParameter(f"'{value}' is not a size such as 1000000, 64MiB or 10GiB")
        return None
    return int(match[1]) * _UNITS[match[2]]


def _option_for_each(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each limit."""
    for name, about in reversed(ABOUT.items()):
        flag = "--" + name.replace("_", "-")
        if about.is_size:
            option = click.option(flag, metavar="SIZE", callback=_size, help=about.text)
        else:
            option = click.option(flag, metavar="N", type=click.IntRange(min=0), help=about.text)
        command = option(command)
    return command


@server_group
def limits() -> None:
    """Limit what buckets keep, and how much clients of a bucket or an identity may ask for.

    KIND is bucket or identity, NAME a bucket or the name of a token; * is for all others.
    """


_kind = click.argument("kind", type=click.Choice(list(_PATHS)))


@limits.command("list")
@json_option
@click.pass_obj
def list_limits(operator: Operator, as_json: bool) -> None:
    """Show all limits."""
    found = operator.get("/cluster/limits")
    if as_json:
        print(json.dumps(found, indent=2))
        return
    table = Table(box=None, header_style="bold")
    for title in ("kind", "name", "limits"):
        table.add_column(title)
    for kind, path in _PATHS.items():
        for name, row in found[path].items():
            told = " ".join(f"{field}={value}" for field, value in row.items())
            table.add_row(kind, name, told or "none")
    Console(soft_wrap=True).print(table, markup=False, highlight=False)


@limits.command("set")
@_kind
@click.argument("name")
@_option_for_each
@click.pass_obj
def set_limits(operator: Operator, /, kind: str, name: str, **given: int | None) -> None:
    """Set all limits of a bucket or an identity, in the place of those before.

    Without any option it has none, and is exempt from those of *. A SIZE is a number of bytes, or
    of larger units as in 64MiB and 10GiB.
    """
    limited = {field: value for field, value in given.items() if value is not None}
    operator.put(_path(kind, name), limited)


@limits.command()
@_kind
@click.argument("name")
@click.pass_obj
def clear(operator: Operator, kind: str, name: str) -> None:
    """Clear the limits of a bucket or an identity; those of * apply then."""
    operator.delete(_path(kind, name))


def _path(kind: str, name: str) -> str:
    return f"/cluster/limits/{_PATHS[kind]}/{quote(name, safe='')}"
