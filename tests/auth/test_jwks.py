"""Sets of keys: those that fit are used, all others passed over."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.auth.jwks import MAX_KEYS, KeySetError, parse_keys
from tests.auth.provider import (
    ALGORITHMS,
    SigningKey,
    ed448_key,
    encoded,
    jwks,
    key_set,
    signing_key,
)

ALL = ("EdDSA", "ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
ONE, TWO = signing_key("one"), signing_key("two")
RSA = signing_key("rsa", "RS256")


def signed_by(
    key: SigningKey, algorithm: str | None = None
) -> tuple[str | None, str, bytes, bytes]:
    """What `KeySet.verify` takes."""
    token = SigningKey(key.kid, algorithm or key.algorithm, key.private).sign({})
    signed, _, signature = token.rpartition(b".")
    return key.kid, algorithm or key.algorithm, signed, urlsafe_b64decode(signature + b"==")


@pytest.mark.parametrize("algorithm", ALL)
def test_every_algorithm_that_can_be_configured_verifies_its_signatures(algorithm: str) -> None:
    key = RSA if algorithm[1] == "S" and algorithm[0] in "RP" else signing_key("k", algorithm)
    keys = parse_keys(key_set(key), [algorithm])
    kid, _, signed, signature = signed_by(key, algorithm)
    assert keys.verify(kid, algorithm, signed, signature)
    assert not keys.verify(kid, algorithm, signed + b"x", signature)
    assert not keys.verify(kid, algorithm, signed, signature[:-1])
    assert not keys.verify(kid, algorithm, signed, b"")


def test_ed448_is_eddsa_too() -> None:
    key = ed448_key("448")
    assert parse_keys(key_set(key), ["EdDSA"]).verify(*signed_by(key))


def test_a_key_verifies_only_with_algorithms_of_its_kind() -> None:
    keys = parse_keys(key_set(ONE, RSA), ALL)
    kid, _, signed, signature = signed_by(RSA)
    assert keys.verify(kid, "RS256", signed, signature)
    for algorithm in set(ALL) - {"RS256"}:
        assert not keys.verify(kid, algorithm, signed, signature)
        assert not keys.verify("one", algorithm, signed, signature)


@pytest.mark.parametrize(
    "members",
    [
        {"use": "enc"},
        {"key_ops": ["encrypt"]},
        {"key_ops": "verify"},
        {"alg": "ES256"},
        {"alg": 7},
        {"kty": "oct", "k": "c2VjcmV0"},
        {"kty": "RSA"},
        {"kty": "new"},
        {"kty": None},
        {"crv": "X25519"},
        {"crv": "P-256"},
        {"x": ""},
        {"x": "AAAA"},
        {"x": None},
        {"x": "A" * 100_000},
        {"kid": ["one"]},
    ],
)
def test_a_key_that_does_not_fit_is_passed_over(members: dict[str, Any]) -> None:
    keys = parse_keys(jwks([ONE.jwk(**members), TWO.jwk()]), ALL)
    assert len(keys) == 1
    assert not keys.verify(*signed_by(ONE))
    assert keys.verify(*signed_by(TWO))


@pytest.mark.parametrize("bits", [1024, 2047])
def test_a_short_rsa_key_is_passed_over(bits: int) -> None:
    with pytest.raises(KeySetError, match="none of the 1 keys"):
        parse_keys(key_set(signing_key("short", "RS256", bits)), ALL)


def test_a_point_that_is_not_on_its_curve_is_passed_over() -> None:
    jwk = signing_key("ec", "ES256").jwk(x=encoded(b"\1" * 32).decode())
    with pytest.raises(KeySetError):
        parse_keys(jwks([jwk]), ALL)


def test_of_keys_with_one_id_the_first_is_used() -> None:
    other = SigningKey("one", "EdDSA", TWO.private)
    keys = parse_keys(key_set(ONE, other), ALL)
    assert keys.verify(*signed_by(ONE))
    assert not keys.verify(*signed_by(other))


def test_keys_of_different_kinds_may_have_one_id() -> None:
    rsa = SigningKey("one", "RS256", RSA.private)
    keys = parse_keys(key_set(ONE, rsa), ALL)
    assert keys.verify(*signed_by(ONE))
    assert keys.verify(*signed_by(rsa))


def test_without_an_id_only_the_single_key_of_its_kind_is_possible() -> None:
    keys = parse_keys(key_set(ONE, RSA), ALL)
    _, algorithm, signed, signature = signed_by(ONE)
    assert keys.has(None)
    assert keys.verify(None, algorithm, signed, signature)
    assert not parse_keys(key_set(ONE, TWO), ALL).verify(None, algorithm, signed, signature)


def test_a_private_key_published_by_mistake_only_verifies() -> None:
    private = ALGORITHMS["RS256"].to_jwk(RSA.private, as_dict=True)
    private.pop("key_ops")
    keys = parse_keys(jwks([{**private, "kid": "rsa"}]), ["RS256"])
    assert keys.verify(*signed_by(RSA))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html>",
        b"\xff",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [1, null, "x"]}',
        b"[" * 100_000,
        b'{"keys": ' + b"[" * 100_000,
        jwks([ONE.jwk()] * (MAX_KEYS + 1)),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_not_a_set_of_usable_keys_is_refused(text: bytes) -> None:
    with pytest.raises(KeySetError):
        parse_keys(text, ALL)


def test_sets_are_equal_if_they_verify_the_same() -> None:
    one = parse_keys(key_set(ONE, TWO), ALL)
    assert one == parse_keys(jwks([TWO.jwk(x5t="new"), {"kty": "new"}, ONE.jwk()]), ALL)
    assert one != parse_keys(key_set(ONE), ALL)
    assert one != parse_keys(key_set(ONE, SigningKey("two", "EdDSA", ONE.private)), ALL)
    # The second key of an id is not used, but without an id neither is possible.
    alone, shadowed = parse_keys(key_set(ONE), ALL), SigningKey("one", "EdDSA", TWO.private)
    assert alone != parse_keys(key_set(ONE, shadowed), ALL)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
_MEMBERS = st.sampled_from(["kty", "crv", "x", "y", "n", "e", "kid", "use", "alg", "key_ops"])
_VALUES = st.sampled_from(["RSA", "EC", "OKP", "P-256", "Ed25519", "AQAB", "sig"]) | _JSON


@given(st.lists(st.dictionaries(_MEMBERS, _VALUES) | _JSON, max_size=4))
def test_no_set_makes_the_parser_fail_otherwise(keys: list[object]) -> None:
    text = json.dumps({"keys": keys}).encode("utf-8", "surrogatepass")
    with suppress(KeySetError):
        assert len(parse_keys(text, ALL))


# Points of order 1, 2, 4 and 8 (Ed25519) with either sign, and encodings with y >= p, of which RFC
# 8032 section 5.1.3 says that decoding fails. A signature of zeros verifies under some of them.
P_25519, P_448 = 2**255 - 19, 2**448 - 2**224 - 1
Y_8 = int.from_bytes(
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"
)
WEAK = {
    ("Ed25519", 32): [0, 1, P_25519 - 1, Y_8, P_25519 - Y_8, P_25519, P_25519 + 1, P_25519 + 18],
    ("Ed448", 57): [0, 1, P_448 - 1, P_448, P_448 + 1],
}


@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize(
    ("curve", "size", "y"), [(*curve, y) for curve, points in WEAK.items() for y in points]
)
def test_a_key_under_which_nobody_has_to_sign_is_not_used(
    curve: str, size: int, y: int, sign: int
) -> None:
    raw = (y | sign << (8 * size - 1)).to_bytes(size, "little")
    x = urlsafe_b64encode(raw).rstrip(b"=").decode()
    weak = {"kty": "OKP", "crv": curve, "x": x, "kid": "weak"}
    with pytest.raises(KeySetError):
        parse_keys(jwks([weak]), ["EdDSA"])
    keys = parse_keys(jwks([weak, ONE.jwk()]), ["EdDSA"])
    assert not keys.has("weak")
    assert keys.has("one")
