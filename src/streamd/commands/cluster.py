"""``streamd cluster``: shows and changes a running cluster, through any of its nodes."""

from __future__ import annotations

import json
import time
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from streamd.commands.operating import AT_LEADER, Operator, server_group
from streamd.commands.options import json_option
from streamd.commands.terminal import waiting_for
from streamd.process.exits import EXIT_REFUSED, end

_POLL_S = 0.2
_TABLE_WIDTH = 140


@server_group
def cluster() -> None:
    """Look at a cluster, change its members, transfer leadership."""


@cluster.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.pass_obj
def status(operator: Operator, as_json: bool) -> None:
    """Show the members, the leader, and how far each member lags.

    Only the leader knows the lag and the last contact, and the node asks it for them. JSON is the
    answer of the node itself.
    """
    params = None if as_json else AT_LEADER
    answer = operator.get("/cluster/status", params)
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    answer = _at_leader(operator, answer)
    # Addresses cut off to fit would be of no use.
    console = Console()
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(
        f"cluster {answer['cluster_name'] or '(a single node)'}  term {answer['term']}  "
        f"leader {answer['leader_id'] or 'none'}  commit {answer['commit_index']}  "
        f"(according to node {answer['node_id']}, applied {answer['last_applied']}, "
        f"version {answer.get('version', 'unknown')})"
    )
    if answer.get("advice"):
        console.print(f"{answer['membership']}: {answer['advice']}", soft_wrap=True)
    if answer.get("members"):
        console.print(_table(answer))


def _at_leader(operator: Operator, answer: dict[str, Any]) -> dict[str, Any]:
    """The status of the leader that `answer` names, or `answer` if it cannot be asked. Only a node
    of release 0.1.0 has not asked it itself."""
    for member in answer.get("members", []):
        if member["node_id"] == answer["leader_id"] != answer["node_id"]:
            return operator.peek(member["client_address"], "/cluster/status") or answer
    return answer


def _table(answer: dict[str, Any]) -> Table:
    table = Table(box=None, header_style="bold")
    for title in (
        "node",
        "role",
        "peers",
        "clients",
        "matched",
        "lag",
        "lag bytes",
        "last contact",
        "version",
    ):
        is_number = title in ("matched", "lag", "lag bytes")
        table.add_column(title, justify="right" if is_number else "left")
    for member in answer["members"]:
        node_id = member["node_id"]
        role = "voter" if member["voter"] else "learner"
        if node_id == answer["leader_id"]:
            role = "leader"
        contact = member.get("last_contact_ms")
        table.add_row(
            str(node_id),
            role,
            member["peer_address"],
            member["client_address"],
            str(member.get("match_index", "")),
            str(member.get("behind_entries", "")),
            str(member.get("behind_bytes", "")),
            "" if contact is None else f"{contact} ms ago",
            member.get("version", "unknown"),
        )
    return table


@cluster.command()
@click.argument("address")
@click.pass_obj
def add(operator: Operator, address: str) -> None:
    """Add the node at peer ADDRESS as a learner.

    Start the node first, with the cluster's name, an id never used before, and no data.
    """
    _tell(operator.post("/cluster/add", {"address": address}))


@cluster.command()
@click.argument("node_id", type=int)
@click.option("--replacing", type=int, help="The voter that the learner replaces.")
@click.pass_obj
def promote(operator: Operator, node_id: int, replacing: int | None) -> None:
    """Promote a learner to voter."""
    _tell(operator.post("/cluster/promote", {"node_id": node_id, "replacing": replacing}))


@cluster.command()
@click.argument("node_id", type=int)
@click.pass_obj
def remove(operator: Operator, node_id: int) -> None:
    """Remove a node from the cluster. Never use its id again."""
    _tell(operator.post("/cluster/remove", {"node_id": node_id}))


@cluster.command()
@click.argument("node_id", type=int, required=False)
@click.pass_obj
def transfer(operator: Operator, node_id: int | None) -> None:
    """Transfer leadership (default: to the most up-to-date voter)."""
    _tell(operator.post("/cluster/transfer", {"node_id": node_id}))


@cluster.command()
@click.pass_obj
def snapshot(operator: Operator) -> None:
    """Store the node's state and compact its log."""
    print(f"the log begins at entry {operator.post('/cluster/snapshot', {})['first_log_index']}")


@cluster.command()
@click.option(
    "--raise",
    "is_raised",
    is_flag=True,
    help="Raise the level as far as every member understands. There is no way back.",
)
@json_option
@click.pass_obj
def features(operator: Operator, is_raised: bool, as_json: bool) -> None:
    """Show which formats of the log the cluster uses, and what each member understands."""
    path = "/cluster/features"
    found = operator.post(path, {}, repeatable=True) if is_raised else operator.get(path)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print(f"the log has formats up to {found['level']}; this node understands {found['highest']}")
    for node_id, level in found["members"].items():
        print(f"node {node_id} understands {level or 'an unknown number of'} formats")


@cluster.command("wait-ready")
@click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="Seconds to wait.")
@click.pass_obj
def wait_ready(operator: Operator, timeout_s: float) -> None:
    """Return once the node has a leader and has caught up with it."""
    deadline = time.monotonic() + timeout_s
    with waiting_for("the node to be ready"):
        while not operator.is_ready():
            if time.monotonic() >= deadline:
                end(f"not ready within {timeout_s:g} s", EXIT_REFUSED)
            time.sleep(_POLL_S)


def _tell(answer: dict[str, Any]) -> None:
    print(
        f"leader {answer['leader_id'] or 'none'}, voters {_ids(answer['voters'])}, "
        f"learners {_ids(answer['learners'])}"
    )


def _ids(ids: list[int]) -> str:
    return " ".join(map(str, ids)) or "none"
