"""Webhooks of subscriptions: whether one is genuine, and what it says (protocol section 7.1).

`Client.webhooks` fetches the server's keys and uses what is here. In FastAPI:

    hooks = AsyncClient("https://streams.example").webhooks("orders")

    @app.post("/orders")
    async def orders(request: Request) -> dict[str, bool]:
        notification = await hooks.verify(request.headers, await request.body())
        ...
        return DONE

It needs the library `cryptography`: `pip install 'durable-streamd[webhooks]'`.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from binascii import Error as NotBase64
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from streamd.client.subscription_values import SubscribedStream
from streamd.streams.content import UNDECODABLE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

# How long ago, or ahead by the receiver's clock, a webhook may have been signed.
REPLAY_WINDOW_S = 300
# The answer to a webhook that says that all is handled which it came for.
DONE = {"done": True}

SIGNATURE_HEADER = "Webhook-Signature"
_MAX_HEADER = 1024
# A server has the key in use and those before it that may still have signed something.
_MAX_KEYS = 64
_MAX_JWKS_BYTES = 64 * 1024
_TIME = re.compile(r"[0-9]{1,12}")
_ED25519_BYTES = 64


class HeaderItems(Protocol):
    """The headers of a request, in any framework: those of some are not a `Mapping`."""

    def items(self) -> Iterable[tuple[str, str]]:
        """Names and values."""
        ...


class BadWebhook(ValueError):
    """The request is not a genuine webhook of this server: answer it with `status`, 401."""

    status = 401


class UnknownWebhookKey(BadWebhook):
    """No key of the server has the name that the signature gives."""


class Signature(NamedTuple):
    """What `Webhook-Signature` says: when the body was signed, with which key, and the signature.

    `time` is in seconds since 1970, as the header writes it.
    """

    time: str
    key_id: str
    signature: bytes


class Notification(msgspec.Struct, frozen=True):
    """A webhook: which streams of a subscription have something. Tokens are never shown.

    `lease_ttl_ms` is how long the server waits for a sign of life, if it tells.
    """

    subscription_id: str
    wake_id: str
    generation: int
    callback_url: str
    callback_token: str
    streams: tuple[SubscribedStream, ...] = ()
    write_token: str | None = None
    lease_ttl_ms: int | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.wake_id} of {self.subscription_id}>"

    @property
    def pending(self) -> list[SubscribedStream]:
        """The streams that have something after their `acked_offset`."""
        return [stream for stream in self.streams if stream.has_pending]


def signature(headers: HeaderItems, now_s: float) -> Signature:
    """The signature in the headers, whose names may have any case. Raises `BadWebhook` if there is
    none, or several, or one from outside of the replay window."""
    given = [value for name, value in headers.items() if name.lower() == SIGNATURE_HEADER.lower()]
    if len(given) != 1 or len(given[0]) > _MAX_HEADER:
        raise BadWebhook(f"the request has {len(given)} headers {SIGNATURE_HEADER}, not one")
    parts = [part.strip().partition("=") for part in given[0].split(",")]
    found = {name: value for name, _, value in parts}
    if len(found) != len(parts) or not {"t", "kid", "ed25519"} <= found.keys():
        raise BadWebhook(f"{SIGNATURE_HEADER} is not t=…,kid=…,ed25519=…")
    signed, raw = found["t"], _decoded(found["ed25519"])
    if not _TIME.fullmatch(signed) or raw is None or len(raw) != _ED25519_BYTES:
        raise BadWebhook(f"{SIGNATURE_HEADER} has no time, or no signature of Ed25519")
    if abs(now_s - int(signed)) > REPLAY_WINDOW_S:
        raise BadWebhook(
            f"the webhook was signed {now_s - int(signed):.0f} s ago by this machine's clock, "
            f"and {REPLAY_WINDOW_S} s are allowed"
        )
    return Signature(signed, found["kid"], raw)


def verified(
    signed: Signature,
    body: bytes,
    key: Ed25519PublicKey,
    subscription_ids: Collection[str] = (),
) -> Notification:
    """What a body says if this key has signed it: the very bytes that were received.

    Raises `BadWebhook` if it has not, or if the subscription is not one of `subscription_ids`,
    unless that is empty.
    """
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signed.signature, f"{signed.time}.".encode() + body)
    except InvalidSignature:
        raise BadWebhook("the signature does not fit the body") from None
    try:
        notification = msgspec.json.decode(body, type=Notification)
    except UNDECODABLE as error:
        raise BadWebhook(f"the body is not a webhook of a subscription: {error}") from None
    if subscription_ids and notification.subscription_id not in subscription_ids:
        raise BadWebhook(f"the webhook is of another subscription: {notification.subscription_id}")
    return notification


def public_keys(jwks: bytes) -> dict[str, Ed25519PublicKey]:
    """The keys for signatures in a set of keys (RFC 7517), by name.

    Raises `ValueError` for anything else, or more keys than a server publishes, and `ImportError`
    without `cryptography`.
    """
    Ed25519PublicKey = _ed25519()
    if len(jwks) > _MAX_JWKS_BYTES:
        raise ValueError(f"the set of keys has more than {_MAX_JWKS_BYTES} bytes")
    found = {}
    for key in _keys(jwks):
        raw = _decoded(str(key.get("x", "")))
        is_ours = key.get("kty") == "OKP" and key.get("crv") == "Ed25519"
        if is_ours and key.get("use", "sig") == "sig" and raw is not None and len(raw) == 32:
            found[str(key.get("kid"))] = Ed25519PublicKey.from_public_bytes(raw)
    if len(found) > _MAX_KEYS:
        raise ValueError(f"the set has more than {_MAX_KEYS} keys")
    return found


def _keys(jwks: bytes) -> Iterator[dict[str, Any]]:
    try:
        keys = msgspec.json.decode(jwks, type=dict[str, Any])["keys"]
    except (*UNDECODABLE, KeyError) as error:
        raise ValueError(f"this is not a set of keys: {error}") from None
    if not isinstance(keys, list):
        raise ValueError("this is not a set of keys: `keys` is not an array")
    return (key for key in keys if isinstance(key, dict))


def _ed25519() -> type[Ed25519PublicKey]:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise ImportError(
            "webhooks are verified with the library `cryptography`, which is not installed: "
            "pip install 'durable-streamd[webhooks]'"
        ) from error
    return Ed25519PublicKey


def _decoded(text: str) -> bytes | None:
    """Unpadded base64url; None if it is anything else."""
    try:
        return urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (NotBase64, UnicodeEncodeError):
        return None
