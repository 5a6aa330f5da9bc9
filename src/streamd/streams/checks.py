"""What a command must be like: what clients may ask for, and what the machine can apply at all.

`fault` judges by meaning, before a command is proposed: whatever the API would have refused is at
fault, wherever the command comes from. `is_applicable` judges commands in the log. It demands
less, and must demand the same for ever: every replica applies what an earlier release applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from streamd.auth.scopes import are_scopes
from streamd.auth.signed_urls import PUBLIC_KEY_BYTES
from streamd.auth.tokens import MAX_TOKEN_ID, is_token_name
from streamd.streams import keys
from streamd.streams.bounds import MAX_SAFE_INTEGER, MAX_TOKEN_BYTES, MAX_TTL_S
from streamd.streams.commands import (
    AddLogKey,
    Append,
    Archived,
    BeginUpload,
    Command,
    Create,
    CreateBucket,
    Delete,
    DeleteBucket,
    DropSlices,
    DropUploads,
    EndProducers,
    FlushCold,
    ForgetPacks,
    MoveSlices,
    OpenSession,
    PublishSnapshot,
    RaiseLevel,
    RecordOperation,
    RenewIncarnations,
    Scrubbed,
    SetLimits,
    StorePart,
    Sweep,
    Touch,
)
from streamd.streams.content import (
    DEFAULT_CONTENT_TYPE,
    MAX_MESSAGES,
    are_json_messages,
    is_content_type,
    is_json,
)
from streamd.streams.limits import DEFAULT, KINDS, MAX_NAME_CHARACTERS
from streamd.streams.model import (
    ForkRequest,
    IfMatch,
    ProducerStamp,
    Settings,
    Verdict,
    VerifiedPosition,
)
from streamd.streams.subscriptions.checks import config_fault, is_fence, is_id, is_worker
from streamd.streams.subscriptions.commands import (
    AcknowledgeWake,
    AddSubscriptionKey,
    BeginDelivery,
    ClaimWake,
    DeleteSubscription,
    EndDelivery,
    EndLeases,
    LinkStreams,
    PutSubscription,
    ReleaseWake,
    UnlinkStream,
    VerifyClaim,
    WakeSubscription,
)
from streamd.streams.subscriptions.model import MAX_ACKS, MAX_NAMED, MAX_OWNER_CHARACTERS, Ack
from streamd.streams.token_commands import CreateToken, RevokeToken, RotateToken

MAX_TAGS = 64
DIGEST_BYTES = 32

# The largest number that fits the digits of an offset.
_MAX_OFFSET = 10**16 - 1
_MAX_ID = 2**63 - 1
_MAX_UPLOADS = 10_000
# The years 1 to 9999, which is what RFC 3339 can write.
_MIN_MS, _MAX_MS = -(2**46), 2**48
TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


# -- in the log ------------------------------------------------------------------------------------


def is_applicable(command: Command) -> bool:
    """Whether the ids in a command can be those of rows, and hashes and keys have their sizes.
    Otherwise the machine answers `INVALID`.

    A row's key holds unsigned numbers, and applying a command of the log must never raise.
    """
    match command:
        case StorePart(upload_id=upload_id) | PublishSnapshot(upload_id=upload_id):
            return upload_id >= 0
        case DropUploads(ids=ids):
            return all(each >= 0 for each in ids)
        case FlushCold(term=term, number=number, slices=slices):
            blobs = [one.stream_id for one in slices if keys.blob_in_owner(one.owner) is not None]
            return min(term, number, *blobs) >= 0
        case MoveSlices(term=term, number=number, slices=moved):
            return min(term, number) >= 0 and all(
                one.stream_id >= 0 and one.end_record >= 0 for one in moved
            )
        case DropSlices(stream_id=stream_id, end_records=ends):
            return not ends or min(stream_id, *ends) >= 0
        case ForgetPacks(packs=packs):
            return all(term >= 0 and number >= 0 for term, number in packs)
        case Archived(position=position, tree=tree):
            return tree is None or tree.fits(position.index)
        case AddLogKey(key=key):
            return key.has_sizes and key.node_id >= 0
        case RecordOperation(operation=operation):
            return operation.fits
        case AddSubscriptionKey(key=key):
            return key.number >= 0 and key.has_sizes
        case _:
            return True


_OF_LEADER = frozenset(
    (
        FlushCold,
        MoveSlices,
        DropSlices,
        ForgetPacks,
        Archived,
        RenewIncarnations,
        OpenSession,
        Scrubbed,
        EndProducers,
        RecordOperation,
        RaiseLevel,
        BeginDelivery,
        EndDelivery,
        EndLeases,
    )
)

# -- before it is proposed -------------------------------------------------------------------------


def is_of_leader(command: Command) -> bool:
    """Whether only the leader makes such commands, from what it knows itself."""
    return type(command) in _OF_LEADER


def are_of_clients(commands: Iterable[Command]) -> bool:
    """Whether clients of a node can have asked for all of these."""
    return not any(is_of_leader(command) or fault(command) for command in commands)


def payload_bytes(command: Command) -> int:
    """The size in bytes of what a client wants to store."""
    match command:
        case Append(data=data) | Create(data=data) | StorePart(data=data):
            return len(data)
        case PublishSnapshot(data=data):
            return len(data)
        case _:
            return 0


def fault(command: Command) -> str | None:
    """The field of a command that no client's request can have led to; None if all are possible.

    The machine decides about everything that depends on the state.
    """
    return next((field for field, is_right in _judged(command) if not is_right), None)


# Fields and their checks; each is checked only if all before it are right.
_Judged = Iterator[tuple[str, bool]]


def _judged(command: Command) -> _Judged:
    match command:
        case Append():
            return _judged_append(command)
        case Create():
            return _judged_create(command)
        case Delete():
            return _judged_delete(command)
        case CreateBucket(name=name) | DeleteBucket(name=name):
            return iter((("name", keys.is_bucket_id(name)),))
        case BeginUpload():
            return _judged_place(command)
        case StorePart():
            return _judged_part(command)
        case PublishSnapshot():
            return _judged_publish(command)
        case Touch(reads=reads):
            return iter((("reads", all(_is_read(*read) for read in reads)),))
        case Sweep(keys=due):
            return iter((("keys", all(map(keys.is_stream_key, due))),))
        case DropUploads(ids=ids, idle_ms=idle_ms):
            are_ids = len(ids) <= _MAX_UPLOADS and all(_is_id(each) for each in ids)
            return iter((("ids", are_ids), ("idle_ms", idle_ms >= 0)))
        case CreateToken() | RotateToken():
            return _judged_token(command)
        case RevokeToken(token_id=token_id):
            return iter((("token_id", 0 <= token_id <= MAX_TOKEN_ID),))
        case SetLimits():
            return _judged_limits(command)
        case AddLogKey():
            # Its node has made it, and may be another than the leader.
            return iter((("key", is_applicable(command)),))
        case PutSubscription() | LinkStreams() | UnlinkStream():
            return _judged_subscription(command)
        case DeleteSubscription(subscription_id=name) | WakeSubscription(subscription_id=name):
            return iter((("subscription_id", is_id(name)),))
        case ClaimWake() | AcknowledgeWake() | ReleaseWake():
            return _judged_worker(command)
        case AddSubscriptionKey():
            return iter((("key", is_applicable(command)),))
        case VerifyClaim(stamp=stamp):
            return iter((("stamp", is_fence(stamp)),))
        case _:
            return iter((("type", False),))


def _judged_append(command: Append) -> _Judged:
    yield "key", keys.is_stream_key(command.key)
    if command.lengths:
        yield "content_type", is_content_type(command.content_type)
    else:
        yield "content_type", not command.content_type
        yield "close", command.close
    yield from _judged_records(command.content_type, command.data, command.lengths)
    yield "seq", command.seq is None or _is_token(command.seq)
    yield "producer", command.producer is None or _is_stamp(command.producer)
    yield "if_match", command.if_match is None or _is_condition(command.if_match)
    yield "fence", command.fence is None or is_fence(command.fence)


def _judged_create(command: Create) -> _Judged:
    settings = command.settings
    yield "key", keys.is_stream_key(command.key)
    yield "settings", _are_settings(settings)
    # Only forks with a body have one.
    yield "cut_as", command.cut_as is None or is_content_type(command.cut_as)
    kind = command.cut_as or settings.content_type or DEFAULT_CONTENT_TYPE
    yield from _judged_records(kind, command.data, command.lengths)
    yield "if_match", command.if_match is None or _is_condition(command.if_match)
    if settings.fork is not None:
        yield "finding", _leads_on(settings.fork, command.finding)


def _judged_delete(command: Delete) -> _Judged:
    yield "key", keys.is_stream_key(command.key)
    yield "if_match", command.if_match is None or _is_condition(command.if_match)


def _judged_place(command: BeginUpload | PublishSnapshot) -> _Judged:
    yield "key", keys.is_stream_key(command.key)
    yield "at", _is_offset(command.at)
    # Without a finding each replica looks for itself, and some have moved the records it looks for.
    finding = command.finding
    yield "finding", finding is not None and _is_finding(finding)
    if finding is not None and finding.verdict is Verdict.BOUNDARY:
        yield "finding", (finding.record, finding.byte) == command.at


def _judged_part(command: StorePart) -> _Judged:
    yield "upload_id", _is_id(command.upload_id)
    yield "number", 0 <= command.number <= MAX_SAFE_INTEGER
    yield "data", len(command.data) > 0


def _judged_publish(command: PublishSnapshot) -> _Judged:
    yield from _judged_place(command)
    yield "content_type", is_content_type(command.content_type)
    yield "size", 0 <= command.size <= MAX_SAFE_INTEGER
    yield "digest", len(command.digest) == DIGEST_BYTES
    yield "upload_id", command.upload_id == 0 or _is_id(command.upload_id)
    # Without its bytes a snapshot is only compared with the existing one.
    wanted = (0,) if command.upload_id else (0, command.size)
    yield "data", len(command.data) in wanted


def _judged_token(command: CreateToken | RotateToken) -> _Judged:
    yield "token_id", 0 <= command.token_id <= MAX_TOKEN_ID
    yield "digest", len(command.digest) == DIGEST_BYTES
    yield "ttl_ms", command.ttl_ms is None or 0 < command.ttl_ms <= MAX_TTL_S * 1000
    yield "public_key", len(command.public_key) in (0, PUBLIC_KEY_BYTES)
    if isinstance(command, RotateToken):
        yield "overlap_ms", 0 <= command.overlap_ms <= MAX_TTL_S * 1000
        return
    yield "name", is_token_name(command.name)
    yield "scopes", are_scopes(command.scopes)


def _judged_limits(command: SetLimits) -> _Judged:
    yield "name", is_limited_name(command.kind, command.name)
    # A clearing has none. The ranges are those of the fields, which decoding checks.
    limits = command.limits
    others = [kind for kind in KINDS if kind != command.kind]
    yield "limits", limits is None or not any(map(limits.has_quota, others))


def _judged_subscription(command: PutSubscription | LinkStreams | UnlinkStream) -> _Judged:
    yield "subscription_id", is_id(command.subscription_id)
    if isinstance(command, UnlinkStream):
        yield "key", keys.is_stream_key(command.key)
        return
    named = command.keys
    yield "keys", len(named) <= MAX_NAMED and all(map(keys.is_stream_key, named))
    if isinstance(command, LinkStreams):
        yield "keys", bool(named)
        return
    config = command.config
    yield "config", not config_fault(config) and bool(config.pattern or named)
    yield "wake_key", not config.wake_key or keys.is_stream_key(config.wake_key)
    yield "keys", config.wake_key not in named
    yield "owner", len(command.owner) <= MAX_OWNER_CHARACTERS and command.owner.isprintable()


def _judged_worker(command: ClaimWake | AcknowledgeWake | ReleaseWake) -> _Judged:
    yield "subscription_id", is_id(command.subscription_id)
    if isinstance(command, ClaimWake):
        yield "worker", is_worker(command.worker)
        return
    yield "stamp", len(command.stamp.wake_id) <= MAX_TOKEN_BYTES
    if isinstance(command, AcknowledgeWake):
        yield "acks", len(command.acks) <= MAX_ACKS and all(map(_is_ack, command.acks))


def _is_ack(ack: Ack) -> bool:
    return keys.is_stream_key(ack.key) and _is_offset((ack.record, ack.byte))


def is_limited_name(kind: str, name: str) -> bool:
    """Whether a bucket or an identity can have that name, or all without limits of their own."""
    if name == DEFAULT:
        return True
    if kind == "bucket":
        return keys.is_bucket_name(name.encode(errors="replace"))
    return 1 <= len(name) <= MAX_NAME_CHARACTERS and name.isprintable()


def _judged_records(kind: str, data: bytes, lengths: list[int]) -> _Judged:
    yield "lengths", len(lengths) <= MAX_MESSAGES and all(length > 0 for length in lengths)
    yield "lengths", sum(lengths) == len(data)
    if is_json(kind):
        yield "data", are_json_messages(data, lengths)


def _are_settings(settings: Settings) -> bool:
    kind, ttl_ms, text = settings.content_type, settings.ttl_ms, settings.expires_at
    if kind is not None and not is_content_type(kind):
        return False
    if ttl_ms is not None and not (0 <= ttl_ms <= MAX_TTL_S * 1000 and text is None):
        return False
    at_ms = settings.expires_at_ms
    if text is None or at_ms is None:
        if text is not None or at_ms is not None:
            return False
    elif TIMESTAMP.fullmatch(text) is None or not _MIN_MS <= at_ms <= _MAX_MS:
        return False
    fork = settings.fork
    return fork is None or (
        keys.is_stream_key(fork.source)
        and (fork.offset is None or _is_offset(fork.offset))
        and 0 <= fork.sub_offset <= MAX_SAFE_INTEGER
    )


def _leads_on(fork: ForkRequest, finding: VerifiedPosition | None) -> bool:
    """Whether a finding can be the result for the place that a fork asks for."""
    if finding is None or not _is_finding(finding):
        return False
    if finding.verdict is not Verdict.BOUNDARY:
        return True
    if fork.offset is None:
        return False
    record, byte = fork.offset
    # A sub-offset counts messages or bytes, depending on a type that only the source has.
    further = finding.record - record, finding.byte - byte
    if not fork.sub_offset:
        return further == (0, 0)
    return min(further) > 0 and fork.sub_offset in further


def _is_finding(finding: VerifiedPosition) -> bool:
    return 0 <= finding.stream_id <= _MAX_ID and _is_offset((finding.record, finding.byte))


def _is_offset(at: tuple[int, int]) -> bool:
    return min(at) >= 0 and max(at) <= _MAX_OFFSET


def _is_id(number: int) -> bool:
    return 1 <= number <= _MAX_ID


def _is_read(key: bytes, stream_id: int, at_ms: int) -> bool:
    return keys.is_stream_key(key) and _is_id(stream_id) and 0 <= at_ms <= MAX_SAFE_INTEGER


def _is_token(text: str) -> bool:
    """A header's value, decoded as Latin-1."""
    return 1 <= len(text) <= MAX_TOKEN_BYTES and max(text) <= "\xff"


def _is_stamp(stamp: ProducerStamp) -> bool:
    return (
        _is_token(stamp.producer_id)
        and min(stamp.epoch, stamp.seq) >= 0
        and max(stamp.epoch, stamp.seq) <= MAX_SAFE_INTEGER
    )


def _is_condition(condition: IfMatch) -> bool:
    versions = condition.versions or ()
    return len(versions) <= MAX_TAGS and all(
        0 <= version.incarnation < 10**19 and _is_offset((version.record, version.byte))
        for version in versions
    )


def in_runs(commands: Sequence[Command]) -> Iterator[tuple[Command, list[Append]]]:
    """All commands in order, each with those right after it that its own judgement covers.

    These are appends that ask for nothing but to be appended to the same stream: when the first
    was appended, so are they, since it changed nothing that the answer depends on. One that closes
    the stream covers none.
    """
    place, count = 0, len(commands)
    while place < count:
        first = commands[place]
        place += 1
        run: list[Append] = []
        if type(first) is Append and not first.close:
            while place < count and _asks_no_more(command := commands[place], first):
                run.append(cast("Append", command))
                place += 1
        yield first, run


def _asks_no_more(command: Command, first: Append) -> bool:
    return (
        type(command) is Append
        and command.key == first.key
        and command.content_type == first.content_type
        and not command.close
        and command.seq is None
        and command.producer is None
        and command.if_match is None
        and command.fence is None
        and bool(command.lengths)
    )
