"""The format of tokens: ``sd_<id>_<secret>``.

The id, 16 hexadecimal digits, names the token in the state and may be shown; the secret has 160
random bits. That is too many to be guessed, with or without the hash, so SHA-256 is enough to keep:
slow hashes are for passwords that people choose (RFC 9106 section 1).
"""

from __future__ import annotations

import re
from base64 import b32encode
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple

SECRET_BYTES = 20
DIGEST_BYTES = 32
MAX_TOKEN_ID = 2**63 - 1
# The id in root tokens that streamd makes: the state has none of them, so they need no other.
ROOT_ID = 0
MAX_NAME_CHARACTERS = 64

_TOKEN = re.compile(rb"sd_([0-7][0-9a-f]{15})_[a-z2-7]{32}")
_TOKEN_ID = re.compile(r"[0-7][0-9a-f]{15}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")
# Few spaces: headers of valid tokens are remembered as they were sent.
_CREDENTIALS = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] {1,16}([A-Za-z0-9._~+/-]+=*) {0,16}")


class PresentedToken(NamedTuple):
    """A token that a client sent, and may have made up."""

    token_id: int
    digest: bytes


def mint(token_id: int, secret: bytes) -> str:
    """The token with that id and these `SECRET_BYTES` random bytes."""
    assert 0 <= token_id <= MAX_TOKEN_ID, "an id has 63 bits"
    assert len(secret) == SECRET_BYTES, "a secret has a fixed size"
    return f"sd_{shown_id(token_id)}_{b32encode(secret).decode().lower()}"


def parse_token(raw: bytes) -> PresentedToken | None:
    """A token as sent; None for bytes that `mint` cannot have made."""
    match = _TOKEN.fullmatch(raw)
    return None if match is None else PresentedToken(int(match[1], 16), digest_of(raw))


def digest_of(token: bytes) -> bytes:
    """What is kept of a token."""
    return sha256(token).digest()


def is_same_digest(one: bytes, other: bytes) -> bool:
    """Whether two digests are equal, in a time that does not tell where they differ."""
    return compare_digest(one, other)


def shown_id(token_id: int) -> str:
    """The id as in the token."""
    return f"{token_id:016x}"


def parse_id(text: str) -> int | None:
    """The id that `shown_id` shows as `text`."""
    return int(text, 16) if _TOKEN_ID.fullmatch(text) else None


def is_token_name(name: str) -> bool:
    """Whether operators may give a token this name. No name looks like an id, so that commands take
    either."""
    is_id = _TOKEN_ID.fullmatch(name) is not None
    return len(name) <= MAX_NAME_CHARACTERS and not is_id and _NAME.fullmatch(name) is not None


def bearer(authorization: bytes) -> bytes | None:
    """The token in an Authorization header's value (RFC 6750 section 2.1), or None.

    Values of a repeated header come joined by a comma, which no token has.
    """
    match = _CREDENTIALS.fullmatch(authorization)
    return None if match is None else match[1]
