"""The keys of subscriptions as one node uses them: it opens them, signs, makes and checks tokens.

The keys are in the replicated state (`streams.subscriptions.signing_keys`). The first one is made
when the first subscription is, and each further one replaces the one before it; the node that was
asked makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import structlog
import trio

from streamd.group.group import Group
from streamd.group.proposals import Unavailable
from streamd.node.delivery.webhooks import Webhooks
from streamd.streams.commands import Result
from streamd.streams.subscriptions import tokens, webhook_texts
from streamd.streams.subscriptions.commands import AddSubscriptionKey
from streamd.streams.subscriptions.model import WakeReport
from streamd.streams.subscriptions.signing_keys import (
    NONCE_BYTES,
    SECRET_BYTES,
    OpenKey,
    SealedKeyError,
    SubscriptionKey,
    TooManySubscriptionKeys,
    new_key,
    opened,
)
from streamd.streams.subscriptions.tokens import TokenKind, WakeToken

log = structlog.get_logger("streamd.subscriptions")


class KeysSealed(Exception):
    """This node cannot open the keys of subscriptions. The message names the file that it lacks."""


class Keyring:
    """Uses the keys that all nodes know. `random` makes what nobody may guess."""

    def __init__(self, group: Group, webhooks: Webhooks, random: Random) -> None:
        self._group = group
        self._secret_file = webhooks.config.secret_file
        self._secret = webhooks.sealing_secret
        self._random = random
        self._opened: dict[SubscriptionKey, OpenKey] = {}
        self._adding = trio.Lock()

    @property
    def known(self) -> Mapping[int, SubscriptionKey]:
        """All keys that are published, by number; the last one is in use."""
        return self._group.state.subscriptions.keys

    @property
    def signing_kid(self) -> str:
        """The name of the key that signs webhooks now; empty while there is none."""
        latest = self._latest()
        return "" if latest is None else webhook_texts.kid_of(latest.public_key)

    def jwks(self) -> bytes:
        """The public keys, as receivers of webhooks get them."""
        return webhook_texts.jwks(self.known.values())

    # -- adding keys --------------------------------------------------------------------------

    async def ensure(self) -> None:
        """Make the first key unless there is one. Raises `Unavailable`, `OutcomeUnknown`."""
        if not self.known:
            async with self._adding:
                if not self.known:
                    # Another node may have made it, and it is not known here yet.
                    await self._add(1)
                    await self._group.reads.catch_up()

    async def rotate(self, *, revokes: bool = False) -> SubscriptionKey:
        """Replace the key in use; it stays published, and the tokens that it made stay valid. With
        `revokes` neither is so, of all earlier keys.

        Raises `TooManySubscriptionKeys`, `Unavailable`, `OutcomeUnknown`.
        """
        async with self._adding:
            await self._group.reads.catch_up()
            number = max(self.known, default=0) + 1
            result = await self._add(number, revokes=revokes)
            if result is Result.TOO_MANY_SUBSCRIPTION_KEYS:
                raise TooManySubscriptionKeys
            await self._group.reads.catch_up()
            key = self.known.get(number)
            if result is not Result.DONE or key is None:
                # It may have the same number, and have revoked nothing.
                raise Unavailable("another key was added at the same time")
            log.info("the key of subscriptions was replaced", key=number, revokes=revokes)
            return key

    async def _add(self, number: int, *, revokes: bool = False) -> Result:
        random = self._random.randbytes(SECRET_BYTES + NONCE_BYTES)
        key = new_key(number, random, sealing_secret=self._secret)
        outcome = await self._group.writes.propose(AddSubscriptionKey(key, revokes))
        return outcome.result

    # -- using them ---------------------------------------------------------------------------

    def signature(self, body: bytes, now_s: int) -> str:
        """The value of `Webhook-Signature`, by the key in use. Raises `KeysSealed`."""
        return webhook_texts.signature(body, self.current(), now_s)

    def mint(self, kind: TokenKind, wake: WakeReport) -> str:
        """A token for a wake that has a lease, and its holder. Raises `KeysSealed`."""
        assert wake.lease_until_ms is not None, "a token ends after its lease"
        key = self.current()
        expires_ms = wake.lease_until_ms + tokens.GRACE_MS
        token = WakeToken(
            key.number, wake.number, wake.generation, wake.wake_id, wake.holder, expires_ms
        )
        return tokens.mint(kind, token, key.mac_key)

    def verify(self, raw: bytes, kind: TokenKind, *, number: int | None = None) -> WakeToken:
        """What a token says, for the subscription `number` if that is known.

        A follower cannot tell the time of the log, and its own clock may be wrong: it takes what
        was valid at the last entry, and the log decides whether the lease has ended since. Raises
        `TokenInvalid`, `TokenExpired`, `KeysSealed`.
        """
        group = self._group
        now_ms = group.now_ms() if group.view.leads else group.state.header.log_ms
        return tokens.verify(raw, kind, self._mac_key_of, now_ms, number=number)

    def current(self) -> OpenKey:
        """The key in use. Raises `KeysSealed`."""
        latest = self._latest()
        assert latest is not None, "`ensure` was called"
        return self._open(latest)

    def _latest(self) -> SubscriptionKey | None:
        known = self.known
        return known[max(known)] if known else None

    def _mac_key_of(self, number: int) -> bytes | None:
        key = self.known.get(number)
        return None if key is None else self._open(key).mac_key

    def _open(self, key: SubscriptionKey) -> OpenKey:
        found = self._opened.get(key)
        if found is None:
            try:
                found = opened(key, self._secret)
            except SealedKeyError as error:
                raise KeysSealed(self._what_is_lacking(error)) from None
            # Keys that are no longer published are not kept either.
            known = self.known.values()
            self._opened = {one: kept for one, kept in self._opened.items() if one in known}
            self._opened[key] = found
        return found

    def _what_is_lacking(self, error: SealedKeyError) -> str:
        if self._secret_file is None:
            return f"{error}: set subscriptions.secret_file to the file that the other nodes have"
        return f"{error} than the one in {self._secret_file}: take the file of the other nodes"
