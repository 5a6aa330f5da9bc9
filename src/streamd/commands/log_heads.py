"""``streamd log-head`` and ``streamd log-key``: signed heads of the log, for people to keep."""

from __future__ import annotations

import json
from pathlib import Path

import click

from streamd.commands.operating import Operator, server_group
from streamd.commands.options import given_server, server_options
from streamd.commands.terminal import exit_on_failure
from streamd.process.exits import EXIT_REFUSED, end
from streamd.proofs.heads import Unsigned
from streamd.proofs.published import Checked, checked, is_continued, read_published


@click.command("log-head")
@click.option(
    "--since",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An earlier head in JSON, and check that the log continues it.",
)
@click.option("--note", "as_note", is_flag=True, help="Print only the signed note.")
@click.option("--keys", "as_keys", is_flag=True, help="Print only the cluster's first key.")
@server_options
@click.pass_context
def log_head(context: click.Context, since: Path | None, as_note: bool, as_keys: bool) -> None:
    """Print the newest signed head of the log, in JSON.

    Keep it where the cluster's operators cannot change it: with it anybody can tell later whether
    the log still has all that it has now.
    """
    with exit_on_failure(None):
        operator = Operator(given_server(context))
        old = None if since is None else _checked(since.read_bytes(), str(since))
        size = None if old is None else {"since": str(old.head.size)}
        answer = operator.get("/cluster/log-head", size)
        encoded = json.dumps(answer).encode()
        new = _checked(encoded, "the server's answer")
        if old is not None:
            _check_continued(old, new, read_published(encoded).path)
    if as_keys:
        print(new.first_key)
    elif as_note:
        print(answer["note"], end="")
    else:
        answer.pop("consistency", None)
        print(json.dumps(answer))
    if old is not None:
        click.echo(
            f"entries {old.head.first_index} to {old.head.index} are what they were "
            f"(of {old.head.first_index} to {new.head.index} now)",
            err=True,
        )


def _checked(encoded: bytes, what: str) -> Checked:
    try:
        return checked(read_published(encoded))
    except Unsigned as error:
        end(f"{what} is not a head with a valid signature: {error}", EXIT_REFUSED)


def _check_continued(old: Checked, new: Checked, path: list[bytes]) -> None:
    if new.first_key != old.first_key:
        end(
            f"the heads have different first keys: {old.first_key} then, {new.first_key} now. "
            "Another cluster has signed this one, or a node for which none could vouch",
            EXIT_REFUSED,
        )
    if not is_continued(old.head, new.head, path):
        end(
            f"THE LOG DOES NOT CONTINUE that head: entries {old.head.first_index} to "
            f"{old.head.index} are not what they were, or a new tree was begun after a gap",
            EXIT_REFUSED,
        )


@server_group
def log_key() -> None:
    """Administer the key with which a node signs heads of the log."""


@log_key.command()
@click.pass_obj
def rotate(operator: Operator) -> None:
    """Replace the node's key by a new one, for which the present one vouches."""
    answer = operator.post("/cluster/log-key/rotate", {})
    print(f"{answer['key']} of node {answer['node']}, signed by {answer['signed_by']}")
