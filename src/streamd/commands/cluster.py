"""``streamd cluster``: an operator's view of a running cluster, through any of its nodes."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, NoReturn

import click
import httpx
from rich.console import Console
from rich.table import Table

from streamd.redaction import shown

EXIT_REFUSED = 1
EXIT_UNREACHABLE = 3

_TIMEOUT_S = 30.0
_POLL_S = 0.2
_TABLE_WIDTH = 120
_LEADER_TIMEOUT_S = 3.0


class Api:
    """The operations routes of one node. Failures end the process with a message."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=_TIMEOUT_S)

    def get(self, path: str) -> Any:
        return self._answer("GET", path, None)

    def post(self, path: str, wish: dict[str, Any]) -> Any:
        given = {key: value for key, value in wish.items() if value is not None}
        return self._answer("POST", path, given)

    def at_leader(self, path: str, answer: dict[str, Any]) -> Any:
        """What the leader says that `answer` names, or `answer` when it cannot be asked."""
        for member in answer.get("members", []):
            if member["node_id"] == answer["leader_id"] != answer["node_id"]:
                return self.elsewhere(member["client_address"], path) or answer
        return answer

    def elsewhere(self, address: str, path: str) -> Any:
        """What another node says, or None when it cannot be asked from here."""
        url = self._client.base_url.copy_with(netloc=address.encode())
        try:
            response = httpx.get(url.join(path), timeout=_LEADER_TIMEOUT_S)
            return response.raise_for_status().json()
        except (httpx.HTTPError, ValueError):
            return None

    def order(self, path: str) -> httpx.Response:
        """Have the leader do something: where another node is asked it names that one.

        Raises `httpx.HTTPError`.
        """
        return self._client.post(path, json={}, follow_redirects=True)

    def is_ready(self) -> bool:
        try:
            return self._client.get("/readyz/cluster").status_code == 200
        except httpx.HTTPError:
            return False

    def _answer(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        try:
            response = self._client.request(method, path, json=body)
        except httpx.HTTPError as failure:
            self.unreachable(failure)
        return self.decoded(response)

    def unreachable(self, failure: httpx.HTTPError) -> NoReturn:
        end(f"{shown(str(self._client.base_url))} does not answer: {failure}", EXIT_UNREACHABLE)

    def decoded(self, response: httpx.Response) -> Any:
        """What an answer holds; a refusal ends the process."""
        if not response.is_success:
            try:
                said = response.json()["error"]
                message = f"{said['code']}: {said['message']}"
            except (ValueError, KeyError, TypeError):
                message = f"unexpected answer {response.status_code}"
            end(message, EXIT_REFUSED)
        return response.json()


def end(message: str, status: int) -> NoReturn:
    """End the process, saying why."""
    print(f"streamd: {message}", file=sys.stderr)
    sys.exit(status)


url_option = click.option(
    "--url",
    envvar="STREAMD_URL",
    default="http://127.0.0.1:4437",
    show_default=True,
    help="Any node of the cluster; STREAMD_URL in the environment.",
)


@click.group()
@url_option
@click.pass_context
def cluster(context: click.Context, url: str) -> None:
    """Look at a cluster, change its members, hand over the lead."""
    context.obj = Api(url)


@cluster.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON, for machines.")
@click.pass_obj
def status(api: Api, as_json: bool) -> None:
    """Who is there, who leads, who is behind.

    Lag and last contact only the leader knows: it is asked for them, if it can be reached from
    here. As JSON, it is what the node itself says.
    """
    answer = api.get("/cluster/status")
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    answer = api.at_leader("/cluster/status", answer)
    # Addresses cut off to fit would be of no use.
    console = Console()
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(
        f"cluster {answer['cluster_name'] or '(a single node)'}  term {answer['term']}  "
        f"leader {answer['leader_id'] or 'none'}  commit {answer['commit_index']}  "
        f"(node {answer['node_id']} says so, applied {answer['last_applied']})"
    )
    if "members" in answer:
        console.print(_table(answer))


def _table(answer: dict[str, Any]) -> Table:
    table = Table(box=None, header_style="bold")
    for title in ("node", "role", "peers", "clients", "matched", "behind", "bytes", "last contact"):
        is_number = title in ("matched", "behind", "bytes")
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
        )
    return table


@cluster.command()
@click.argument("address")
@click.pass_obj
def add(api: Api, address: str) -> None:
    """Have the node at a peer ADDRESS receive the log, as a learner.

    It has been started with the cluster's name, an id never used before, and no data.
    """
    _tell(api.post("/cluster/add", {"address": address}))


@cluster.command()
@click.argument("node_id", type=int)
@click.option("--replacing", type=int, help="The voter whose place it takes.")
@click.pass_obj
def promote(api: Api, node_id: int, replacing: int | None) -> None:
    """Make a learner a voter."""
    _tell(api.post("/cluster/promote", {"node_id": node_id, "replacing": replacing}))


@cluster.command()
@click.argument("node_id", type=int)
@click.pass_obj
def remove(api: Api, node_id: int) -> None:
    """Take a node out of the cluster. Its id is not to be used again."""
    _tell(api.post("/cluster/remove", {"node_id": node_id}))


@cluster.command()
@click.argument("node_id", type=int, required=False)
@click.pass_obj
def transfer(api: Api, node_id: int | None) -> None:
    """Hand the lead to a voter, or to the one that is furthest."""
    _tell(api.post("/cluster/transfer", {"node_id": node_id}))


@cluster.command()
@click.pass_obj
def snapshot(api: Api) -> None:
    """Store the node's state and cut its log behind it."""
    print(f"the log begins at entry {api.post('/cluster/snapshot', {})['first_log_index']}")


@cluster.command("wait-ready")
@click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="Seconds to wait.")
@click.pass_obj
def wait_ready(api: Api, timeout_s: float) -> None:
    """Return once the node has a leader and is caught up with it."""
    deadline = time.monotonic() + timeout_s
    while not api.is_ready():
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
