"""What measurements of streamd alone share: where they write, and how they report figures."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from bench import wrk


@dataclass(frozen=True)
class Line:
    """One measured figure and the bar it has to reach, if there is one."""

    title: str
    value: float
    unit: str
    at_least: float | None = None
    below: float | None = None

    @property
    def met(self) -> bool:
        return (self.at_least is None or self.value >= self.at_least) and (
            self.below is None or self.value < self.below
        )

    def __str__(self) -> str:
        bar = ""
        if self.at_least is not None:
            bar = f"(bar: at least {self.at_least:g} {self.unit})"
        elif self.below is not None:
            bar = f"(bar: below {self.below:g} {self.unit})"
        verdict = "" if self.met else " MISSED"
        return f"{self.title:<58} {self.value:>9.1f} {self.unit:<5} {bar}{verdict}"


@contextmanager
def own_directory(data_dir: Path, prefix: str, *, needs_wrk: bool = True) -> Iterator[Path]:
    """A directory for one run of a command."""
    if needs_wrk:
        wrk.require()
    data_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=data_dir) as own:
        yield Path(own)


def print_table(lines: Iterable[str], data_dir: Path) -> None:
    """Show each line as it comes. The measurement's `data_dir` is removed at its end."""
    try:
        for line in lines:
            click.echo(line)
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)


def report(lines: Iterable[Line]) -> None:
    """Show each line as it comes. Raises `SystemExit` with status 1 when a bar was missed."""
    missed = False
    for line in lines:
        click.echo(line)
        missed = missed or not line.met
    if missed:
        raise SystemExit(1)
