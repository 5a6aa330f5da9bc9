"""The commands about tokens of clients (see `commands`)."""

from __future__ import annotations

import msgspec

from streamd.streams.bounds import Number


class CreateToken(msgspec.Struct, frozen=True, array_like=True, tag="create-token"):
    """A token for clients of the HTTP interface, from now on and for `ttl_ms`, or without an end.

    `digest` is that of the secret (`auth.tokens`), `scopes` are texts (`auth.scopes`). With
    `public_key` signed URLs of the token are verified (`auth.signed_urls`); empty if it signs none.
    """

    token_id: Number
    name: str
    digest: bytes
    scopes: list[str]
    ttl_ms: Number | None = None
    public_key: bytes = b""


class RotateToken(msgspec.Struct, frozen=True, array_like=True, tag="rotate-token"):
    """A new secret for a token; the present one is valid for another `overlap_ms`. With `ttl_ms`
    the token's end is moved to so long from now."""

    token_id: Number
    digest: bytes
    overlap_ms: Number = 0
    ttl_ms: Number | None = None
    public_key: bytes = b""


class RevokeToken(msgspec.Struct, frozen=True, array_like=True, tag="revoke-token"):
    """The end of a token, at once."""

    token_id: Number


TokenCommand = CreateToken | RotateToken | RevokeToken
