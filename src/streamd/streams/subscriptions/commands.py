"""The commands about subscriptions (see `streamd.streams.commands`), all of log format 7.

Clients cause the first group, by the subscription's id and, with a token, for one wake. A `number`
in it, if it is not 0, is that of the subscription that the sender may use: another one may have got
its id since. Only the leader makes the second group, about subscriptions that it knows by their
numbers: deliveries, and what time brings.
"""

from __future__ import annotations

import msgspec

from streamd.streams.bounds import Number
from streamd.streams.subscriptions.model import Ack, FenceStamp, SubscriptionConfig, WakeStamp
from streamd.streams.subscriptions.signing_keys import SubscriptionKey


class PutSubscription(msgspec.Struct, frozen=True, array_like=True, tag="put-subscription"):
    """PUT of a subscription (protocol section 6.2), which names the streams with these `keys`.

    `CREATED`, or `EXISTS` if one of that id was made by the same request; `SUBSCRIPTION_EXISTS`,
    `TOO_MANY_SUBSCRIPTIONS`, `OWNS_TOO_MANY`, `TOO_MANY_LINKS`. The order of the keys does not
    matter. `owner` is the identity that asks (`Subscription.owner`).
    """

    subscription_id: str
    config: SubscriptionConfig
    keys: list[bytes] = []
    owner: str = ""


class DeleteSubscription(msgspec.Struct, frozen=True, array_like=True, tag="delete-subscription"):
    """DELETE of a subscription: `DELETED`, or `SUBSCRIPTION_NOT_FOUND`."""

    subscription_id: str
    number: Number = 0


class LinkStreams(msgspec.Struct, frozen=True, array_like=True, tag="link-streams"):
    """Let a subscription name further streams: all, or with `TOO_MANY_LINKS` none. `DONE`."""

    subscription_id: str
    keys: list[bytes]
    number: Number = 0


class UnlinkStream(msgspec.Struct, frozen=True, array_like=True, tag="unlink-stream"):
    """A subscription no longer names a stream; its pattern may match it all the same. `DONE`."""

    subscription_id: str
    key: bytes
    number: Number = 0


class WakeSubscription(msgspec.Struct, frozen=True, array_like=True, tag="wake-subscription"):
    """Wake a subscription as a test, with or without pending work: `DONE`. If a wake is outstanding
    that one is reported; `WakeReport.next_wake` says that a new one has begun."""

    subscription_id: str
    number: Number = 0


class ClaimWake(msgspec.Struct, frozen=True, array_like=True, tag="claim-wake"):
    """A worker claims a pull-wake subscription (protocol section 7.2).

    `DONE`, with the claim in `Outcome.wake`; `ALREADY_CLAIMED`, with the holder there;
    `NO_PENDING_WORK`, `NOT_PULL_WAKE`, `SUBSCRIPTION_NOT_FOUND`.
    """

    subscription_id: str
    worker: str
    number: Number = 0


class AcknowledgeWake(msgspec.Struct, frozen=True, array_like=True, tag="acknowledge-wake"):
    """An ack or a callback (protocol sections 7.1 and 7.2): all `acks` or, if one is wrong, none.

    `DONE`; `FENCED`; `ACK_INVALID`; `SUBSCRIPTION_NOT_FOUND` if the number is not that of the id.
    With `done` the wake ends, else its lease is renewed.
    """

    subscription_id: str
    stamp: WakeStamp
    acks: list[Ack] = []
    done: bool = False


class ReleaseWake(msgspec.Struct, frozen=True, array_like=True, tag="release-wake"):
    """A worker gives its claim back (protocol section 7.2): `DONE`, `FENCED`,
    `SUBSCRIPTION_NOT_FOUND`."""

    subscription_id: str
    stamp: WakeStamp


class VerifyClaim(msgspec.Struct, frozen=True, array_like=True, tag="verify-claim"):
    """Whether a claim is the present one (write fencing, section 9.1): `DONE`, with its lease, or
    `WRITE_FENCED`. It changes nothing."""

    stamp: FenceStamp


class AddSubscriptionKey(msgspec.Struct, frozen=True, array_like=True, tag="add-subscription-key"):
    """A key of the cluster becomes the one in use, and earlier ones stay for a while, or leave now
    if it `revokes` them (`signing_keys.with_key`).

    `DONE`; `STALE` if another has its number by then; `TOO_MANY_SUBSCRIPTION_KEYS`.
    """

    key: SubscriptionKey
    revokes: bool = False


class BeginDelivery(msgspec.Struct, frozen=True, array_like=True, tag="begin-delivery"):
    """The leader is about to make the `attempt`-th attempt, from 1, to deliver a webhook's wake:
    `DONE`, and the lease begins.

    `STALE` if that attempt was made or is not due, or another wake has begun; `NO_PENDING_WORK` if
    all streams were acknowledged or deleted since: the wake has ended then.
    """

    number: Number
    wake_id: str
    attempt: Number


class EndDelivery(msgspec.Struct, frozen=True, array_like=True, tag="end-delivery"):
    """The result of an attempt: `DONE`, or `STALE` if it is no longer the latest one of the
    outstanding wake.

    `is_delivered` means an answer of success. If the answer has `done`, the wake ends, and `acks`,
    which are what the notification showed, are taken as far as they still advance something. `why`
    says in words how it failed.
    """

    number: Number
    wake_id: str
    attempt: Number
    is_delivered: bool
    why: str = ""
    acks: list[Ack] = []
    done: bool = False


class EndLeases(msgspec.Struct, frozen=True, array_like=True, tag="end-leases"):
    """Subscriptions whose leases may have lapsed, or whose wake events may be written by now:
    what is due by log time is done. `DONE`."""

    numbers: list[Number]


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
