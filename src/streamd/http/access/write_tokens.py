"""Write tokens: what the sender of an append shows to write under its claim (write fencing).

A token comes in `Write-Token`, in `electric-claim-token`, or as a bearer token of its own form;
the first of these counts, and one that is malformed never gives way to the next. What the token
says is verified here. Whether its claim is still the present one is decided in the log.
"""

from __future__ import annotations

from collections.abc import Callable

from streamd.auth import signed_urls, tokens
from streamd.auth.identity import Identity
from streamd.auth.scopes import Scopes
from streamd.group.proposals import Unavailable
from streamd.http.protocol.fields import Headers, wants_fence
from streamd.http.protocol.messages import Request
from streamd.protocol.headers import ELECTRIC_CLAIM_TOKEN, WRITE_FENCE, WRITE_TOKEN
from streamd.protocol.problems import Problem, ProblemError
from streamd.streams.subscriptions.model import Credential, FenceStamp
from streamd.streams.subscriptions.tokens import (
    TokenExpired,
    TokenInvalid,
    TokenKind,
    WakeToken,
    is_wake_token,
)

_AUTHORIZATION = b"authorization"
# Takes a token and its kind, and says what it means. Raises `TokenInvalid`, `TokenExpired`.
Verify = Callable[[bytes, TokenKind], WakeToken]


class ClaimIdentity(Identity):
    """The sender of a write that nothing but its write token permits."""

    __slots__ = ("stamp",)

    def __init__(self, token: WakeToken) -> None:
        name = f"claim of subscription {token.number}"
        super().__init__(name, Scopes([]), credential="write token", ends_ms=token.expires_ms)
        self.stamp = stamp_of(token, is_alone=True)


def are_shown(headers: Headers) -> bool:
    """Whether an append shows something that may be a write token, or asserts that it does."""
    if WRITE_TOKEN.key in headers or WRITE_FENCE.key in headers:
        return True
    authorization = headers.get(_AUTHORIZATION)
    is_bearer = authorization is not None and _as_bearer(authorization) is not None
    return is_bearer or ELECTRIC_CLAIM_TOKEN.key in headers


def shown(headers: Headers) -> bytes | None:
    """The token that a request shows, or what it shows in a token's place.

    Raises `ProblemError` for a header that is empty or was sent twice.
    """
    raw = headers.get(WRITE_TOKEN.key)
    if raw is None:
        raw = headers.get(ELECTRIC_CLAIM_TOKEN.key)
    if raw is None:
        authorization = headers.get(_AUTHORIZATION)
        return None if authorization is None else _as_bearer(authorization)
    # The values of a header that was sent twice are joined by a comma.
    if not raw or b"," in raw:
        raise _unauthenticated("the write token is empty or was sent twice")
    return raw


class WriteTokens:
    """Verifies what appends show. `is_ready` says whether the state has all keys that it could."""

    def __init__(self, verify: Verify, is_ready: Callable[[], bool]) -> None:
        self._verify = verify
        self._is_ready = is_ready

    def admit(self, request: Request) -> ClaimIdentity | None:
        """The sender of an append that shows a token and nothing else; None for any other.

        Raises `ProblemError`, and `Unavailable` if this node cannot tell yet.
        """
        headers = request.headers
        if not are_shown(headers) or signed_urls.PARAMETER in request.query:
            return None
        authorization = headers.get(_AUTHORIZATION)
        if authorization is not None and _as_bearer(authorization) is None:
            return None
        raw = shown(headers)
        if raw is None:
            if wants_fence(headers):
                raise _unauthenticated()
            return None
        try:
            return ClaimIdentity(self._verify(raw, "write"))
        except TokenExpired:
            raise _unauthenticated("the write token has expired") from None
        except TokenInvalid:
            if self._is_wake(raw, headers):
                raise Problem.FORBIDDEN.error(
                    "a token that acknowledges a wake permits no writes", reason="wake_token"
                ) from None
            if not self._is_ready():
                raise Unavailable("this node does not know all keys yet") from None
            raise _unauthenticated("the write token is not valid") from None

    def stamp(self, request: Request) -> FenceStamp | None:
        """What an append shows, by the keys that this node knows; None if that is nothing. Raises
        `ProblemError` for a malformed carrier."""
        if isinstance(request.identity, ClaimIdentity):
            return request.identity.stamp
        raw = shown(request.headers)
        if raw is None:
            return None
        try:
            return stamp_of(self._verify(raw, "write"))
        except TokenExpired:
            return FenceStamp(credential=Credential.INVALID)
        except TokenInvalid:
            is_wake = self._is_wake(raw, request.headers)
            return FenceStamp(credential=Credential.WAKE if is_wake else Credential.INVALID)

    def _is_wake(self, raw: bytes, headers: Headers) -> bool:
        """Whether a request that claims no more has the token by which a wake is acknowledged
        ([WF-15]). Where a write token is due that is an invalid one ([WF-07], [WF-09])."""
        if (
            wants_fence(headers)
            or WRITE_TOKEN.key in headers
            or ELECTRIC_CLAIM_TOKEN.key in headers
        ):
            return False
        try:
            self._verify(raw, "callback")
        except TokenInvalid:
            return False
        except TokenExpired:
            return True
        return True


def _as_bearer(authorization: bytes) -> bytes | None:
    """A bearer token that has the form of a wake's."""
    if b" ds" not in authorization:
        return None  # Every append pays for this.
    raw = tokens.bearer(authorization)
    return raw if raw is not None and is_wake_token(raw) else None


def stamp_of(token: WakeToken, *, is_alone: bool = False) -> FenceStamp:
    """The claim that a verified token names."""
    return FenceStamp(
        token.number,
        token.generation,
        token.wake_id,
        token.holder,
        token.expires_ms,
        is_alone=is_alone,
    )


def _unauthenticated(detail: str = "") -> ProblemError:
    return Problem.UNAUTHENTICATED.error(detail, reason="credential")
