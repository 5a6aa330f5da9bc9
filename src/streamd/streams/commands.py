"""The commands of the stream machine, and their outcomes.

Commands travel through the Raft log as MessagePack arrays (see `codec`), so fields may only be
added at the end, with a default.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec
from msgspec.structs import astuple

from streamd.streams.bounds import Number
from streamd.streams.cold.scrubs import Scrub
from streamd.streams.limits import Kind, Limits
from streamd.streams.log_keys import LogKey
from streamd.streams.model import (
    IfMatch,
    LogPosition,
    LogTree,
    ProducerStamp,
    Settings,
    SliceRef,
    Stream,
    VerifiedPosition,
)
from streamd.streams.offsets import START, Position
from streamd.streams.operations.model import Operation
from streamd.streams.subscriptions.commands import SubscriptionCommand
from streamd.streams.subscriptions.model import FenceStamp, WakeReport
from streamd.streams.token_commands import TokenCommand


class Create(msgspec.Struct, frozen=True, array_like=True, tag="create", gc=False):
    """PUT of a stream (protocol section 5.1), or of a fork when the settings name a source.

    `data` and `lengths` are the initial records end to end and their sizes in bytes. With
    `implicit_bucket` a missing bucket is created too. Of a fork, `finding` says where it leaves its
    source, and `cut_as` by which content type its body, if it has one, was cut into records.
    """

    key: bytes
    settings: Settings
    closed: bool = False
    data: bytes = b""
    lengths: list[int] = []
    implicit_bucket: bool = False
    if_match: IfMatch | None = None
    finding: VerifiedPosition | None = None
    cut_as: str | None = None


class Append(msgspec.Struct, frozen=True, array_like=True, tag="append", gc=False):
    """POST to a stream (protocol sections 5.2 and 5.3); without records it only closes. With a
    `fence` it takes effect only under that claim."""

    key: bytes
    content_type: str
    data: bytes
    lengths: list[int]
    close: bool = False
    seq: str | None = None
    producer: ProducerStamp | None = None
    if_match: IfMatch | None = None
    fence: FenceStamp | None = None


class Delete(msgspec.Struct, frozen=True, array_like=True, tag="delete"):
    """DELETE of a stream (protocol section 5.4)."""

    key: bytes
    if_match: IfMatch | None = None


class Touch(msgspec.Struct, frozen=True, array_like=True, tag="touch"):
    """Reads that renew sliding windows: (key, stream id, time of the read in ms) each."""

    reads: list[tuple[bytes, int, int]]


class Sweep(msgspec.Struct, frozen=True, array_like=True, tag="sweep"):
    """Streams whose expiry may have come, and renewed ones are checked again later; or whose bytes
    their buckets do not count yet."""

    keys: list[bytes]


class CreateBucket(msgspec.Struct, frozen=True, array_like=True, tag="create-bucket"):
    """PUT of a bucket (extensions section 1.2)."""

    name: bytes


class DeleteBucket(msgspec.Struct, frozen=True, array_like=True, tag="delete-bucket"):
    """DELETE of a bucket, which must be empty (extensions section 1.5)."""

    name: bytes


class BeginUpload(msgspec.Struct, frozen=True, array_like=True, tag="begin-upload"):
    """The first part of a snapshot too large for one command has arrived (extensions 2.2).

    Refused if a snapshot at `at` could not be published; else the outcome has the id of the upload.
    `finding` is as in `Create`, for `at`.
    """

    key: bytes
    at: tuple[int, int]
    finding: VerifiedPosition | None = None


class StorePart(msgspec.Struct, frozen=True, array_like=True, tag="store-part", gc=False):
    """The next part of an upload; parts are numbered from 0 without gaps."""

    upload_id: int
    number: int
    data: bytes


class PublishSnapshot(msgspec.Struct, frozen=True, array_like=True, tag="publish-snapshot"):
    """PUT of a snapshot (extensions section 2.2), once all of its bytes have arrived.

    They are those of the upload, or without one (id 0) `data`. `size` in bytes and `digest` are
    those of the whole.
    """

    key: bytes
    at: tuple[int, int]
    content_type: str
    size: int
    digest: bytes
    upload_id: int = 0
    data: bytes = b""
    finding: VerifiedPosition | None = None


class DropUploads(msgspec.Struct, frozen=True, array_like=True, tag="drop-uploads"):
    """Forget uploads to which nothing was added for `idle_ms` of log time."""

    ids: list[int]
    idle_ms: int = 0


class NewSlice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A slice of a new pack: its owner, followed by the fields of `SliceRef`.

    `owner` is the stream's key or, for the parts of a blob, `keys.blob_owner`.
    """

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

    @classmethod
    def of(cls, owner: bytes, ref: SliceRef) -> NewSlice:
        return cls(owner, *astuple(ref))

    @property
    def ref(self) -> SliceRef:
        return SliceRef(*astuple(self)[1:])


class FlushCold(msgspec.Struct, frozen=True, array_like=True, tag="flush-cold"):
    """A pack is in the cold store: take those of its slices that begin where their owner's cold
    records end. Refused unless `term` is that of the log entry."""

    term: int
    number: int
    name: str
    size: int
    slices: list[NewSlice]


class DropSlices(msgspec.Struct, frozen=True, array_like=True, tag="drop-slices"):
    """Slices of one stream or blob id that are no longer read, by the record before which they
    end."""

    stream_id: int
    end_records: list[int]


class MovedSlice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A slice that was repacked: its key, its former pack, and its place in the new one."""

    stream_id: int
    end_record: int
    from_term: int
    from_number: int
    offset: int
    length: int
    crc: int


class MoveSlices(msgspec.Struct, frozen=True, array_like=True, tag="move-slices"):
    """A pack with the live slices of others is in the cold store: refer to it for the slices that
    are still in their former packs. Refused unless `term` is that of the log entry."""

    term: int
    number: int
    name: str
    size: int
    slices: list[MovedSlice]


class ForgetPacks(msgspec.Struct, frozen=True, array_like=True, tag="forget-packs"):
    """Dead packs whose objects are deleted: (term, number) each."""

    packs: list[tuple[int, int]]


class Archived(msgspec.Struct, frozen=True, array_like=True, tag="archived"):
    """The leader of `term` has archived the log up to `position`.

    `previous` was the end of the archive before. With `has_gap`, which only readers of the log use,
    entries between the two are missing: the archive continues after a checkpoint at `position`.
    `tree` is the tree over the archived log as of `position`; without it the former tree ends.
    """

    term: int
    previous: LogPosition
    position: LogPosition
    has_gap: bool = False
    tree: LogTree | None = None


class AddLogKey(msgspec.Struct, frozen=True, array_like=True, tag="add-log-key"):
    """A key for heads of the log becomes the `number`-th one, from 0.

    Refused if another has that number by then: a key that has signed itself was the only one, or
    found none that could vouch for it, among those that its node knew.
    """

    number: Number
    key: LogKey


class Scrubbed(msgspec.Struct, frozen=True, array_like=True, tag="scrubbed"):
    """How far the leader of `term` has come in reading all objects, and what it has found."""

    term: Number
    scrub: Scrub


class RenewIncarnations(msgspec.Struct, frozen=True, array_like=True, tag="renew-incarnations"):
    """Become another cluster: `base` becomes `Header.incarnation_base`, which makes all earlier
    ETags invalid, and the tree over the log and its keys are those of a new cluster.

    Only a recovery writes it, straight into the log; it is never proposed.
    """

    base: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]


class OpenSession(msgspec.Struct, frozen=True, array_like=True, tag="open-session"):
    """A node's process begins to number its packages (`sessions`).

    `nonce` is a random number that tells this process from every other; `replaces` is the id of
    the session that the process knows the node to have had, 0 for none. Refused if the node's
    session is another one by then: a late command of a process that has ended must not end the
    session of its successor.
    """

    node_id: Number
    nonce: Number
    replaces: Number = 0


class EndProducers(msgspec.Struct, frozen=True, array_like=True, tag="end-producers"):
    """Forget those of a stream's producers that are still idle (`producers`)."""

    key: bytes
    producer_ids: list[str]


class SetLimits(msgspec.Struct, frozen=True, array_like=True, tag="set-limits"):
    """All limits of the bucket or identity of that name, in the place of those before; None
    clears them. The name ``*`` is that of the row for all without one of their own."""

    kind: Kind
    name: str
    limits: Limits | None = None


class RecordOperation(msgspec.Struct, frozen=True, array_like=True, tag="record-operation"):
    """The record of an operation on the cluster, in the place of the version before it."""

    operation: Operation


class RaiseLevel(msgspec.Struct, frozen=True, array_like=True, tag="raise-features"):
    """The log may hold from now on what the log formats up to `level` bring, all of which every
    member understands."""

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
    | RenewIncarnations
    | Scrubbed
    | OpenSession
    | TokenCommand
    | SetLimits
    | EndProducers
    | AddLogKey
    | RecordOperation
    | RaiseLevel
    | SubscriptionCommand
)


def brings_bytes(command: Command) -> bool:
    """Whether a command adds to the stored bytes of streams and snapshots."""
    match command:
        case Append(data=data) | Create(data=data) | StorePart(data=data):
            return bool(data)
        case PublishSnapshot(data=data):
            return bool(data)
        case _:
            return False


class Result(Enum):
    """The result of a command."""

    CREATED = "created"
    EXISTS = "exists"
    APPENDED = "appended"
    DUPLICATE = "duplicate"
    CLOSED = "closed"
    DELETED = "deleted"
    DONE = "done"
    NOT_FOUND = "not-found"
    GONE = "gone"
    BUCKET_NOT_FOUND = "bucket-not-found"
    BUCKET_EXISTS = "bucket-exists"
    BUCKET_NOT_EMPTY = "bucket-not-empty"
    PRECONDITION_FAILED = "precondition-failed"
    SETTINGS_DIFFER = "settings-differ"
    IN_USE_BY_FORKS = "in-use-by-forks"
    STREAM_CLOSED = "stream-closed"
    CONTENT_TYPE_DIFFERS = "content-type-differs"
    SEQ_REGRESSION = "seq-regression"
    EPOCH_STALE = "epoch-stale"
    EPOCH_WITHOUT_RESTART = "epoch-without-restart"
    SEQ_GAP = "seq-gap"
    SOURCE_NOT_FOUND = "source-not-found"
    SOURCE_GONE = "source-gone"
    FORK_OFFSET_INVALID = "fork-offset-invalid"
    FORK_SUB_OFFSET_INVALID = "fork-sub-offset-invalid"
    PUBLISHED = "published"
    UPLOADING = "uploading"
    UPLOAD_LOST = "upload-lost"
    OFFSET_GONE = "offset-gone"
    OFFSET_INVALID = "offset-invalid"
    OFFSET_BEYOND_TAIL = "offset-beyond-tail"
    SNAPSHOT_DIFFERS = "snapshot-differs"
    # What the command was made from has changed: nothing was done, make the command again.
    STALE = "stale"
    # The package belongs to no open session, or to a number that the state has forgotten. This
    # copy of the command did nothing.
    SESSION_LOST = "session-lost"
    # No client and no leader makes such a command: nothing was done.
    INVALID = "invalid"
    TOKEN_EXISTS = "token-exists"  # noqa: S105 - not a password
    TOKEN_NOT_FOUND = "token-not-found"  # noqa: S105 - not a password
    TOO_MANY_TOKENS = "too-many-tokens"
    LIMITS_NOT_FOUND = "limits-not-found"
    TOO_MANY_LOG_KEYS = "too-many-log-keys"
    TOO_MANY_LIMITS = "too-many-limits"
    BUCKET_FULL = "bucket-full"
    STREAM_FULL = "stream-full"
    TOO_MANY_STREAMS = "too-many-streams"
    TOO_MANY_PRODUCERS = "too-many-producers"
    OPERATION_IN_PROGRESS = "operation-in-progress"
    SUBSCRIPTION_NOT_FOUND = "subscription-not-found"
    # Another subscription has the id.
    SUBSCRIPTION_EXISTS = "subscription-exists"
    TOO_MANY_SUBSCRIPTIONS = "too-many-subscriptions"
    OWNS_TOO_MANY = "owns-too-many-subscriptions"
    TOO_MANY_SUBSCRIPTION_KEYS = "too-many-subscription-keys"
    # Too many streams are named by one subscription or by all, or one stream has too many links.
    TOO_MANY_LINKS = "too-many-links"
    NOT_PULL_WAKE = "not-pull-wake"
    ALREADY_CLAIMED = "already-claimed"
    NO_PENDING_WORK = "no-pending-work"
    # The wake or the claim that a command names is not the present one.
    FENCED = "fenced"
    ACK_INVALID = "ack-invalid"
    WRITE_FENCED = "write-fenced"
    # The stream is not linked to the subscription of the write's token.
    WRITE_OUT_OF_SCOPE = "write-out-of-scope"


class Outcome(msgspec.Struct, array_like=True, gc=False):
    """The answer of the machine to one command.

    `tail` is the stream's tail after the command, `closed` whether it is closed then. `epoch` and
    `seq` are the producer's: the last that were accepted, or, for a gap, the `seq` expected next.
    `incarnation` is the number that the stream's ETag begins with, 0 without a stream. `earliest`
    is the stream's earliest position, if that is what matters; `upload_id` is the upload that was
    begun. `wake` is about the subscription, of commands about one and of fenced writes.

    Outcomes are kept in the state (`sessions.WriteSession`) and sent between nodes: fields may only
    be added at the end, with a default.
    """

    result: Result
    tail: Position = START
    closed: bool = False
    content_type: str = ""
    epoch: int = 0
    seq: int = 0
    incarnation: int = 0
    earliest: Position = START
    upload_id: int = 0
    wake: WakeReport | None = None

    @classmethod
    def of(cls, result: Result, stream: Stream, epoch: int = 0, seq: int = 0) -> Outcome:
        return cls(
            result,
            stream.tail,
            stream.closed,
            stream.content_type,
            epoch,
            seq,
            stream.stream_id,
        )

    def __repr__(self) -> str:
        return f"Outcome({self.result.value}, {self.tail.token().decode()}, closed={self.closed})"


class Change:
    """What one round of commands did to a stream, for its live readers.

    `parts` are the records appended since `start`, end to end; `ended` means that the stream
    was deleted, expired, or created again.
    """

    __slots__ = ("ended", "parts", "start", "stream")

    def __init__(self, stream: Stream, start: Position) -> None:
        self.stream = stream
        self.start = start
        self.parts: list[bytes] = []
        self.ended = False

    @property
    def size(self) -> int:
        """Bytes appended."""
        return sum(map(len, self.parts))
