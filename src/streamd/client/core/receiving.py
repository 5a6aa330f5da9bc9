"""A receiver of webhooks: keeps the server's public keys, and holds the wakes that they bring.

Keys are asked for again after `_FRESH_S`, as the server's answer may be cached so long, and when a
signature names one that is not known: a rotation. Requests with invented names cannot make the
receiver ask more than once in `_AGAIN_S`. Keys stay in use while the server cannot be asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from streamd.client.core import subscribing
from streamd.client.core.retrying import Session, ask, unexpected
from streamd.client.core.steps import Flow, Request
from streamd.client.core.waking import HeldWake
from streamd.client.errors import StreamdError
from streamd.client.subscription_values import ClaimedWake
from streamd.client.webhooks import (
    HeaderItems,
    Notification,
    Signature,
    UnknownWebhookKey,
    public_keys,
    signature,
    verified,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_FRESH_S = 300.0
_AGAIN_S = 10.0


class ReceiverFlows:
    """The state of a receiver. One caller at a time may be in `verify`, which drivers see to."""

    def __init__(
        self,
        session: Session,
        subscription_ids: Collection[str],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._session = session
        self._subscription_ids = subscription_ids
        self._wall_clock = wall_clock
        self._keys: dict[str, Ed25519PublicKey] = {}
        self._asked_at: float | None = None
        self._received_at: float | None = None

    def verify(self, headers: HeaderItems, body: bytes) -> Flow[Notification]:
        """What a webhook says. Raises `BadWebhook`, and what prevents that keys are fetched."""
        signed = signature(headers, self._wall_clock())
        key = yield from self._key(signed)
        return verified(signed, body, key, self._subscription_ids)

    def _key(self, signed: Signature) -> Flow[Ed25519PublicKey]:
        if self._must_ask(signed.key_id):
            try:
                yield from self._fetch()
            except StreamdError:
                if signed.key_id not in self._keys:
                    raise
        if (key := self._keys.get(signed.key_id)) is None:
            raise UnknownWebhookKey("the server has no key of the name in the signature")
        return key

    def _must_ask(self, key_id: str) -> bool:
        now = self._session.clock()
        if self._asked_at is None:
            return True
        is_stale = self._received_at is None or now - self._received_at >= _FRESH_S
        return (is_stale or key_id not in self._keys) and now - self._asked_at >= _AGAIN_S

    def _fetch(self) -> Flow[None]:
        self._asked_at = self._session.clock()
        answer = yield from ask(self._session, Request("GET", subscribing.JWKS_PATH))
        try:
            self._keys = public_keys(answer.body)
        except ValueError as error:
            raise unexpected(answer.status, str(error)) from error
        self._received_at = self._asked_at

    def hold(self, notification: Notification) -> Flow[HeldWake]:
        """Take the wake of a notification into this process's hands."""
        begun_at = self._session.clock()
        path = subscribing.subscription_path(notification.subscription_id)
        lease_ttl_ms = notification.lease_ttl_ms
        if lease_ttl_ms is None:
            lease_ttl_ms = (yield from subscribing.info(self._session, path)).lease_ttl_ms
        claim = ClaimedWake(
            notification.wake_id,
            notification.generation,
            notification.callback_token,
            lease_ttl_ms,
            notification.streams,
            notification.write_token,
        )
        return HeldWake(self._session, path, claim, begun_at, is_webhook=True)
