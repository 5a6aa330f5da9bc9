"""Commands and rows about durable subscriptions (docs/formats.md, docs/subscriptions.md)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
WRITE, INVALID, WAKE = 0, 1, 2
DEFAULT_LEASE_MS = 30_000


class Config(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a client asked for; the streams that it named are rows of their own."""

    kind: Literal["webhook", "pull-wake"]
    pattern: str = ""
    webhook_url: str = ""
    wake_key: bytes = b""
    lease_ttl_ms: _Number = DEFAULT_LEASE_MS
    description: str | None = None


class WakeStamp(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The wake that a command is about."""

    number: _Number
    generation: _Number
    wake_id: str


class FenceStamp(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The claim that a write shows; `credential` is `WRITE`, `INVALID` or `WAKE`."""

    number: _Number = 0
    generation: _Number = 0
    wake_id: str = ""
    holder: str = ""
    expires_ms: _Number = 0
    credential: Annotated[int, msgspec.Meta(ge=0, le=2)] = WRITE
    is_alone: bool = False


class Ack(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The records of a stream before `record`, which ends at `byte`, are done."""

    key: bytes
    record: _Number
    byte: _Number


class WakeReport(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the outcome of a command says of its subscription."""

    number: int
    generation: int
    wake_id: str = ""
    holder: str = ""
    lease_until_ms: int | None = None
    next_wake: bool = False
    reason: str = ""
    now_ms: int = 0


class Key(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A key of the cluster for subscriptions: a signing and a MAC key."""

    number: int
    public_key: bytes
    secret: bytes
    is_sealed: bool = False
    added_ms: int = 0


# -- commands --------------------------------------------------------------------------------------


class PutSubscription(msgspec.Struct, array_like=True, gc=False, tag="put-subscription"):
    subscription_id: str
    config: Config
    keys: list[bytes] = []
    owner: str = ""


class DeleteSubscription(msgspec.Struct, array_like=True, gc=False, tag="delete-subscription"):
    subscription_id: str
    number: _Number = 0


class LinkStreams(msgspec.Struct, array_like=True, gc=False, tag="link-streams"):
    subscription_id: str
    keys: list[bytes]
    number: _Number = 0


class UnlinkStream(msgspec.Struct, array_like=True, gc=False, tag="unlink-stream"):
    subscription_id: str
    key: bytes
    number: _Number = 0


class WakeSubscription(msgspec.Struct, array_like=True, gc=False, tag="wake-subscription"):
    subscription_id: str
    number: _Number = 0


class ClaimWake(msgspec.Struct, array_like=True, gc=False, tag="claim-wake"):
    subscription_id: str
    worker: str
    number: _Number = 0


class AcknowledgeWake(msgspec.Struct, array_like=True, gc=False, tag="acknowledge-wake"):
    subscription_id: str
    stamp: WakeStamp
    acks: list[Ack] = []
    done: bool = False


class ReleaseWake(msgspec.Struct, array_like=True, gc=False, tag="release-wake"):
    subscription_id: str
    stamp: WakeStamp


class VerifyClaim(msgspec.Struct, array_like=True, gc=False, tag="verify-claim"):
    stamp: FenceStamp


class AddSubscriptionKey(msgspec.Struct, array_like=True, gc=False, tag="add-subscription-key"):
    key: Key
    revokes: bool = False


class BeginDelivery(msgspec.Struct, array_like=True, gc=False, tag="begin-delivery"):
    number: _Number
    wake_id: str
    attempt: _Number


class EndDelivery(msgspec.Struct, array_like=True, gc=False, tag="end-delivery"):
    number: _Number
    wake_id: str
    attempt: _Number
    is_delivered: bool
    why: str = ""
    acks: list[Ack] = []
    done: bool = False


class EndLeases(msgspec.Struct, array_like=True, gc=False, tag="end-leases"):
    numbers: list[_Number]


# Commands that name a subscription by its id and, if they have a `number`, mean that one only.
OfOne = DeleteSubscription | LinkStreams | UnlinkStream | WakeSubscription | ClaimWake

SubscriptionCommand = (
    PutSubscription
    | DeleteSubscription
    | LinkStreams
    | UnlinkStream
    | WakeSubscription
    | ClaimWake
    | AcknowledgeWake
    | ReleaseWake
    | VerifyClaim
    | AddSubscriptionKey
    | BeginDelivery
    | EndDelivery
    | EndLeases
)


# -- rows ------------------------------------------------------------------------------------------


class Wake(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A wake that is outstanding since `since_ms`, because of the stream with `key`."""

    wake_id: str
    since_ms: int
    key: bytes = b""
    is_forced: bool = False


class Subscription(msgspec.Struct, array_like=True, gc=False):
    """A subscription, in log time."""

    number: int
    subscription_id: str
    config: Config
    named_digest: bytes
    created_ms: int
    generation: int = 0
    wake: Wake | None = None
    holder: str = ""
    lease_until_ms: int | None = None
    attempts: int = 0
    is_received: bool = False
    failures: int = 0
    next_attempt_ms: int | None = None
    why: str = ""
    pending: int = 0
    fenced_links: int = 0
    latest: bytes = b""
    owner: str = ""


class Link(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A stream's link to subscription `number`."""

    number: int
    acked_record: int
    acked_byte: int
    is_explicit: bool = False
    is_glob: bool = False
    is_pending: bool = False


class Mark(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a fenced stream remembers of subscription `number`."""

    number: int
    sealed: int
    is_linked: bool = True
    generation: int = 0
    record: int = 0
    byte: int = 0


class Seal(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A sealed generation of subscription `number`, and the end of what was written under it."""

    number: int
    generation: int
    record: int
    byte: int


class StreamFence(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a fenced stream remembers of claims."""

    marks: tuple[Mark, ...] = ()
    seal: Seal | None = None


class EndedClaims(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a deleted subscription leaves until its fenced streams have noted it."""

    generation: int
    streams: int
