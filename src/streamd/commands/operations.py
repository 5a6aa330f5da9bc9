"""``streamd operations``: changes of a running cluster in several steps, which it carries out."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from streamd.client.errors import OutcomeUnknown, Unavailable, Unreachable
from streamd.commands.operating import Json, Operator, server_group
from streamd.commands.operation_lines import (
    ENDED,
    Report,
    headline,
    lines,
    news,
    plan_lines,
    reason,
    time_of,
)
from streamd.commands.options import json_option, seconds
from streamd.commands.terminal import say
from streamd.process.exits import EXIT_REFUSED, complain

EXIT_CANCELLED = 5
EXIT_UNDER_WAY = 6
_OUTCOMES = {"done": 0, "failed": EXIT_REFUSED, "cancelled": EXIT_CANCELLED}

_PATH = "/cluster/operations"
_POLL_S = 0.3
# Nodes restart meanwhile; the one that is asked may be the only one that was named.
_PATIENCE_S = 120.0
_TABLE_WIDTH = 140

Show = Callable[[Report], None]


@server_group
def operations() -> None:
    """Change a running cluster in steps that it carries out itself.

    The leader carries an operation out, and the next leader carries it on, so it outlives the death
    of any node and of this command. There is one at a time. Exits with 0 when it is done or has
    begun, 1 if it failed or was refused, 5 if it was cancelled, 6 if --timeout ended before it did.
    """


def _begins(kind: str, *parameters: Callable[..., Any]) -> Callable[[Callable[..., Json]], Any]:
    """Make a command of a function from its parameters to the fields of what it begins."""
    options = (
        *parameters,
        click.option("--dry-run", is_flag=True, help="Print the steps, and do nothing."),
        click.option(
            "--wait", is_flag=True, help="Return when it has ended, and show how it does."
        ),
        click.option(
            "--window",
            "window_s",
            callback=seconds,
            metavar="TIME",
            help="How long the cluster must be well between two steps. [default: 10s]",
        ),
        json_option,
    )

    def decorate(fields_of: Callable[..., Json]) -> click.Command:
        @functools.wraps(fields_of)
        def command(
            *, dry_run: bool, wait: bool, window_s: int | None, as_json: bool, **given: Any
        ) -> None:
            operator = click.get_current_context().obj
            window_ms = None if window_s is None else window_s * 1000
            asked = {"kind": kind, **fields_of(**given), "window_ms": window_ms}
            if dry_run:
                _print_plan(operator.post(_PATH, {**asked, "dry_run": True}), as_json)
                return
            found = operator.post(_PATH, asked)
            if wait:
                _wait(operator, found, as_json, None)
            elif as_json:
                say(json.dumps(found, indent=2))
            else:
                say(f"{headline(found)}; streamd operations wait {found['id']} shows how it does")

        made: Any = command
        for option in reversed(options):
            made = option(made)
        return operations.command(kind)(made)

    return decorate


_node = click.argument("node_id", type=click.IntRange(min=1), metavar="ID")
_address = click.argument("address")


@_begins("rolling-restart")
def rolling_restart() -> Json:
    """Restart all nodes, one after another, the leader last."""
    return {}


@_begins(
    "replace-node", click.argument("old", type=click.IntRange(min=1)), click.argument("new_address")
)
def replace_node(old: int, new_address: str) -> Json:
    """Replace the node OLD by the one whose peers' port is at NEW_ADDRESS.

    Start the new node first, with the cluster's name, an id never used before, and no data.
    """
    return {"node_id": old, "addresses": [new_address]}


@_begins("scale-up", _address)
def scale_up(address: str) -> Json:
    """Add the node whose peers' port is at ADDRESS as a voter."""
    return {"addresses": [address]}


@_begins("scale-down", _node)
def scale_down(node_id: int) -> Json:
    """Remove the node ID, and stop it. Never use its id again."""
    return {"node_id": node_id}


@_begins("upgrade", click.option("--to", "release", required=True, metavar="VERSION"))
def upgrade(release: str) -> Json:
    """Install a release on all nodes and restart them, the leader last."""
    return {"release": release}


@_begins("drain", _node)
def drain(node_id: int) -> Json:
    """Transfer leadership away from the node ID, and stop it: its host can be worked on."""
    return {"node_id": node_id}


@_begins("restart-recovery", _node)
def restart_recovery(node_id: int) -> Json:
    """Restart the node ID, and wait until it has caught up."""
    return {"node_id": node_id}


@_begins("bootstrap", click.argument("addresses", nargs=-1, required=True, metavar="ADDRESS..."))
def bootstrap(addresses: tuple[str, ...]) -> Json:
    """Make a cluster of one node and those whose peers' ports are at the addresses."""
    return {"addresses": list(addresses)}


# -- those that have begun ------------------------------------------------------------------------

_number = click.argument("number", type=click.IntRange(min=1), metavar="ID")


@operations.command("list")
@json_option
@click.pass_obj
def list_operations(operator: Operator, as_json: bool) -> None:
    """List the latest operations, the newest one last."""
    found = operator.get(_PATH)
    if as_json:
        say(json.dumps(found, indent=2))
        return
    table = Table("id", "operation", "state", "steps", "begun", "by", "why", box=None)
    for one in found["operations"]:
        cells = (
            str(one["id"]),
            one["kind"],
            one["state"].replace("_", " "),
            f"{one['current']}/{len(one['steps'])}",
            time_of(one["begun_at_ms"]),
            one["requested_by"],
            one["why"],
        )
        table.add_row(*map(Text, cells))
    console = Console()
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(table)


@operations.command()
@_number
@json_option
@click.pass_obj
def show(operator: Operator, number: int, as_json: bool) -> None:
    """Show an operation: its steps, how far it is, and what it waits for."""
    _print(operator.get(f"{_PATH}/{number}"), as_json)


@operations.command()
@_number
@click.option(
    "--timeout", "timeout_s", callback=seconds, metavar="TIME", help="Wait no longer than this."
)
@json_option
@click.pass_obj
def wait(operator: Operator, number: int, timeout_s: int | None, as_json: bool) -> None:
    """Return when an operation has ended, and show how it does."""
    _wait(operator, operator.get(f"{_PATH}/{number}"), as_json, timeout_s)


def _act(kind: str, text: str) -> None:
    @operations.command(kind, help=text)
    @_number
    @json_option
    @click.pass_obj
    def command(operator: Operator, number: int, as_json: bool) -> None:
        _print(operator.post(f"{_PATH}/{number}/{kind}", {}), as_json)


_act("pause", "Begin no further step of an operation until it is resumed.")
_act("resume", "Carry on with a paused operation.")
_act("cancel", "End an operation once its step in progress has ended.")
_act("done", "Tell an operation that you have done the step for which it waits.")


def _print(found: Json, as_json: bool) -> None:
    for line in [json.dumps(found, indent=2)] if as_json else lines(found):
        say(line)


def _print_plan(found: Json, as_json: bool) -> None:
    for line in [json.dumps(found, indent=2)] if as_json else plan_lines(found["steps"]):
        say(line)


# -- waiting --------------------------------------------------------------------------------------


def _wait(operator: Operator, found: Json, as_json: bool, timeout_s: int | None) -> None:
    """Show an operation until it has ended, and end with a status that says how it did."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    with _silent() if as_json else _shown() as show_it:
        while True:
            show_it(found)
            if found["state"] in ENDED or (deadline is not None and time.monotonic() > deadline):
                break
            time.sleep(_POLL_S)
            found = _ask_again(operator, found)
    if as_json:
        say(json.dumps(found, indent=2))
    if found["state"] not in ENDED:
        complain(f"operation {found['id']} is still under way")
    sys.exit(_OUTCOMES.get(found["state"], EXIT_UNDER_WAY))


def _ask_again(operator: Operator, found: Json) -> Json:
    """The operation at present. Nodes that do not answer are asked again for a while."""
    ends_at = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return operator.get(f"{_PATH}/{found['id']}")
        except (Unreachable, Unavailable, OutcomeUnknown):
            if time.monotonic() > ends_at:
                raise
            time.sleep(_POLL_S)


@contextmanager
def _silent() -> Iterator[Show]:
    yield lambda _: None


@contextmanager
def _shown() -> Iterator[Show]:
    """Show an operation as it changes: a table on a terminal, elsewhere a line for each change."""
    if sys.stdout.isatty():
        with Live(auto_refresh=False) as live:
            yield lambda found: live.update(_display(found), refresh=True)
        return
    before: Report | None = None

    def print_news(found: Report) -> None:
        nonlocal before
        for line in news(before, found):
            say(line)
        before = found

    yield print_news


def _display(found: Report) -> Group:
    """An operation for a terminal that is drawn again and again."""
    table = Table(box=None, show_header=False, padding=(0, 1))
    styles = {"done": "green", "begun": "bold yellow", "waiting": "dim"}
    for number, step in enumerate(found["steps"], 1):
        mark = {"done": "✓", "begun": "…", "waiting": " "}[step["state"]]
        until = step["waits_for"] if step["state"] == "begun" else step["note"]
        cells = (f"{number}", mark, step["text"], until)
        table.add_row(*map(Text, cells), style=styles[step["state"]])
    return Group(Text(headline(found)), table, Text(reason(found)))
