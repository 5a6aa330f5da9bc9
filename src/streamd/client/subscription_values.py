"""What the client returns about subscriptions and their wakes."""

from __future__ import annotations

from typing import Literal

import msgspec

from streamd.client.values import START


class SubscribedStream(msgspec.Struct, frozen=True):
    """A stream of a subscription, and how far its work is done.

    `path` is its name, as `Client.stream` takes it. `acked_offset` is where to read on from;
    `tail_offset` is where the stream ended when the server answered, if the answer tells.
    """

    path: str
    link_type: Literal["explicit", "glob"] = "glob"
    acked_offset: str = START
    tail_offset: str | None = None
    has_pending: bool = False


class WebhookSigning(msgspec.Struct, frozen=True):
    """Which key signs the webhooks now, and where the server publishes its keys."""

    alg: str
    kid: str
    jwks_url: str


class WebhookTarget(msgspec.Struct, frozen=True):
    """Where webhooks go."""

    url: str
    signing: WebhookSigning | None = None


class SubscriptionInfo(msgspec.Struct, frozen=True):
    """A subscription.

    `status` is "active", or "failed" while the server tries a webhook again or cannot write to the
    wake stream. `created_at` is in RFC 3339. `streams` is the first page of its streams, at most
    1,000; `Subscription.streams` has all. `is_new` is whether this request created it.
    """

    subscription_id: str
    type: Literal["webhook", "pull-wake"]
    lease_ttl_ms: int
    created_at: str
    status: str
    pattern: str | None = None
    streams: tuple[SubscribedStream, ...] = ()
    webhook: WebhookTarget | None = None
    wake_stream: str | None = None
    description: str | None = None
    is_new: bool = False


class ClaimedWake(msgspec.Struct, frozen=True):
    """What a server says about a wake when it gives it to a worker. Tokens are never shown."""

    wake_id: str
    generation: int
    token: str
    lease_ttl_ms: int
    streams: tuple[SubscribedStream, ...] = ()
    write_token: str | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.wake_id} of generation {self.generation}>"
