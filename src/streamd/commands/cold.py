"""``streamd cold``: the status of the cold store, and commands that start its tasks at once."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from streamd.commands.operating import AT_LEADER, Operator, ServerGroup, server_group
from streamd.commands.terminal import waiting_for
from streamd.process.exits import EXIT_REFUSED, end

_POLL_S = 0.3

Answer = dict[str, Any]


class Leader:
    """The routes of the current leader. Raises `StreamdError`."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def look(self) -> Answer:
        """The leader's answer, or the node's own if the leader cannot be reached."""
        answer: Answer = self._operator.get("/cluster/cold", AT_LEADER)
        if answer["leads"] or answer["leader_address"] is None:
            return answer
        # A node of release 0.1.0 does not ask another.
        return self._operator.peek(answer["leader_address"], "/cluster/cold") or answer

    def order(self, work: str) -> Answer:
        """Ask the leader to begin; returns what to wait for. May be repeated."""
        return self._operator.post(f"/cluster/cold/{work}", {}, repeatable=True)

    def watch(
        self, work: str, timeout_s: float, show: Callable[[Answer, Answer], bool]
    ) -> tuple[Answer, Answer]:
        """Order work and poll until `show`, given the order and the latest answer, returns True.

        Orders again under a new leader. Ends the process when time runs out.
        """
        deadline = time.monotonic() + timeout_s
        order = self.order(work)
        with waiting_for(f"the leader to end its {work}"):
            while True:
                answer = self.look()
                if answer["leads"]:
                    if answer["term"] != order["term"]:
                        order = self.order(work)
                    elif show(order, answer):
                        return order, answer
                if time.monotonic() > deadline:
                    end(f"not done within {timeout_s:g} s{_why(answer)}", EXIT_REFUSED)
                time.sleep(_POLL_S)


def _why(answer: Answer) -> str:
    error = answer.get("last_error")
    return f"; last error: {error['message']}" if error else ""


@server_group
def cold() -> None:
    """Show the cold store's status; flush, collect or scrub it now."""


@cold.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.pass_obj
def status(operator: Operator, as_json: bool) -> None:
    """Show what is hot and cold, how far the archive goes, and what is wrong.

    The node asks the leader for what only that knows.
    """
    answer = Leader(operator).look()
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in _rows(answer):
        table.add_row(name, text)
    Console().print(table)


_timeout = click.option(
    "--timeout", "timeout_s", default=600.0, show_default=True, help="Seconds to wait."
)
_as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, without progress."
)


@cold.command()
@_timeout
@_as_json
@click.pass_obj
def flush(operator: Operator, timeout_s: float, as_json: bool) -> None:
    """Flush everything that is hot now, and return when the store has it."""
    with _progress(as_json) as progress:
        task = progress.add_task("flushing", total=None)

        def is_done(order: Answer, answer: Answer) -> bool:
            total = order["hot_bytes"]
            progress.update(task, total=total, completed=max(0, total - answer["hot_bytes"]))
            return bool(answer["flush"]["passes"] >= order["pass"])

        order, answer = Leader(operator).watch("flush", timeout_s, is_done)
    _tell(as_json, {"flushed_bytes": order["hot_bytes"], "hot_bytes": answer["hot_bytes"]})


@cold.command()
@_timeout
@_as_json
@click.pass_obj
def gc(operator: Operator, timeout_s: float, as_json: bool) -> None:
    """Remove what is no longer needed, and print what that was.

    Grace periods and the archive's retention still hold.
    """
    with _progress(as_json) as progress:
        task = progress.add_task("removing", total=None)

        def is_done(order: Answer, answer: Answer) -> bool:
            progress.update(task, description=f"removing: {answer['gc']['doing']}")
            return bool(answer["gc"]["rounds"] >= order["round"])

        _, answer = Leader(operator).watch("gc", timeout_s, is_done)
    _tell(as_json, answer["gc"]["last"])


@cold.group(cls=ServerGroup)
def scrub() -> None:
    """Read everything in the store, slowly, and compare it with the digests in its names.

    The leader does so by itself every `cold.scrub_interval_hours`.
    """


@scrub.command()
@click.option("--wait", is_flag=True, help="Wait until the pass has ended.")
@_timeout
@_as_json
@click.pass_obj
def start(operator: Operator, wait: bool, timeout_s: float, as_json: bool) -> None:
    """Start a new pass now; a pass that is running is abandoned."""
    if not wait:
        _tell(as_json, {"pass": Leader(operator).order("scrub")["pass"]})
        return
    with _progress(as_json) as progress:
        task = progress.add_task("reading", total=None)

        def is_done(order: Answer, answer: Answer) -> bool:
            scrub = answer["scrub"]
            progress.update(task, description=f"{scrub['objects']} objects read")
            return bool(scrub["passes"] >= order["pass"])

        _, answer = Leader(operator).watch("scrub", timeout_s, is_done)
    _print_scrub(as_json, answer["scrub"])


@scrub.command("status")
@_as_json
@click.pass_obj
def scrub_status(operator: Operator, as_json: bool) -> None:
    """Show how far the pass is; exit with 1 if objects are missing or damaged."""
    _print_scrub(as_json, Leader(operator).look()["scrub"])


def _print_scrub(as_json: bool, found: Answer) -> None:
    shown = found if as_json else {**found, **_named(found)}
    _tell(as_json, shown)
    if found["missing_objects"] or found["damaged_objects"]:
        sys.exit(EXIT_REFUSED)


def _named(found: Answer) -> Answer:
    """The names, one a line."""
    return {kind: "".join(f"\n  {name}" for name in found[kind]) for kind in ("missing", "damaged")}


def _progress(as_json: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    return Progress(
        *columns,
        console=Console(stderr=True),
        disable=as_json or not sys.stderr.isatty(),
        transient=True,
        refresh_per_second=5,
    )


def _tell(as_json: bool, result: Answer) -> None:
    if as_json:
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        print(f"{name.replace('_', ' ')}: {value}")


def _rows(answer: Answer) -> list[tuple[str, str]]:
    """What a person wants to see, most important first."""
    limit = answer["hot_limit_bytes"]
    flushed, archive, error = answer["flush"], answer["archive"], answer["last_error"]
    return [
        ("store", answer["place"] + _away(answer.get("unavailable_ms"))),
        ("answered by", f"node {answer['node_id']}{'' if answer['leads'] else ', not the leader'}"),
        ("not in the store", f"{_size(answer['hot_bytes'])} of {_size(limit)} allowed"),
        ("oldest of it", "none" if answer["lag_ms"] is None else f"{_time(answer['lag_ms'])} old"),
        ("in the store", f"{_size(answer['cold_bytes'])} in {answer['packs']} packs"),
        ("their size", f"{_size(answer['pack_bytes'])}; {answer['dead_packs']} packs dead"),
        (
            "last flush",
            "none that this node knows" if flushed["ago_ms"] is None else _flush(flushed),
        ),
        ("archive", "off" if archive is None else _archive(archive)),
        ("objects", _objects(answer["scrub"])),
        ("appends", answer["backpressure"] or "taken"),
        ("last error", "none" if error is None else f"{error['task']}: {error['message']}"),
    ]


def _away(unavailable_ms: int | None) -> str:
    return "" if unavailable_ms is None else f"; NO ANSWER for {_time(unavailable_ms)}"


def _flush(flushed: Answer) -> str:
    return f"{_size(flushed['bytes'])} in {flushed['packs']} packs, {_time(flushed['ago_ms'])} ago"


def _archive(archive: Answer) -> str:
    told = f"through entry {archive['archived_index']}, lag {archive['lag_entries']} entries"
    for name in archive.get("damaged_snapshots") or []:
        told += f"; DAMAGED: {name}"
    if archive.get("set_back"):
        told += f"; ALARM: {archive['set_back']}"
    for first, last in archive["gaps"] or []:
        told += f"; GAP: entries {first} to {last} are missing"
    if archive["log_cut_unarchived_index"]:
        told += f"; ALARM: the log is cut up to entry {archive['log_cut_unarchived_index']}"
    return told


def _objects(scrub: Answer) -> str:
    told = [
        f"ALARM: {scrub[f'{kind}_objects']} {kind}"
        for kind in ("missing", "damaged")
        if scrub[f"{kind}_objects"]
    ]
    at_ms = scrub["last_pass_time_ms"]
    if at_ms is None:
        told.append("never all read")
    else:
        told.append(f"all read {_time(max(0, time.time_ns() // 1_000_000 - at_ms))} ago")
    if scrub["under_way"]:
        told.append(f"being read, {_size(scrub['bytes'])} so far")
    return "; ".join(told)


def _size(count: int | None) -> str:
    if count is None:
        return "unknown"
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _time(milliseconds: int) -> str:
    seconds = milliseconds / 1000
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
