"""Identities: who pays for what a signed URL permits, and when a credential ends."""

from __future__ import annotations

from streamd.auth.identity import Identity, SignedIdentity, token_credential
from streamd.auth.scopes import Scopes, parse_scope

READ = Scopes([parse_scope("read:agents/*")])


def signed(name: str) -> SignedIdentity:
    return SignedIdentity(
        name, READ, ends_ms=1_000, expires_ms=2_000, token_id=0xAB, public_key=b"key"
    )


def test_the_token_that_signed_a_url_pays_for_it_under_another_name() -> None:
    url, token = signed("ann"), Identity("ann", READ, credential=token_credential(0xAB))
    assert (url.payer, url.scopes) == (token.payer, READ)
    assert url.name != token.name
    assert repr(url) == "Identity('signed:ann')"
    assert token.credential == "token 00000000000000ab"
    assert url.credential == "signed URL of token 00000000000000ab"


def test_a_signed_url_ends_with_its_token() -> None:
    """Its own end is told beside, for what the client is answered."""
    url = signed("ann")
    assert [url.has_ended(now_ms) for now_ms in (999, 1_000)] == [False, True]
    assert url.expires_ms == 2_000
    assert not Identity("ann", READ).has_ended(1 << 60), "without an end it lasts"
