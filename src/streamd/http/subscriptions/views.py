"""Subscriptions as answers show them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from streamd.http.protocol.messages import Request
from streamd.http.streams.service import Service
from streamd.http.subscriptions.bodies import (
    EntryBody,
    LeaseBody,
    SigningBody,
    SubscriptionBody,
    WebhookBody,
)
from streamd.streams.subscriptions.linked import LinkedPage
from streamd.streams.subscriptions.model import Subscription
from streamd.streams.subscriptions.paths import path_of
from streamd.streams.subscriptions.webhook_texts import jwks_url

_HOST = b"host"


def entry(service: Service, request: Request, subscription: Subscription) -> EntryBody:
    """A subscription without its streams."""
    return EntryBody(**_fields(service, request, subscription))


def whole(
    service: Service, request: Request, subscription: Subscription, page: LinkedPage
) -> SubscriptionBody:
    """A subscription with a page of its streams."""
    return SubscriptionBody(
        **_fields(service, request, subscription),
        streams=[one.notified for one in page.streams],
        next_cursor=None if page.cursor is None else path_of(page.cursor),
        has_more=page.cursor is not None,
    )


def _fields(service: Service, request: Request, one: Subscription) -> dict[str, Any]:
    config = one.config
    return {
        "id": one.subscription_id,
        "subscription_id": one.subscription_id,
        "type": config.kind,
        "pattern": config.pattern or None,
        "webhook": _webhook(service, request, config.webhook_url) if config.webhook_url else None,
        "wake_stream": path_of(config.wake_key) if config.wake_key else None,
        "lease_ttl_ms": config.lease_ttl_ms,
        "created_at": _rfc3339(one.created_ms),
        "status": "failed" if one.is_failed else "active",
        "description": config.description,
        "generation": one.generation,
        "pending_streams": one.pending,
        "wake": _wake(one),
        "attempts": one.attempts,
        "received": one.is_received,
        "next_attempt_at_ms": one.next_attempt_ms,
        "failure": one.why or None,
        "owner": one.owner or None,
    }


def _webhook(service: Service, request: Request, url: str) -> WebhookBody:
    kid, base = service.node.keyring.signing_kid, service.subscriptions.callback_url
    signing = SigningBody("ed25519", kid, jwks_url(base or _base(request)))
    return WebhookBody(url, signing)


def _base(request: Request) -> str:
    """The server's URL as the sender of a request knows it."""
    return (request.scheme + b"://" + request.headers.get(_HOST, b"")).decode("latin-1")


def _wake(one: Subscription) -> LeaseBody | None:
    if one.wake is None:
        return None
    return LeaseBody(one.wake.wake_id, one.holder or None, one.lease_until_ms)


def _rfc3339(ms: int) -> str:
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
