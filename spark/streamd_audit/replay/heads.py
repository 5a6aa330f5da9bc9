"""Commands in the replay's form: each is about one stream, or about one upload of it.

Commands that name several are cut into one for each. The records' bytes are left out; rows say how
many there were.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import zstandard

from streamd_audit import commands
from streamd_audit.commands import (
    Append,
    BeginUpload,
    Create,
    Delete,
    DropUploads,
    EndProducers,
    FlushCold,
    PublishSnapshot,
    RenewIncarnations,
    StorePart,
    Sweep,
    Touch,
)
from streamd_audit.subscriptions import (
    AcknowledgeWake,
    EndDelivery,
    LinkStreams,
    PutSubscription,
    SubscriptionCommand,
    UnlinkStream,
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
    | EndProducers
    | SubscriptionCommand
    | RenewIncarnations
)


Step = tuple[int, int, int, int, int, Command, int, int, bytes]
"""A command as the log has it: index, position, a number among those that it was cut into; the term
and the log's time of its entry; how many records it brings, of how many bytes, and their digests,
16 bytes each."""
Bundle = list[Step]
"""Commands about one stream, or one upload, in the order of the log."""

_decode = msgspec.msgpack.Decoder(Bundle).decode
encode = msgspec.msgpack.Encoder().encode
_compress = zstandard.ZstdCompressor(level=1).compress
_decompress = zstandard.ZstdDecompressor().decompress
# Shorter bundles are not worth compressing.
_COMPRESSED_BYTES = 1024
_ZSTD = zstandard.FRAME_HEADER[:1]


def pack(bundle: Bundle) -> bytes:
    """A bundle in compressed form: a third of its bytes, which determine Spark's cost of handling
    it."""
    body = encode(bundle)
    return body if len(body) < _COMPRESSED_BYTES else _compress(body)


def unpack(body: bytes) -> Bundle:
    # No array of MessagePack begins as a frame of zstd does.
    return _decode(_decompress(body) if body[:1] == _ZSTD else body)


# A row of a state, whose key and value travel as one.
decode_row = msgspec.msgpack.Decoder(tuple[bytes, bytes]).decode


def keys_in(command: commands.Command) -> Iterator[bytes]:
    """The keys of the streams that a command about subscriptions names, and of fenced ones."""
    match command:
        case Create() if command.settings.write_fence:
            yield command.key
        case PutSubscription():
            yield from command.keys
            yield command.config.wake_key
        case LinkStreams():
            yield from command.keys
        case UnlinkStream():
            yield command.key
        case AcknowledgeWake() | EndDelivery():
            yield from (ack.key for ack in command.acks)
        case _:
            pass


_IDS = 2**63
# No stream's key. All subscriptions of a group are replayed together.
OF_SUBSCRIPTIONS = b"\0"


def cut(command: commands.Command) -> Iterator[tuple[bytes | int, Command]]:
    """What a command says about each stream, by its key, or about an upload, by its id.

    A command that the server refuses as a whole, because it names impossible things, gives nothing.
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
        case Append() | Create() | Delete() | BeginUpload() | PublishSnapshot() | EndProducers():
            yield command.key, command
        case StorePart(upload_id=number):
            if 0 <= number < _IDS:
                yield number, command
        case _ if isinstance(command, SubscriptionCommand | RenewIncarnations):
            yield OF_SUBSCRIPTIONS, command
        case _:
            pass
