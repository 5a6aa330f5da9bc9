"""What a webhook is sent, and what its receiver needs to check it (protocol sections 6.5, 7.1)."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from urllib.parse import quote

import msgspec

from streamd.streams.subscriptions.signing_keys import OpenKey, SubscriptionKey

JWKS_CONTENT_TYPE = "application/jwk-set+json"
SIGNATURE_HEADER = "Webhook-Signature"
# Below it are the paths of subscriptions.
RESERVED_PATH = "/v1/stream/__ds"


class NotifiedStream(msgspec.Struct, frozen=True):
    """One stream of a subscription; offsets are tokens (`Position.token`)."""

    path: str
    link_type: str
    acked_offset: str
    tail_offset: str
    has_pending: bool


class Notification(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a webhook; `write_token` is there if one of the streams is fenced."""

    subscription_id: str
    wake_id: str
    generation: int
    streams: Sequence[NotifiedStream]
    callback_url: str
    callback_token: str
    lease_ttl_ms: int
    write_token: str | None = None


class _Answer(msgspec.Struct):
    done: bool = False


_ANSWER = msgspec.json.Decoder(_Answer)


def body_of(notification: Notification) -> bytes:
    """The bytes that are sent, and signed."""
    return msgspec.json.encode(notification)


def says_done(answer: bytes) -> bool:
    """Whether the body of an answer acknowledges the wake; anything else does not."""
    try:
        return _ANSWER.decode(answer).done
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False


def kid_of(public_key: bytes) -> str:
    """The name of a key: ``ds_`` and its thumbprint (RFC 7638, RFC 8037 appendix A.3)."""
    members = b'{"crv":"Ed25519","kty":"OKP","x":"%b"}' % _base64(public_key)
    return "ds_" + _base64(sha256(members).digest()).decode()


def subscription_url(base: str, subscription_id: str, action: str) -> str:
    """Where a request about a subscription is sent, at a server with the URL `base`."""
    quoted = quote(subscription_id, safe="")
    return f"{base.rstrip('/')}{RESERVED_PATH}/subscriptions/{quoted}/{action}"


def jwks_url(base: str) -> str:
    """Where the public keys are, at a server with the URL `base`."""
    return f"{base.rstrip('/')}{RESERVED_PATH}/jwks.json"


def jwks(keys: Iterable[SubscriptionKey]) -> bytes:
    """The public keys as a JWK set (RFC 7517 section 5, RFC 8037 section 2), the newest first."""
    found = [
        {
            "kty": "OKP",
            "crv": "Ed25519",
            "kid": kid_of(key.public_key),
            "use": "sig",
            "alg": "EdDSA",
            "x": _base64(key.public_key).decode(),
        }
        for key in keys
    ]
    return msgspec.json.encode({"keys": found[::-1]})


def signature(body: bytes, key: OpenKey, now_s: int) -> str:
    """The value of `Webhook-Signature` for a body sent at `now_s`, in seconds since the epoch."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.from_private_bytes(key.private_key)
    signed = _base64(private.sign(b"%d.%b" % (now_s, body))).decode()
    return f"t={now_s},kid={kid_of(key.public_key)},ed25519={signed}"


def _base64(raw: bytes) -> bytes:
    return urlsafe_b64encode(raw).rstrip(b"=")
