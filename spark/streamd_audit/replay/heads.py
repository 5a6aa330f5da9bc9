"""Commands as the replay takes them: each is about one stream, or about one upload of it.

Those that name several are cut into one for each. Records' bytes are left out; rows say how many
there were.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

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
    decode_command,
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
OF_ONE_STREAM = ("append", "create", "delete", "begin-upload", "publish-snapshot")
TO_CUT = ("touch", "sweep", "flush-cold", "drop-uploads", "store-part")
# Commands that may say more than what a stream is to do.
TELLING = (
    *TO_CUT, "create", "publish-snapshot", "create-bucket", "delete-bucket", "open-session",
)  # fmt: skip

decode = msgspec.msgpack.Decoder(Command).decode
encode = msgspec.msgpack.Encoder().encode
# A row of a state, whose key and value travel as one.
decode_row = msgspec.msgpack.Decoder(tuple[bytes, bytes]).decode

_IDS = 2**63


def cut(head: bytes) -> Iterator[tuple[bytes | int, bytes]]:
    """What a command says of each stream, by its key, or of an upload, by its id.

    A command that the server refuses as a whole, because it names what cannot be, gives nothing.
    """
    command = decode_command(head)
    match command:
        case Touch(reads=reads):
            for read in reads:
                yield read[0], encode(Read(*read))
        case Sweep(keys=keys):
            for key in keys:
                yield key, encode(Due(key))
        case FlushCold(term=term, slices=slices):
            for one in slices:
                # An owner without a bucket's name is a blob.
                if one.owner[:1] != b"\0":
                    yield (
                        one.owner,
                        encode(
                            Flushed(
                                term,
                                one.owner,
                                one.stream_id,
                                one.start_record,
                                one.start_byte,
                                one.end_record,
                                one.end_byte,
                            )
                        ),
                    )
        case DropUploads(ids=ids, idle_ms=idle_ms):
            if all(number >= 0 for number in ids):
                for number in ids:
                    yield number, encode(DropUpload(number, idle_ms))
        case StorePart(upload_id=number):
            if 0 <= number < _IDS:
                yield number, head
        case _:
            pass
