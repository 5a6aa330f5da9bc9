"""The file that proves a record: its command, and the paths from there to a signed head.

The command is shown whole, and its entry without the other commands. `streamd_audit.proof` reads
this format; docs/proofs.md describes it.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from streamd.proofs import leaves
from streamd.proofs.tree import Place, inclusion, leaf_hash, path_of, root_of

H = TypeVar("H")


class Claim(msgspec.Struct, frozen=True):
    """The record: number `record`, from 0, of those that a command appends to `stream`, which is
    `bucket/name`. The offset at which it is read is not proved."""

    stream: str
    offset: str
    record: int


class ShownEntry(msgspec.Struct, frozen=True):
    """An entry without its `count` commands: what is in its payload before and after them."""

    index: int
    term: int
    prefix: bytes
    count: int
    suffix: bytes


class ShownCommand(msgspec.Struct, frozen=True):
    """A command of the entry, and the path from it to the root over all of them."""

    number: int
    content: bytes = msgspec.field(name="bytes")
    path: list[bytes] = []


class RecordProof(
    msgspec.Struct, Generic[H], frozen=True, tag_field="format", tag="streamd-proof-1"
):
    """A proof; in JSON, bytes are in base64. `path` leads from the entry to the root of `head`."""

    claim: Claim
    entry: ShownEntry
    command: ShownCommand
    path: list[bytes]
    head: H


class FoundEntry(msgspec.Struct, frozen=True):
    """An entry of the log that holds commands."""

    index: int
    term: int
    payload: bytes


def prove(claim: Claim, entry: FoundEntry, number: int, path: list[bytes], head: H) -> bytes:
    """The proof, as a file, that command `number` of an entry is in the log; `path` leads from the
    entry to the root in `head`."""
    prefix, commands, suffix = leaves.divide(entry.payload)
    shown = ShownEntry(entry.index, entry.term, prefix, len(commands), suffix)
    command = ShownCommand(number, commands[number], command_path(commands, number))
    return msgspec.json.encode(RecordProof(claim, shown, command, path, head))


def command_path(commands: list[bytes], number: int) -> list[bytes]:
    """The path from a command to the root over the commands of its entry."""
    hashes = [leaf_hash(command) for command in commands]

    def node(place: Place) -> bytes:
        return root_of(hashes[place.number << place.level : (place.number + 1) << place.level])

    return path_of(inclusion(number, len(commands)), node)
