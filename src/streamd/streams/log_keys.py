"""The keys with which nodes sign heads of the log (`proofs.heads`), as all nodes know them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streamd.proofs.heads import KEY_BYTES, SIGNATURE_BYTES

# How many keys a cluster may ever have. All are kept: the reader of a head that one of them signed
# needs those that vouch for it. Applying the log depends on this number.
MAX_LOG_KEYS = 256


class LogKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node's public key (Ed25519), and what vouches for it.

    `signature` is that of the key `signed_by` over this one (`heads.key_text`). Without a
    `signed_by` the key has signed itself: the first one of a cluster, which others trust, or a
    later one for which none of those before it could vouch.
    """

    node_id: int
    public_key: bytes
    signed_by: bytes
    signature: bytes

    @property
    def has_sizes(self) -> bool:
        """Whether the keys and the signature have the sizes of such."""
        return (
            len(self.public_key) == KEY_BYTES
            and len(self.signed_by) in (0, KEY_BYTES)
            and len(self.signature) == SIGNATURE_BYTES
        )


def may_follow(known: Sequence[LogKey], key: LogKey) -> bool:
    """Whether a key is not known yet, and one of those known vouches for it, by its own account, or
    none does.

    Readers of heads check the signature: only their trust depends on it.
    """
    keys = {other.public_key for other in known}
    return key.public_key not in keys and (not key.signed_by or key.signed_by in keys)
