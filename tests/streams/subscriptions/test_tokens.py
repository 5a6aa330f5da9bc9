"""Tokens of wakes: only what the cluster made is believed, for its kind and its time."""

from __future__ import annotations

from base64 import urlsafe_b64encode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.auth.tokens import bearer
from streamd.streams.subscriptions.tokens import (
    MAX_TOKEN_BYTES,
    TokenExpired,
    TokenInvalid,
    TokenKind,
    WakeToken,
    is_wake_token,
    mint,
    verify,
)

KEYS = {1: b"one" * 8, 2: b"two" * 8}
TOKEN = WakeToken(1, 7, 3, "w_0123", "worker-1", 1_000)
TEXT = mint("callback", TOKEN, KEYS[1]).encode()

numbers = st.integers(0, 2**63 - 1)


@given(
    st.builds(
        WakeToken, st.sampled_from([1, 2]), numbers, numbers, st.text(max_size=80),
        st.text(max_size=256), numbers,
    ),
    st.sampled_from(("callback", "write")),
)  # fmt: skip
def test_what_was_minted_is_verified_until_it_ends(token: WakeToken, kind: TokenKind) -> None:
    raw = mint(kind, token, KEYS[token.key_number]).encode()
    assert is_wake_token(raw)
    assert bearer(b"Bearer " + raw) == raw
    assert verify(raw, kind, KEYS.get, token.expires_ms) == token
    assert verify(raw, kind, KEYS.get, 0, number=token.number) == token
    with pytest.raises(TokenExpired):
        verify(raw, kind, KEYS.get, token.expires_ms + 1)


@given(st.integers(0, len(TEXT) - 1), st.integers(1, 255))
def test_a_changed_token_is_invalid(at: int, change: int) -> None:
    changed = bytearray(TEXT)
    changed[at] ^= change
    with pytest.raises(TokenInvalid):
        verify(bytes(changed), "callback", KEYS.get, 0)


@given(st.binary(max_size=200) | st.from_regex(rb"ds[cw]_[A-Za-z0-9_-]{1,80}\.[A-Za-z0-9_-]{43}"))
def test_made_up_bytes_are_invalid(raw: bytes) -> None:
    with pytest.raises(TokenInvalid):
        verify(raw, "callback", KEYS.get, 0)


def test_neither_kind_passes_for_the_other() -> None:
    write = mint("write", TOKEN, KEYS[1]).encode()
    for raw, kind in ((TEXT, "write"), (write, "callback"), (b"dsw_" + TEXT[4:], "write")):
        with pytest.raises(TokenInvalid):
            verify(raw, kind, KEYS.get, 0)  # type: ignore[arg-type]


def test_a_token_of_another_subscription_is_invalid_even_when_expired() -> None:
    with pytest.raises(TokenInvalid):
        verify(TEXT, "callback", KEYS.get, 9_999, number=8)


def test_a_token_of_a_forgotten_or_another_key_is_invalid() -> None:
    for keys in ({2: KEYS[2]}, {1: KEYS[2]}):
        with pytest.raises(TokenInvalid):
            verify(TEXT, "callback", keys.get, 0)


def test_a_payload_of_another_form_is_invalid() -> None:
    for payload in (b"", b"\x93\x01", msgspec.msgpack.encode([1, 2, 3, 4, 5, 6])):
        encoded = urlsafe_b64encode(payload).rstrip(b"=")
        with pytest.raises(TokenInvalid):
            verify(b"dsc_" + encoded + TEXT[-44:], "callback", KEYS.get, 0)


def test_a_text_longer_than_any_token_is_not_looked_at() -> None:
    raw = b"dsc_" + b"A" * MAX_TOKEN_BYTES + TEXT[-44:]
    assert not is_wake_token(raw)
    with pytest.raises(TokenInvalid):
        verify(raw, "callback", KEYS.get, 0)
