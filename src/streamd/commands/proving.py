"""``streamd prove``: a proof of a record, for someone who does not trust the server."""

from __future__ import annotations

import json
from pathlib import Path

import click

from streamd.client import Client
from streamd.client.names import parse_name
from streamd.commands.options import talks_to_server
from streamd.commands.terminal import flush, write


@click.command()
@click.argument("name")
@click.option(
    "--offset", required=True, metavar="OFFSET", help="Where the record begins; -1 for the first."
)
@click.option(
    "--out", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write it there."
)
@talks_to_server
def prove(client: Client, name: str, offset: str, out: Path | None) -> None:
    """Write a proof that a record of NAME is in the cluster's log.

    'streamd verify' checks it with nothing but the cluster's key. A record is archived a few
    seconds after it was appended; until then the command waits.
    """
    question = {"offset": offset, "proof": "record"}
    proof = client.request("GET", parse_name(name).path, params=question).body
    claim, entry = (json.loads(proof)[part] for part in ("claim", "entry"))
    if out is None:
        write(proof + b"\n")
        flush()
    else:
        out.write_bytes(proof + b"\n")
    click.echo(f"entry {entry['index']} of the log appends it to {claim['stream']}", err=True)
