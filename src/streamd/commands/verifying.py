"""``streamd verify``: proofs, without a network and without a server."""

from __future__ import annotations

import os
from pathlib import Path

import click

from streamd.commands.terminal import say
from streamd.process.exits import EXIT_LOCAL, EXIT_REFUSED, complain, end
from streamd.proofs.heads import Unsigned, parse_key
from streamd_audit.proof import NotProved, verify_heads, verify_record

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_MAX_BYTES = 256 * 1024 * 1024


def _key(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The key that was given, or that the file of that name has in its first line."""
    if Path(value).is_file():
        value = Path(value).read_text(errors="replace").strip().partition("\n")[0]
    try:
        return str(parse_key(value))
    except Unsigned as error:
        raise click.BadParameter(f"{error}, as 'streamd log-head --keys' prints it") from None


@click.command()
@click.argument("proof", required=False, type=_FILE)
@click.option(
    "--key", metavar="KEY|FILE", required=True, callback=_key, help="The key to trust, or its file."
)
@click.option("--record", type=_FILE, help="The record must be what this file holds.")
@click.option(
    "--heads", nargs=2, type=_FILE, metavar="OLD NEW", help="Two heads, instead of a proof."
)
def verify(proof: Path | None, key: str, record: Path | None, heads: tuple[Path, Path]) -> None:
    """Verify a PROOF that a record is in the log of a cluster, or that its log has only grown.

    No server is asked. The exit status is 0 if that is proved, 1 if it is not.
    """
    if bool(heads) == bool(proof) or (heads and record):
        raise click.UsageError("name one proof, or --heads and two files")
    try:
        if heads:
            shown = verify_heads(_content(heads[0]), _content(heads[1]), key)
            say("PROVED: the first log is the beginning of the second")
            say("\n".join(map(str, shown)))
        elif proof:
            proved = verify_record(_content(proof), key)
            if record and _content(record) not in (proved.record, proved.record + b"\n"):
                raise NotProved(f"the proof is of another record than {record} holds")
            say(f"PROVED: {proved}\n{proved.head}")
    except NotProved as error:
        complain(f"NOT PROVED: {error}")
        raise SystemExit(EXIT_REFUSED) from None


def _content(path: Path) -> bytes:
    """What a file holds. Ends the process if that cannot be read, or is too much for a proof."""
    try:
        if os.stat(path).st_size <= _MAX_BYTES:
            return path.read_bytes()
    except OSError as error:
        end(str(error), EXIT_LOCAL)
    raise NotProved(f"{path} is too large for a proof")
