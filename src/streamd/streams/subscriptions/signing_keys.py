"""The keys of the server's subscriptions, as all nodes know them.

A key signs webhooks (Ed25519), and its other half makes the MACs of tokens. The log and the state
have it whole, so that each leader signs with it: in the clear, or sealed with a secret that only
the nodes' configuration has.
"""

from __future__ import annotations

from hashlib import sha256
from hmac import digest as hmac_digest
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

PUBLIC_KEY_BYTES = 32
NONCE_BYTES = 12
MIN_SEALING_SECRET_BYTES = 32
_SIGNING_BYTES = 32
_MAC_BYTES = 32
SECRET_BYTES = _SIGNING_BYTES + _MAC_BYTES
# ChaCha20-Poly1305 (RFC 8439) adds a tag to what it encrypts.
_SEALED_BYTES = NONCE_BYTES + SECRET_BYTES + 16
_LABEL = b"streamd subscription key 1"

# Applying the log depends on these two. A key that was replaced is published for as long as a
# receiver may still check a signature by it, with much to spare; so too many rotations in that time
# are refused.
MAX_SUBSCRIPTION_KEYS = 8
KEPT_MS = 24 * 3_600_000


class SubscriptionKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The `number`-th key of the cluster, from 1.

    `secret` is the private key and the MAC's key, `SECRET_BYTES` together, or what `seal` makes of
    them. `added_ms` is in log time, and set when the log is applied.
    """

    number: int
    public_key: bytes
    secret: bytes
    is_sealed: bool = False
    added_ms: int = 0

    def __repr__(self) -> str:
        return f"SubscriptionKey({self.number}, public_key={self.public_key.hex()})"

    @property
    def has_sizes(self) -> bool:
        """Whether the key and the secret have the sizes of such."""
        size = _SEALED_BYTES if self.is_sealed else SECRET_BYTES
        return len(self.public_key) == PUBLIC_KEY_BYTES and len(self.secret) == size


class OpenKey(msgspec.Struct, frozen=True, gc=False):
    """The secret halves of a key: what signs webhooks, and what makes the MACs of tokens."""

    number: int
    public_key: bytes
    private_key: bytes
    mac_key: bytes

    def __repr__(self) -> str:
        return f"OpenKey({self.number})"


class SealedKeyError(Exception):
    """A key is sealed with another secret than the one given, or with one while none is given."""


class TooManySubscriptionKeys(Exception):
    """More keys were added within `KEPT_MS` than may be published together."""


def with_key(
    known: tuple[SubscriptionKey, ...],
    key: SubscriptionKey,
    now_ms: int,
    *,
    revokes: bool = False,
) -> tuple[SubscriptionKey, ...] | None:
    """The keys once another is added at `now_ms` of log time; None unless it is the next one.

    The key before it stays, and those that were replaced less than `KEPT_MS` ago; none of them if
    it `revokes` them. Raises `TooManySubscriptionKeys`.
    """
    number = known[-1].number + 1 if known else 1
    if key.number != number or not key.has_sizes:
        return None
    added = replace(key, added_ms=now_ms)
    if revokes:
        return (added,)
    replaced_ms = [one.added_ms for one in known[1:]]
    kept = [
        one for one, at_ms in zip(known[:-1], replaced_ms, strict=True) if at_ms > now_ms - KEPT_MS
    ]
    if len(kept) + 2 > MAX_SUBSCRIPTION_KEYS:
        raise TooManySubscriptionKeys
    return (*kept, *known[-1:], added)


def new_key(number: int, random: bytes, *, sealing_secret: bytes | None) -> SubscriptionKey:
    """A key made of `SECRET_BYTES + NONCE_BYTES` random bytes, sealed if there is a secret."""
    assert len(random) == SECRET_BYTES + NONCE_BYTES, "a key is made of so many random bytes"
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    secret, nonce = random[:SECRET_BYTES], random[SECRET_BYTES:]
    private = Ed25519PrivateKey.from_private_bytes(secret[:_SIGNING_BYTES])
    public_key = private.public_key().public_bytes_raw()
    if sealing_secret is None:
        return SubscriptionKey(number, public_key, secret)
    sealed = _cipher(sealing_secret).encrypt(nonce, secret, _bound_to(number, public_key))
    return SubscriptionKey(number, public_key, nonce + sealed, is_sealed=True)


def opened(key: SubscriptionKey, sealing_secret: bytes | None) -> OpenKey:
    """The secret halves of a key. Raises `SealedKeyError`."""
    return _halves(key, _unsealed(key, sealing_secret) if key.is_sealed else key.secret)


def _unsealed(key: SubscriptionKey, sealing_secret: bytes | None) -> bytes:
    from cryptography.exceptions import InvalidTag

    if sealing_secret is None:
        raise SealedKeyError(f"key {key.number} is sealed, and this node has no secret to open it")
    nonce, sealed = key.secret[:NONCE_BYTES], key.secret[NONCE_BYTES:]
    try:
        return _cipher(sealing_secret).decrypt(nonce, sealed, _bound_to(key.number, key.public_key))
    except InvalidTag:
        raise SealedKeyError(f"key {key.number} is sealed with another secret") from None


def _halves(key: SubscriptionKey, secret: bytes) -> OpenKey:
    return OpenKey(key.number, key.public_key, secret[:_SIGNING_BYTES], secret[_SIGNING_BYTES:])


def _bound_to(number: int, public_key: bytes) -> bytes:
    """What a sealed secret is authenticated with, so that it cannot be moved to another key."""
    return b"%b\0%d\0%b" % (_LABEL, number, public_key)


def _cipher(sealing_secret: bytes) -> ChaCha20Poly1305:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(hmac_digest(_LABEL, sealing_secret, sha256))
