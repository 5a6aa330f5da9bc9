"""Verifies signed URLs, each once, and bounds what made-up signatures cost."""

from __future__ import annotations

from collections import Counter

import trio

from streamd.auth import signed_urls
from streamd.auth.signed_urls import Grant
from streamd.protocol.problems import Problem
from streamd.streams.tokens import Token

MAX_VERIFIED = 8192
# A second, for one address and one token: each takes some 0.1 ms of the event loop, and as much
# again while the token has a former secret. A limit by the token alone would let a stranger keep
# others from using it.
MAX_FAILURES = 50
_PERIOD_S = 1.0


class Signatures:
    """Remembers which key has signed which grant. That stays true, whatever becomes of the token:
    so nothing is verified again when tokens change, but the caller must see whether the key is
    still one of the token's."""

    def __init__(self) -> None:
        self._verified: dict[tuple[bytes, Grant], bytes] = {}
        self._failures: Counter[tuple[str, int]] = Counter()
        self._period_ends = 0.0

    def key_of(self, grant: Grant, signature: bytes, token: Token, client: str) -> bytes | None:
        """The public key, one of `token`, that has signed the grant.

        Raises `ProblemError` if too many signatures from `client` were wrong.
        """
        known = self._verified.get((signature, grant))
        if known is not None:
            return known
        self._check_failures(client, grant.token_id)
        for key in (token.public_key, token.former_public_key):
            if signed_urls.is_signed(key, grant, signature):
                if len(self._verified) >= MAX_VERIFIED:
                    self._verified.clear()
                self._verified[signature, grant] = key
                return key
        self._failures[client, grant.token_id] += 1
        return None

    def _check_failures(self, client: str, token_id: int) -> None:
        now = trio.current_time()
        if now >= self._period_ends:
            self._failures.clear()
            self._period_ends = now + _PERIOD_S
        if self._failures[client, token_id] >= MAX_FAILURES:
            raise Problem.TOO_MANY_REQUESTS.error(
                "too many wrong signatures came from this address", b"Retry-After: 1\r\n"
            )
