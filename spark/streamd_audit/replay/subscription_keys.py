"""Which keys for subscriptions a state has (docs/subscriptions.md). What they are good for makes no
difference to it."""

from __future__ import annotations

from itertools import pairwise

from msgspec.structs import replace

from streamd_audit.replay.results import DONE, STALE, TOO_MANY_SUBSCRIPTION_KEYS
from streamd_audit.subscriptions import AddSubscriptionKey, Key

_PUBLIC_BYTES = 32
_SECRET_BYTES = 64
# A nonce and a tag besides.
_SEALED_BYTES = 12 + _SECRET_BYTES + 16
_MAX_KEYS = 8
_KEPT_MS = 24 * 3_600_000


def with_key(
    known: tuple[Key, ...], command: AddSubscriptionKey, now_ms: int
) -> tuple[str, tuple[Key, ...]]:
    """The outcome of adding a key, and the keys after it: that one and, unless it revokes them, the
    one before it and those that were replaced less than a day ago."""
    key = command.key
    following = known[-1].number + 1 if known else 1
    sizes = len(key.public_key), len(key.secret)
    wanted = _PUBLIC_BYTES, _SEALED_BYTES if key.is_sealed else _SECRET_BYTES
    if key.number != following or sizes != wanted:
        return STALE, known
    added = replace(key, added_ms=now_ms)
    if command.revokes:
        return DONE, (added,)
    kept = [one for one, after in pairwise(known) if after.added_ms > now_ms - _KEPT_MS]
    if len(kept) + 2 > _MAX_KEYS:
        return TOO_MANY_SUBSCRIPTION_KEYS, known
    return DONE, (*kept, *known[-1:], added)
