"""Bodies of the administration of tokens, as JSON."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from streamd.auth.signed_urls import MAX_LIFE_S
from streamd.auth.tokens import shown_id
from streamd.streams.bounds import MAX_TTL_S
from streamd.streams.tokens import Token

_Seconds = Annotated[int, msgspec.Meta(ge=1, le=MAX_TTL_S)]
_DEFAULT_OVERLAP_S = 3600
_DEFAULT_LIFE_S = 3600


class NewToken(msgspec.Struct, forbid_unknown_fields=True):
    """A token to create. Without `expires_in_s` it has no end."""

    name: str
    scopes: list[str]
    expires_in_s: _Seconds | None = None


class Rotation(msgspec.Struct, forbid_unknown_fields=True):
    """For how long the secret before it stays valid. With `expires_in_s` the token's end moves to
    so long from now."""

    overlap_s: Annotated[int, msgspec.Meta(ge=0, le=MAX_TTL_S)] = _DEFAULT_OVERLAP_S
    expires_in_s: _Seconds | None = None


class UrlToSign(msgspec.Struct, forbid_unknown_fields=True):
    """What a signed URL is to permit. `url` is whole, or a path on the host that is asked; with
    `prefix` all paths below it are permitted, too. GET permits HEAD."""

    url: str
    methods: list[Literal["GET", "HEAD", "POST", "PUT", "DELETE"]] = msgspec.field(
        default_factory=lambda: ["GET"]
    )
    prefix: bool = False
    expires_in_s: Annotated[int, msgspec.Meta(ge=1, le=MAX_LIFE_S)] = _DEFAULT_LIFE_S


class SignedUrl(msgspec.Struct):
    """The answer with a signed URL. `signed` is the parameter's value, for other URLs with the same
    prefix."""

    url: str
    signed: str
    expires_at_ms: int


class TokenBody(msgspec.Struct):
    """What may be seen of a token. `former_secret_until_ms` is when the secret before the present
    one ends, if it has not ended yet."""

    id: str
    name: str
    scopes: list[str]
    created_at_ms: int
    expires_at_ms: int | None
    expired: bool
    former_secret_until_ms: int | None


class NewTokenBody(msgspec.Struct):
    """The answer with a new secret: `token` is what clients send."""

    token: str
    about: TokenBody


class TokensBody(msgspec.Struct):
    """All tokens, in the order of their names."""

    tokens: list[TokenBody]


def body_of(token_id: int, token: Token, now_ms: int) -> TokenBody:
    """What may be seen of a token at `now_ms`."""
    return TokenBody(
        shown_id(token_id),
        token.name,
        list(token.scopes),
        token.created_ms,
        token.expires_ms,
        token.has_expired(now_ms),
        token.former_until_ms if token.former_until_ms > now_ms else None,
    )
