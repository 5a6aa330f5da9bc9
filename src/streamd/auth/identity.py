"""Identities: what a valid credential stands for."""

from __future__ import annotations

from typing import Protocol

from streamd.auth.scopes import Scopes, parse_scope
from streamd.auth.tokens import shown_id


class Undecided(Exception):
    """This node cannot decide yet whether a credential is valid; the message says why."""


class Identity:
    """The sender of a request.

    `name` is the one in logs, `payer` the one whose limits hold: a token also for what it signed.
    `credential` is the kind of what was sent and its id, if it has one.
    `digest` is that of a credential of the node itself, which is in no table. `ends_ms` is when the
    credential ends, in ms since the epoch by log time, None for never.
    """

    __slots__ = ("credential", "digest", "ends_ms", "name", "payer", "scopes")

    def __init__(
        self,
        name: str,
        scopes: Scopes,
        *,
        credential: str = "",
        digest: bytes = b"",
        ends_ms: int | None = None,
    ) -> None:
        self.name = self.payer = name
        self.credential = credential
        self.scopes = scopes
        self.digest = digest
        self.ends_ms = ends_ms

    def has_ended(self, now_ms: int) -> bool:
        return self.ends_ms is not None and self.ends_ms <= now_ms

    def __repr__(self) -> str:
        return f"Identity({self.name!r})"


class SignedIdentity(Identity):
    """The sender of a request with a signed URL: who signed it, within what the URL permits.

    `public_key` is the one by which the signature was verified, of the token with `token_id`;
    `expires_ms` is the URL's own end, and `ends_ms` that or its token's.
    """

    __slots__ = ("expires_ms", "public_key", "token_id")

    def __init__(
        self,
        name: str,
        scopes: Scopes,
        *,
        ends_ms: int,
        expires_ms: int,
        token_id: int,
        public_key: bytes,
    ) -> None:
        credential = signed_credential(token_id)
        super().__init__(f"signed:{name}", scopes, credential=credential, ends_ms=ends_ms)
        self.payer = name
        self.expires_ms = expires_ms
        self.token_id = token_id
        self.public_key = public_key


def token_credential(token_id: int) -> str:
    """A token of the server's own as an identity's `credential`."""
    return f"token {shown_id(token_id)}"


def signed_credential(token_id: int) -> str:
    """A signed URL as an identity's `credential`."""
    return f"signed URL of token {shown_id(token_id)}"


class Verifier(Protocol):
    """Verifies credentials that others have signed."""

    def identify(self, token: bytes, now_ms: int) -> Identity | None:
        """What a token stands for at `now_ms`, in ms since the epoch; None if it is not valid.
        Raises `Undecided`."""


ROOT_SCOPES = Scopes([parse_scope("admin:*")])


def root(name: str, digest: bytes) -> Identity:
    """The identity of a node's own root token."""
    return Identity(name, ROOT_SCOPES, credential="root token", digest=digest)
