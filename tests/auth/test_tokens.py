"""Tokens: their one form, and what is kept of them."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamd.auth import identity, tokens
from streamd.auth.scopes import Scopes, parse_scope

ids = st.integers(0, tokens.MAX_TOKEN_ID)
secrets = st.binary(min_size=tokens.SECRET_BYTES, max_size=tokens.SECRET_BYTES)


@given(ids, secrets)
def test_a_minted_token_is_parsed_to_its_id_and_digest(token_id: int, secret: bytes) -> None:
    token = tokens.mint(token_id, secret).encode()
    presented = tokens.parse_token(token)
    assert presented == (token_id, sha256(token).digest())
    assert tokens.bearer(b"Bearer " + token) == token


@given(ids, secrets, st.integers(0, 51), st.integers(0, 255))
def test_a_token_with_another_byte_is_no_token_or_another(
    token_id: int, secret: bytes, at: int, byte: int
) -> None:
    token = bytearray(tokens.mint(token_id, secret).encode())
    before = tokens.digest_of(bytes(token))
    if token[at] == byte:
        return
    token[at] = byte
    presented = tokens.parse_token(bytes(token))
    assert presented is None or not tokens.is_same_digest(presented.digest, before)


@given(st.binary(max_size=80))
@example(b"sd_")
@example(b"sd_0000000000000000_" + b"A" * 32)
@example(b"sd_8000000000000000_" + b"a" * 32)
@example(b"sd_000000000000000_" + b"a" * 33)
@example(b"sd_0000000000000000_" + b"a" * 32 + b"\n")
def test_other_bytes_are_no_token(raw: bytes) -> None:
    """A token is over 50 characters of a fixed form: no random bytes are one."""
    assert tokens.parse_token(raw) is None


@given(st.binary(max_size=80) | st.builds(b"Bearer %b".__mod__, st.binary(max_size=80)))
def test_credentials_hold_a_token_or_nothing(raw: bytes) -> None:
    found = tokens.bearer(raw)
    assert found is None or (found in raw and b"," not in found and b" " not in found)


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER   "])
def test_the_scheme_is_read_in_any_case(scheme: bytes) -> None:
    assert tokens.bearer(scheme + b"sd_x") == b"sd_x"


def test_credentials_are_as_long_as_their_token() -> None:
    """What is remembered of them is limited by their number."""
    assert tokens.bearer(b"Bearer" + b" " * 16 + b"sd_x" + b" " * 16) == b"sd_x"
    assert tokens.bearer(b"Bearer" + b" " * 17 + b"sd_x") is None
    assert tokens.bearer(b"Bearer sd_x" + b" " * 17) is None


@pytest.mark.parametrize(
    "raw", [b"", b"Bearer", b"Bearer ", b"Basic abc", b"Bearera", b"Bearer a, Bearer a", b"a"]
)
def test_other_credentials_hold_no_token(raw: bytes) -> None:
    assert tokens.bearer(raw) is None


@given(ids)
def test_a_shown_id_names_its_token(token_id: int) -> None:
    shown = tokens.shown_id(token_id)
    assert tokens.parse_id(shown) == token_id
    assert not tokens.is_token_name(shown)


@pytest.mark.parametrize("text", ["", "1", "f" * 16, "0" * 15 + "G", "0" * 17, "0" * 16 + "\n"])
def test_other_texts_are_no_id(text: str) -> None:
    assert tokens.parse_id(text) is None


@pytest.mark.parametrize("name", ["ci", "a" * 64, "team-7.bot_2@site"])
def test_names_are_short_and_plain(name: str) -> None:
    assert tokens.is_token_name(name)


@pytest.mark.parametrize("name", ["", "a" * 65, "-a", "a b", "é", "a/b", "a\n"])
def test_other_names_are_refused(name: str) -> None:
    assert not tokens.is_token_name(name)


def test_an_identity_ends_at_its_time() -> None:
    reads = Scopes([parse_scope("read:*")])
    found = identity.Identity("ci", reads, ends_ms=1000)
    assert not found.has_ended(999)
    assert found.has_ended(1000)
    assert not identity.Identity("ci", reads).has_ended(2**62)


def test_the_root_may_do_everything_and_never_ends() -> None:
    root = identity.root("root", bytes(32))
    assert root.scopes.permit("operate", b"metrics")
    assert root.scopes.permit("delete", b"bucket\0name")
    assert not root.has_ended(2**62)


def test_no_representation_shows_a_digest() -> None:
    assert repr(identity.root("root", b"digest")) == "Identity('root')"
