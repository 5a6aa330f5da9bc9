"""The commands in the log, and the batches they come in (docs/formats.md, "Commands").

Records are not copied: `data` is a view into the entry. Fields that a release added later have
defaults, so commands of every release decode; fields that later releases add at the end are
skipped.
"""

from __future__ import annotations

from struct import Struct
from typing import Annotated, Literal

import msgspec

from streamd_audit.errors import Damaged
from streamd_audit.framing import Buffer, Decoder
from streamd_audit.operations import Operation
from streamd_audit.subscriptions import FenceStamp, SubscriptionCommand

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Position = tuple[int, int]
_NO_DATA = memoryview(b"")


class Fork(msgspec.Struct, array_like=True, gc=False):
    """The stream `source` (a key) is forked at (record, byte), or at its tail if None, and
    `sub_offset` messages or bytes after that."""

    source: bytes
    offset: Position | None = None
    sub_offset: int = 0


class Settings(msgspec.Struct, array_like=True, gc=False):
    """What a PUT asked for. `expires_at` is RFC 3339 text, `expires_at_ms` the same moment."""

    content_type: str | None = None
    ttl_ms: int | None = None
    expires_at: str | None = None
    expires_at_ms: int | None = None
    fork: Fork | None = None
    write_fence: bool = False


class Producer(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """`counted` says whether its stream counts it."""

    producer_id: str
    epoch: int
    seq: int
    counted: bool = False

    @property
    def uncounted(self) -> Producer:
        return Producer(self.producer_id, self.epoch, self.seq)


class Version(msgspec.Struct, array_like=True, gc=False):
    """What an ETag names: `incarnation` is the stream's id plus the state's incarnation base."""

    incarnation: int
    record: int
    byte: int
    closed: bool


class Condition(msgspec.Struct, array_like=True, gc=False):
    """One of `versions` must be the stream's; None is ``*``."""

    versions: list[Version] | None = None


NOTHING, BOUNDARY, NO_BOUNDARY, BEYOND_APPEND = 0, 1, 2, 3


class Verified(msgspec.Struct, array_like=True, gc=False):
    """What a node read in old records of stream `stream_id` before it proposed the command."""

    stream_id: int = 0
    verdict: Annotated[int, msgspec.Meta(ge=0, le=3)] = NOTHING
    record: int = 0
    byte: int = 0


class Place(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """An entry of the log, as in a segment's head."""

    index: int = 0
    term: int = 0
    chain: int = 0
    time_ms: int = 0


# At most so many objects are named.
_Names = Annotated[
    tuple[Annotated[str, msgspec.Meta(max_length=1024)], ...], msgspec.Meta(max_length=16)
]


class Scrub(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """How far the leaders' reading of all objects has come, and what it has met."""

    passes: Number = 0
    done_ms: Number = 0
    under_way: bool = False
    pack: tuple[Number, Number] = (0, 0)
    name: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    objects: Number = 0
    size: Number = 0
    found: Number = 0
    missing: _Names = ()
    missing_count: Number = 0
    damaged: _Names = ()
    damaged_count: Number = 0
    restorable_from: Number | None = None
    lost: tuple[Number, Number, Number] | None = None


class Create(msgspec.Struct, array_like=True, gc=False, tag="create"):
    key: bytes
    settings: Settings
    closed: bool = False
    data: memoryview = _NO_DATA
    lengths: list[int] = []
    implicit_bucket: bool = False
    condition: Condition | None = None
    verified: Verified | None = None
    cut_as: str | None = None


class Append(msgspec.Struct, array_like=True, gc=False, tag="append"):
    key: bytes
    content_type: str
    data: memoryview
    lengths: list[int]
    close: bool = False
    seq: str | None = None
    producer: Producer | None = None
    condition: Condition | None = None
    fence: FenceStamp | None = None


class Delete(msgspec.Struct, array_like=True, gc=False, tag="delete"):
    key: bytes
    condition: Condition | None = None


class Touch(msgspec.Struct, array_like=True, gc=False, tag="touch"):
    """(key, stream id, time in ms) of each read."""

    reads: list[tuple[bytes, int, int]]


class Sweep(msgspec.Struct, array_like=True, gc=False, tag="sweep"):
    keys: list[bytes]


class CreateBucket(msgspec.Struct, array_like=True, gc=False, tag="create-bucket"):
    name: bytes


class DeleteBucket(msgspec.Struct, array_like=True, gc=False, tag="delete-bucket"):
    name: bytes


class BeginUpload(msgspec.Struct, array_like=True, gc=False, tag="begin-upload"):
    key: bytes
    at: Position
    verified: Verified | None = None


class StorePart(msgspec.Struct, array_like=True, gc=False, tag="store-part"):
    upload_id: int
    number: int
    data: memoryview


class PublishSnapshot(msgspec.Struct, array_like=True, gc=False, tag="publish-snapshot"):
    key: bytes
    at: Position
    content_type: str
    size: int
    digest: bytes
    upload_id: int = 0
    data: memoryview = _NO_DATA
    verified: Verified | None = None


class DropUploads(msgspec.Struct, array_like=True, gc=False, tag="drop-uploads"):
    ids: list[int]
    idle_ms: int = 0


class NewSlice(msgspec.Struct, array_like=True, gc=False):
    """A slice of a new pack; `owner` is a stream's key, or NUL and a blob's id."""

    owner: bytes
    stream_id: int
    start_record: int
    start_byte: int
    end_record: int
    end_byte: int
    offset: int
    length: int
    crc: int
    digest: bytes


class FlushCold(msgspec.Struct, array_like=True, gc=False, tag="flush-cold"):
    term: int
    number: int
    name: str
    size: int
    slices: list[NewSlice]


class DropSlices(msgspec.Struct, array_like=True, gc=False, tag="drop-slices"):
    stream_id: int
    end_records: list[int]


class MovedSlice(msgspec.Struct, array_like=True, gc=False):
    stream_id: int
    end_record: int
    from_term: int
    from_number: int
    offset: int
    length: int
    crc: int


class MoveSlices(msgspec.Struct, array_like=True, gc=False, tag="move-slices"):
    term: int
    number: int
    name: str
    size: int
    slices: list[MovedSlice]


class ForgetPacks(msgspec.Struct, array_like=True, gc=False, tag="forget-packs"):
    """(term, number) of each pack."""

    packs: list[tuple[int, int]]


class LogTree(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """The tree over the archived log: `nodes` are the roots of its perfect subtrees."""

    first_index: int = 0
    nodes: list[bytes] = []


class LogKey(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A node's key for heads of the log, and the key that vouches for it, if one does."""

    node_id: int
    public_key: bytes
    signed_by: bytes
    signature: bytes


class Archived(msgspec.Struct, array_like=True, gc=False, tag="archived"):
    term: int
    previous: Place
    place: Place
    has_gap: bool = False
    tree: LogTree | None = None


class AddLogKey(msgspec.Struct, array_like=True, gc=False, tag="add-log-key"):
    """The key is the `number`-th one, from 0."""

    number: Number
    key: LogKey


class Scrubbed(msgspec.Struct, array_like=True, gc=False, tag="scrubbed"):
    term: Number
    scrub: Scrub


class RenewIncarnations(msgspec.Struct, array_like=True, gc=False, tag="renew-incarnations"):
    base: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class OpenSession(msgspec.Struct, array_like=True, gc=False, tag="open-session"):
    node_id: Number
    nonce: Number
    replaces: Number = 0


class CreateToken(msgspec.Struct, array_like=True, gc=False, tag="create-token"):
    token_id: Number
    name: str
    digest: bytes
    scopes: list[str]
    ttl_ms: Number | None = None
    public_key: bytes = b""


class RotateToken(msgspec.Struct, array_like=True, gc=False, tag="rotate-token"):
    token_id: Number
    digest: bytes
    overlap_ms: Number = 0
    ttl_ms: Number | None = None
    public_key: bytes = b""


class RevokeToken(msgspec.Struct, array_like=True, gc=False, tag="revoke-token"):
    token_id: Number


_Limit = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)] | None
_Rate = Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)] | None


class Limits(msgspec.Struct, array_like=True, gc=False):
    """Limits of a bucket or an identity."""

    requests_per_s: _Rate = None
    bytes_in_per_s: _Rate = None
    bytes_out_per_s: _Rate = None
    live_readers: _Limit = None
    connections: _Limit = None
    max_bytes: _Limit = None
    max_streams: _Limit = None
    max_stream_bytes: _Limit = None
    max_subscriptions: _Limit = None


class SetLimits(msgspec.Struct, array_like=True, gc=False, tag="set-limits"):
    """Of all without limits of their own if the name is ``*``."""

    kind: Literal["bucket", "identity"]
    name: str
    limits: Limits | None = None


class EndProducers(msgspec.Struct, array_like=True, gc=False, tag="end-producers"):
    """Those of them that are idle are forgotten."""

    key: bytes
    producer_ids: list[str]


class RecordOperation(msgspec.Struct, array_like=True, gc=False, tag="record-operation"):
    operation: Operation


class RaiseLevel(msgspec.Struct, array_like=True, gc=False, tag="raise-features"):
    level: Number


Command = (
    Create
    | Append
    | Delete
    | Touch
    | Sweep
    | CreateBucket
    | DeleteBucket
    | BeginUpload
    | StorePart
    | PublishSnapshot
    | DropUploads
    | FlushCold
    | DropSlices
    | MoveSlices
    | ForgetPacks
    | Archived
    | Scrubbed
    | RenewIncarnations
    | OpenSession
    | CreateToken
    | RotateToken
    | RevokeToken
    | SetLimits
    | EndProducers
    | AddLogKey
    | RecordOperation
    | RaiseLevel
    | SubscriptionCommand
)
# By exact type: a look-up costs a third of what `isinstance` does, and there are millions.
_WITH_DATA = frozenset((Create, Append, StorePart, PublishSnapshot))


class Package(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """`count` commands that a node sent in one piece, as number `sequence` of a session."""

    node_id: Number
    session_id: Number
    sequence: Number
    lowest: Number
    count: Number


class Batch(msgspec.Struct, array_like=True):
    """The payload of an entry: the last commands are those of the packages, end to end."""

    now_ms: int
    commands: list[Command]
    packages: list[Package] = []


class Configuration(msgspec.Struct, array_like=True):
    """The payload of an entry that changes the membership."""

    voters: list[int] = []
    voters_outgoing: list[int] = []
    learners: list[int] = []
    addresses: list[tuple[int, str, str]] = []

    def members(self) -> set[int]:
        return {*self.voters, *self.voters_outgoing, *self.learners}


def members_in(payload: bytes) -> frozenset[int]:
    """The nodes in the payload of an entry that changes the membership; none if it is damaged."""
    try:
        return frozenset(decode_configuration(payload).members())
    except Damaged:
        return frozenset()


class _Stamp(msgspec.Struct, array_like=True):
    now_ms: int


# The stamp is nearly always the element of an array that MessagePack writes in nine bytes.
_UINT64 = 0xCF
_STAMP = Struct(">BBQ")

decode_batch: Decoder[Batch] = Decoder(Batch, "a batch of commands")
decode_configuration: Decoder[Configuration] = Decoder(Configuration, "a configuration")
_decode_stamp: Decoder[_Stamp] = Decoder(_Stamp, "a batch of commands")
_encode = msgspec.msgpack.Encoder().encode


def stamp_of(payload: Buffer, index: int | None = None) -> int:
    """Only a batch's time, in milliseconds since the epoch. Raises `Damaged`."""
    if len(payload) > _STAMP.size:
        array, kind, now_ms = _STAMP.unpack_from(payload)
        if kind == _UINT64 and array & 0xF0 == 0x90:
            return int(now_ms)
    return _decode_stamp(payload, index).now_ms


def kind_of(command: Command) -> str:
    """The command's tag, such as ``append``."""
    tag = command.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def head_of(command: Command) -> bytes:
    """The command's MessagePack with its `data` emptied. The command itself loses it too."""
    if command.__class__ in _WITH_DATA:
        command.data = _NO_DATA
    return _encode(command)


def split_key(key: bytes) -> tuple[bytes, bytes] | None:
    """Bucket and name; None for bytes that are no stream's key."""
    bucket, nul, name = key.partition(b"\0")
    return (bucket, name) if nul else None
