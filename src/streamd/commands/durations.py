"""Durations as options of commands: a number and s, m, h or d."""

from __future__ import annotations

import re

import click

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([1-9][0-9]{0,9})([smhd])")


def seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """The callback of an option. Raises `click.BadParameter`."""
    match = _DURATION.fullmatch(value or "")
    if value is None or match is None:
        if value is not None:
            raise click.BadParameter(f"'{value}' is not a time such as 90s, 15m, 12h or 30d")
        return None
    return int(match[1]) * _UNITS_S[match[2]]
