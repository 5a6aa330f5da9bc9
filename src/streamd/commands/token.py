"""``streamd token``: tokens with which clients authenticate."""

from __future__ import annotations

import getpass
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom
from urllib.parse import quote

import click
from rich.console import Console
from rich.table import Table

from streamd.audit_trail.trail import record
from streamd.auth import tokens
from streamd.commands.backup import failure_of
from streamd.commands.operating import Json, Operator, server_group
from streamd.commands.options import json_option, seconds
from streamd.config.loading import load
from streamd.process.exits import exit_on
from streamd.process.privacy import keep_private
from streamd.storage.data_dir import write_root_token

_WIDTH = 120


_expires_option = click.option(
    "--expires",
    "expires_in_s",
    metavar="TIME",
    callback=seconds,
    help="How long it is valid: 90s, 15m, 12h, 30d. [default: without an end]",
)


@server_group
def token() -> None:
    """Make and revoke the tokens with which clients authenticate.

    The commands but `bootstrap` need a token with the scope admin:*, in STREAMD_TOKEN or a file.
    """


@token.command()
@click.option("--name", required=True, help="A unique name for the token.")
@click.option(
    "--scope", "scopes", multiple=True, required=True, help="VERB:PATTERN; may be repeated."
)
@_expires_option
@json_option
@click.pass_obj
def create(
    operator: Operator, name: str, scopes: tuple[str, ...], expires_in_s: int | None, as_json: bool
) -> None:
    """Create a token, and print it. It is never shown again.

    Verbs: read, append, create, close, delete, fork, snapshot, subscribe, list, admin, operate.
    Patterns: BUCKET/NAME, BUCKET/PREFIX*, BUCKET/ (the bucket itself), BUCKETS*, or * for all.
    """
    body = {"name": name, "scopes": scopes, "expires_in_s": expires_in_s}
    _print_secret(operator.post("/auth/tokens", body), as_json)


@token.command("list")
@json_option
@click.pass_obj
def list_tokens(operator: Operator, as_json: bool) -> None:
    """Show all tokens, without their secrets."""
    found = operator.get("/auth/tokens")["tokens"]
    if as_json:
        print(json.dumps(found, indent=2))
        return
    table = Table(box=None, header_style="bold")
    for title in ("name", "id", "created", "expires", "scopes"):
        table.add_column(title)
    for one in found:
        expires = "expired" if one["expired"] else _time(one["expires_at_ms"])
        if one["former_secret_until_ms"]:
            expires += f" (former secret: {_time(one['former_secret_until_ms'])})"
        row = one["name"], one["id"], _time(one["created_at_ms"]), expires
        table.add_row(*row, " ".join(one["scopes"]))
    console = Console()
    console.width = max(console.width, _WIDTH)
    console.print(table, markup=False, highlight=False)


@token.command()
@click.argument("name")
@click.pass_obj
def show(operator: Operator, name: str) -> None:
    """Show the token with a NAME or id, as JSON."""
    print(json.dumps(operator.get(_path(name)), indent=2))


@token.command()
@click.argument("name")
@click.pass_obj
def revoke(operator: Operator, name: str) -> None:
    """Revoke the token with a NAME or id, at once and for good."""
    operator.delete(_path(name))


@token.command()
@click.argument("name")
@click.option(
    "--overlap",
    "overlap_s",
    metavar="TIME",
    default="1h",
    show_default=True,
    callback=lambda *given: 0 if given[-1] == "0" else seconds(*given),
    help="How long the secret before it stays valid: 0, 90s, 15m, 12h, 30d.",
)
@_expires_option
@json_option
@click.pass_obj
def rotate(
    operator: Operator, name: str, overlap_s: int, expires_in_s: int | None, as_json: bool
) -> None:
    """Give the token with a NAME or id another secret, and print it."""
    body = {"overlap_s": overlap_s, "expires_in_s": expires_in_s}
    _print_secret(operator.post(f"{_path(name)}/rotate", body), as_json)


@click.command()
@click.option("--offline", is_flag=True, required=True, help="Confirm that the node is stopped.")
@click.option("--config", "file", type=click.Path(path_type=Path), help="The node's TOML file.")
@click.option("--data-dir", help="The node's data directory.")
def bootstrap(file: Path | None, offline: bool, **flags: object) -> None:
    """Make a root token for one node, and print it.

    The node accepts it from its next start on, for everything; other nodes do not. The data
    directory keeps its hash. Run it again for another root token, and delete the file root-token
    there once other tokens exist.
    """
    keep_private()
    given = {key: value for key, value in flags.items() if value is not None}
    with exit_on(failure_of):
        config = load(file, os.environ, {"server": given})
        secret = tokens.mint(tokens.ROOT_ID, SystemRandom().randbytes(tokens.SECRET_BYTES))
        directory = Path(config.server.data_dir).absolute()
        record(config, "root-token-made", user=getpass.getuser(), data_dir=str(directory))
        write_root_token(Path(config.server.data_dir), tokens.digest_of(secret.encode()))
    print(secret)


token.add_offline(bootstrap)


def _path(name: str) -> str:
    return f"/auth/tokens/{quote(name, safe='')}"


def _print_secret(found: Json, as_json: bool) -> None:
    print(json.dumps(found, indent=2) if as_json else found["token"])


def _time(at_ms: int | None) -> str:
    if at_ms is None:
        return "never"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
