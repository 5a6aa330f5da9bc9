"""Commands as the replay takes them: each is about one stream, or about one upload of it.

Those that name several are cut into one for each. Records' bytes are left out; rows say how many
there were.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import astuple

from streamd_audit import commands
from streamd_audit.commands import (
    Append,
    BeginUpload,
    Create,
    Delete,
    DropUploads,
    FlushCold,
    PublishSnapshot,
    StorePart,
    Sweep,
    Touch,
)


class Read(msgspec.Struct, frozen=True, array_like=True, tag="touch", gc=False):
    """One of a `Touch`."""

    key: bytes
    stream_id: int
    at_ms: int


class Due(msgspec.Struct, frozen=True, array_like=True, tag="sweep", gc=False):
    """One of a `Sweep`."""

    key: bytes


class Flushed(msgspec.Struct, frozen=True, array_like=True, tag="flush-cold", gc=False):
    """A slice of a `FlushCold`, with the command's term."""

    term: int
    key: bytes
    stream_id: int
    start_record: int
    start_byte: int
    end_record: int
    end_byte: int


class DropUpload(msgspec.Struct, frozen=True, array_like=True, tag="drop-uploads", gc=False):
    """One of a `DropUploads`."""

    upload_id: int
    idle_ms: int


Command = (
    Append
    | Create
    | Delete
    | Read
    | Due
    | Flushed
    | BeginUpload
    | StorePart
    | PublishSnapshot
    | DropUpload
)

# Commands that are about one stream, which rows of the log name, and those that are to be cut.
OF_ONE_STREAM = frozenset((Append, Create, Delete, BeginUpload, PublishSnapshot))
TO_CUT = frozenset((Touch, Sweep, FlushCold, DropUploads, StorePart))


class Bundle(msgspec.Struct, array_like=True, gc=False):
    """Commands about one stream, or one upload, in the order of the log, as columns.

    Each has its place (index, position, and a number among those that its command was cut into),
    the term and the log's time of its entry, how many records it brings, of how many bytes, and
    their digests, 16 bytes each.
    """

    index: list[int]
    position: list[int]
    sub: list[int]
    term: list[int]
    log_ms: list[int]
    commands: list[Command]
    records: list[int]
    size: list[int]
    digests: list[bytes]

    def singles(self) -> Iterator[Bundle]:
        """Each command in a bundle of its own."""
        for values in zip(*astuple(self), strict=True):
            yield Bundle(*([value] for value in values))


decode = msgspec.msgpack.Decoder(Bundle).decode
encode = msgspec.msgpack.Encoder().encode
# A row of a state, whose key and value travel as one.
decode_row = msgspec.msgpack.Decoder(tuple[bytes, bytes]).decode

_IDS = 2**63


def cut(command: commands.Command) -> Iterator[tuple[bytes | int, Command]]:
    """What a command says of each stream, by its key, or of an upload, by its id.

    A command that the server refuses as a whole, because it names what cannot be, gives nothing.
    """
    match command:
        case Touch(reads=reads):
            for read in reads:
                yield read[0], Read(*read)
        case Sweep(keys=keys):
            for key in keys:
                yield key, Due(key)
        case FlushCold(term=term, slices=slices):
            for one in slices:
                # An owner without a bucket's name is a blob.
                if one.owner[:1] != b"\0":
                    ends = one.start_record, one.start_byte, one.end_record, one.end_byte
                    yield one.owner, Flushed(term, one.owner, one.stream_id, *ends)
        case DropUploads(ids=ids, idle_ms=idle_ms):
            if all(number >= 0 for number in ids):
                for number in ids:
                    yield number, DropUpload(number, idle_ms)
        case StorePart(upload_id=number):
            if 0 <= number < _IDS:
                yield number, command
        case _:
            pass
