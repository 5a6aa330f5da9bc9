"""Bodies of the API of subscriptions, as JSON: what is asked for, and what is answered."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from streamd.protocol.problems import Problem
from streamd.streams.bounds import MAX_SAFE_INTEGER
from streamd.streams.content import UNDECODABLE
from streamd.streams.subscriptions.model import (
    DEFAULT_LEASE_MS,
    MAX_ACKS,
    MAX_DESCRIPTION_CHARACTERS,
    MAX_LEASE_MS,
    MAX_NAMED,
    MAX_URL_BYTES,
    MAX_WORKER_CHARACTERS,
    MIN_LEASE_MS,
)
from streamd.streams.subscriptions.webhook_texts import NotifiedStream

MAX_BODY_BYTES = 1024 * 1024
_MAX_PATH_BYTES = 1024

B = TypeVar("B")

_Path = Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_PATH_BYTES)]
_Paths = Annotated[list[_Path], msgspec.Meta(max_length=MAX_NAMED)]
_Lease = Annotated[int, msgspec.Meta(ge=MIN_LEASE_MS, le=MAX_LEASE_MS)]


class NewWebhook(msgspec.Struct, forbid_unknown_fields=True):
    """Where wakes are sent."""

    url: Annotated[str, msgspec.Meta(max_length=MAX_URL_BYTES)]


class NewSubscription(msgspec.Struct, forbid_unknown_fields=True):
    """A subscription to create (protocol section 6.2). It needs a `pattern` or `streams`, whose
    paths are those below ``/v1/stream/``; and a `webhook` or a `wake_stream`, by its `type`."""

    type: Literal["webhook", "pull-wake"]
    pattern: Annotated[str, msgspec.Meta(max_length=_MAX_PATH_BYTES)] | None = None
    streams: _Paths | None = None
    webhook: NewWebhook | None = None
    wake_stream: Annotated[str, msgspec.Meta(max_length=_MAX_PATH_BYTES)] | None = None
    lease_ttl_ms: _Lease = DEFAULT_LEASE_MS
    description: Annotated[str, msgspec.Meta(max_length=MAX_DESCRIPTION_CHARACTERS)] | None = None


class MoreStreams(msgspec.Struct, forbid_unknown_fields=True):
    """Streams that a subscription names from now on."""

    streams: Annotated[list[_Path], msgspec.Meta(min_length=1, max_length=MAX_NAMED)]


class NewClaim(msgspec.Struct, forbid_unknown_fields=True):
    """A worker that asks for a subscription's wake."""

    worker: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_WORKER_CHARACTERS)]


class Release(msgspec.Struct, forbid_unknown_fields=True):
    """A wake that a worker gives back."""

    wake_id: Annotated[str, msgspec.Meta(max_length=128)]
    generation: Annotated[int, msgspec.Meta(ge=0, le=MAX_SAFE_INTEGER)]


class Acked(msgspec.Struct, forbid_unknown_fields=True):
    """The offset up to which a worker is done with a stream."""

    stream: _Path
    offset: str


class Acknowledgement(Release, forbid_unknown_fields=True):
    """How far a worker has come. With `done` it gives the wake back; without it keeps the lease."""

    acks: Annotated[list[Acked], msgspec.Meta(max_length=MAX_ACKS)] = []
    done: bool = False


class SigningBody(msgspec.Struct):
    """By which key webhooks are signed at present; each names its own."""

    alg: str
    kid: str
    jwks_url: str


class WebhookBody(msgspec.Struct):
    """Where wakes are sent, and how their receiver knows them."""

    url: str
    signing: SigningBody


class LeaseBody(msgspec.Struct):
    """The wake in flight. `holder` is the worker that has claimed it, and null of a webhook's."""

    wake_id: str
    holder: str | None
    lease_until_ms: int | None


class EntryBody(msgspec.Struct):
    """A subscription among the others.

    `status` is `failed` while a webhook is tried again or the wake stream cannot be written, and
    `failure` says why. To deliver the wake in flight `attempts` were made, and one
    has arrived if it is `received`. `owner` is the identity that has made it, and null for a root
    token. Times are in ms since the epoch, or as in RFC 3339.
    """

    id: str
    subscription_id: str
    type: Literal["webhook", "pull-wake"]
    pattern: str | None
    webhook: WebhookBody | None
    wake_stream: str | None
    lease_ttl_ms: int
    created_at: str
    status: Literal["active", "failed"]
    description: str | None
    generation: int
    pending_streams: int
    wake: LeaseBody | None
    attempts: int
    received: bool
    next_attempt_at_ms: int | None
    failure: str | None
    owner: str | None


class SubscriptionBody(EntryBody):
    """A subscription with a page of its streams, in the order of their buckets and names."""

    streams: list[NotifiedStream]
    next_cursor: str | None
    has_more: bool


class SubscriptionsBody(msgspec.Struct):
    """A page of the subscriptions that the sender may use, in the order in which they were made.
    `owned` is how many of all of them the sender has made, `max_subscriptions` how many it may."""

    subscriptions: list[EntryBody]
    next_cursor: str | None
    has_more: bool
    owned: int
    max_subscriptions: int | None


class ClaimBody(msgspec.Struct):
    """What a worker has claimed: `token`, also called `wake_token`, acknowledges and gives it back;
    `write_token` writes to its fenced streams."""

    wake_id: str
    generation: int
    token: str
    wake_token: str
    write_token: str
    streams: list[NotifiedStream]
    lease_ttl_ms: int


class VerifiedBody(msgspec.Struct):
    """The present claim of a subscription. `holder` is its worker, or a webhook's wake. `streams`
    are the paths of those that it covers, a thousand at most. The lease is in ms: `lease_until_ms`
    since the epoch by the server's clock, `lease_remaining_ms` from when the claim was judged."""

    generation: int
    wake_id: str
    holder: str
    streams: list[str]
    lease_until_ms: int
    lease_remaining_ms: int


class AckBody(msgspec.Struct, omit_defaults=True):
    """`next_wake` says that the subscription was woken again at once. The tokens are there while
    the lease goes on, and outlive those before."""

    ok: bool
    next_wake: bool
    token: str | UnsetType = UNSET
    write_token: str | UnsetType = UNSET


class ForcedWakeBody(msgspec.Struct):
    """The wake that a test has made, or found."""

    wake_id: str
    generation: int


def decoded(body: bytes, kind: type[B]) -> B:
    """What a request asks for. Raises `ProblemError`, which names the field at fault."""
    if len(body) > MAX_BODY_BYTES:
        raise Problem.BODY_TOO_LARGE.error("the body of such a request has at most 1 MiB")
    try:
        return msgspec.json.decode(body, type=kind)
    except UNDECODABLE as error:
        text, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").lstrip(".")
        raise Problem.INVALID_REQUEST.error(f"{field}: {text}" if field else text) from None
