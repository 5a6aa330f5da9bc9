"""Writes docs/reference from where the text is kept already.

That is the sample configuration, the help of each command, and the calls that register metrics.
`make fix` runs it, and a test compares. Errors and paths of HTTP have pages written by hand,
docs/errors.md and docs/api.md, whose tables tests compare with the code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from inspect import cleandoc
from pathlib import Path
from typing import NamedTuple

import click

from streamd.commands.cli import main

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "docs" / "reference"

_CONFIGURATION = """# The configuration

`make fix` writes this page from [config/streamd.toml](../../config/streamd.toml). The environment
overrides the file, a flag of `streamd serve` overrides both, and `streamd config check` examines
all of it. A value `"$NAME"` is read from the environment variable `NAME`."""
_COMMANDS = """# The commands

`make fix` writes this page from the help of each command. `man streamd-client` says more about
those that work with streams, `man streamd` about those of nodes and clusters.

These options of commands that ask a server are left out below:

| Option | |
| --- | --- |"""
_METRICS = """# The metrics

`make fix` writes this page from the calls that register them. A node exports those of what it has:
a cold store, a cluster, workers. `process_…` are those of every Prometheus client.
[Alerts](../operations.md#alerts) and dashboards use them.

| Metric | Kind | Label | |
| --- | --- | --- | --- |"""

_SECTION = re.compile(r"^(?:# )?\[+([a-z.]+)\]+$")
_KEY = re.compile(r"^(?:# )?([a-z][a-z0-9_]*) = (.+)$")
# What no variable of the environment can express: the version of the file, and tables of tables.
_FILE_ONLY = ("", "auth.certificates", "auth.jwt.roles")
_OF_ALL = {"--url", "--cacert", "--cert", "--token-file", "--retry-for"}


def pages() -> dict[str, str]:
    """The text of each page, by its file's name."""
    return {
        "configuration.md": _configuration(),
        "commands.md": _commands(),
        "metrics.md": _metrics(),
    }


# -- the configuration, from its sample --


def _configuration() -> str:
    lines = [_CONFIGURATION]
    section = ""
    told: list[str] = []
    keys: list[tuple[str, str]] = []
    for paragraph in (ROOT / "config" / "streamd.toml").read_text().split("\n\n")[1:]:
        told, keys = [], []
        for line in paragraph.splitlines():
            if found := _SECTION.match(line):
                lines += _explained(section, told, keys)
                section, told, keys = found[1], [], []
                lines += ["", f"## [{section}]"]
            elif found := _KEY.match(line):
                keys.append((found[1], found[2]))
            else:
                # Prose after keys begins another group.
                if keys:
                    lines += _explained(section, told, keys)
                    told, keys = [], []
                told.append(line.removeprefix("#").strip())
        lines += _explained(section, told, keys)
    return "\n".join(lines) + "\n"


def _explained(section: str, told: list[str], keys: list[tuple[str, str]]) -> Iterator[str]:
    if told:
        yield from ("", *(_escaped(line) for line in told))
    if keys:
        yield from ("", "| Key | Default, or an example | Environment |", "| --- | --- | --- |")
    for key, value in keys:
        variable = f"`STREAMD_{section}_{key}`".upper().replace(".", "_")
        yield f"| `{key}` | `{value}` | {'' if section in _FILE_ONLY else variable} |"


# -- the commands, from their help --


def _commands() -> str:
    # `streamd head` has all of them.
    lines = [_COMMANDS, *_options(_found("head"), lambda names: names <= _OF_ALL)]
    for words, command in _walk(main, "streamd"):
        lines += _command(words, command)
    return "\n".join(lines) + "\n"


def _walk(group: click.Group, words: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _walk(command, f"{words} {name}")
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{words} {name}", command


def _command(words: str, command: click.Command) -> Iterator[str]:
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    usage = " ".join(
        [words, "[OPTION]...", *(one.make_metavar(click.Context(command)) for one in arguments)]
    )
    yield from ("", f"## {words}", "", f"`{usage}`", "")
    yield from _escaped(cleandoc(command.help or "").replace("\b\n", "")).splitlines()
    if rows := list(_options(command, lambda names: not names & {*_OF_ALL, "--help"})):
        yield from ("", "| Option | |", "| --- | --- |", *rows)


def _found(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


def _options(command: click.Command, wanted: Callable[[set[str]], bool]) -> Iterator[str]:
    """The rows of a table."""
    for one in command.params:
        record = one.get_help_record(click.Context(command))
        if isinstance(one, click.Option) and record and wanted(set(one.opts)):
            option, text = record
            option, text = (cell.replace("|", "\\|") for cell in (option, _escaped(text)))
            yield f"| `{option}` | {text} |"


# -- the metrics, from the calls that register them --


class _Metric(NamedTuple):
    name: str
    kind: str
    label: str  # as the page shows it; empty without one
    text: str


_KINDS = {
    "gauge": ("gauge", ""),
    "gauge_by": ("gauge", ""),
    "counter_by": ("counter", "_total"),
    "info": ("gauge", "_info"),
    "CounterMetricFamily": ("counter", "_total"),
    "GaugeMetricFamily": ("gauge", ""),
    "family": ("histogram", ""),
}


def _metrics() -> str:
    rows = (
        f"| `{one.name}` | {one.kind} | {one.label} | {_escaped(one.text)} |"
        for one in sorted(registered())
    )
    return "\n".join([_METRICS, *rows]) + "\n"


def registered() -> set[_Metric]:
    """The metrics that the source registers with a name and a text of its own."""
    found = set()
    for file in (ROOT / "src" / "streamd").rglob("*.py"):
        tree = ast.parse(file.read_text())
        constants = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (metric := _metric(node, constants)) is not None:
                found.add(metric)
    return found


def _metric(call: ast.Call, constants: Mapping[str, object]) -> _Metric | None:
    function = call.func
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    texts = [text for one in call.args if (text := _text(one, constants)) is not None]
    if called not in _KINDS or len(texts) < 2:
        return None
    if called.endswith("_by"):
        if len(texts) < 3:
            return None
        labels = f"`{texts.pop(0)}`"
    else:
        labels = _labels(call)
    kind, suffix = _KINDS[called]
    return _Metric(f"streamd_{texts[0].removeprefix('streamd_')}{suffix}", kind, labels, texts[1])


def _text(node: ast.expr, constants: Mapping[str, object]) -> str | None:
    """A text, in which constants of its module may be filled in; None for anything else."""
    if isinstance(node, ast.FormattedValue):
        name = node.value.id if isinstance(node.value, ast.Name) else ""
        return str(constants[name]) if name in constants else None
    if isinstance(node, ast.JoinedStr):
        parts = [_text(part, constants) for part in node.values]
        return None if None in parts else "".join(part for part in parts if part)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _labels(call: ast.Call) -> str:
    for keyword in call.keywords:
        if keyword.arg == "labels" and isinstance(keyword.value, ast.Tuple):
            return ", ".join(
                f"`{one.value!s}`" for one in keyword.value.elts if isinstance(one, ast.Constant)
            )
    return ""


def _escaped(text: str) -> str:
    """Text in which Markdown and the site find no HTML."""
    return (
        text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
        if "`" not in text
        else text
    )


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for file_name, page in pages().items():
        (DIRECTORY / file_name).write_text(page)
