"""The tokens of wakes: what proves that a worker was woken, or has claimed a subscription.

``dsc_<payload>.<mac>`` acknowledges a wake, by callback or claim; ``dsw_<payload>.<mac>`` writes
to the fenced streams of the subscription. Anyone can read the payload, MessagePack in base64url;
the MAC (HMAC-SHA-256) covers all text before it, so that neither kind passes for the other.
A token says what was true when it was made. The log decides whether its wake is still the current
one.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest
from hmac import digest as hmac_digest
from typing import Literal

import msgspec

# How long a token outlives its lease: the clocks of nodes differ, and the log ends leases.
GRACE_MS = 5_000
# Longer ones cannot have been made here.
MAX_TOKEN_BYTES = 2_048

TokenKind = Literal["callback", "write"]
_PREFIXES: dict[TokenKind, bytes] = {"callback": b"dsc_", "write": b"dsw_"}
_TOKEN = re.compile(rb"(ds[cw]_[A-Za-z0-9_-]+)\.([A-Za-z0-9_-]{43})")
_LABEL = b"streamd wake token 1\0"


class TokenInvalid(Exception):
    """No server of this cluster made the token, or it is for something else."""


class TokenExpired(Exception):
    """The token was valid once."""


class WakeToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a token says: the key that made its MAC, the subscription, the wake, its holder ("" for
    a webhook), and when the token ends (ms since the epoch)."""

    key_number: int
    number: int
    generation: int
    wake_id: str
    holder: str
    expires_ms: int


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(WakeToken)


def mint(kind: TokenKind, token: WakeToken, mac_key: bytes) -> str:
    """The text of a token, with a MAC by the key that it names."""
    signed = _PREFIXES[kind] + _base64(_ENCODER.encode(token))
    return (signed + b"." + _mac(signed, mac_key)).decode()


def is_wake_token(raw: bytes) -> bool:
    """Whether a text has the form of a token of either kind."""
    return len(raw) <= MAX_TOKEN_BYTES and _TOKEN.fullmatch(raw) is not None


def verify(
    raw: bytes,
    kind: TokenKind,
    mac_key_of: Callable[[int], bytes | None],
    now_ms: int,
    *,
    number: int | None = None,
) -> WakeToken:
    """What a token of a kind says, for the subscription `number` if that is known.

    `mac_key_of` has the key of a number, if there is one. Raises `TokenInvalid`, `TokenExpired`,
    and what `mac_key_of` raises.
    """
    match = _TOKEN.fullmatch(raw) if len(raw) <= MAX_TOKEN_BYTES else None
    if match is None or not raw.startswith(_PREFIXES[kind]):
        raise TokenInvalid
    signed, mac = match[1], match[2]
    token = _payload(signed[len(_PREFIXES[kind]) :])
    mac_key = mac_key_of(token.key_number)
    if mac_key is None or not compare_digest(mac, _mac(signed, mac_key)):
        raise TokenInvalid
    if number is not None and token.number != number:
        raise TokenInvalid
    if now_ms > token.expires_ms:
        raise TokenExpired
    return token


def _payload(encoded: bytes) -> WakeToken:
    try:
        return _DECODER.decode(urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4)))
    except (msgspec.MsgspecError, ValueError):
        raise TokenInvalid from None


def _mac(signed: bytes, mac_key: bytes) -> bytes:
    return _base64(hmac_digest(mac_key, _LABEL + signed, sha256))


def _base64(raw: bytes) -> bytes:
    return urlsafe_b64encode(raw).rstrip(b"=")
