"""JWTs: what a valid one permits, and that no other is taken."""

from __future__ import annotations

import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from streamd.auth.identity import Identity
from streamd.auth.jwks import parse_keys
from streamd.auth.jwt import LEEWAY_S, MAX_BYTES, JWTRefused, UnknownKey, verify
from tests.auth.provider import (
    AUDIENCE,
    ISSUER,
    NOW_MS,
    NOW_S,
    POLICY,
    SigningKey,
    claims,
    encoded,
    key_set,
    signing_key,
)

ONE, RSA = signing_key("one"), signing_key("rsa", "RS256")
STRANGER = signing_key("stranger")
KEYS = parse_keys(key_set(ONE, RSA), POLICY.algorithms)


def identity(token: bytes, now_s: float = NOW_S) -> Identity:
    return verify(token, KEYS, POLICY, int(now_s * 1000))


def of(**others: Any) -> Identity:
    """The identity of a JWT with these claims."""
    return identity(ONE.sign(claims(**others)))


def refuses(token: bytes, why: str, now_s: float = NOW_S) -> None:
    with pytest.raises(JWTRefused, match=why) as refused:
        identity(token, now_s)
    assert "secret" not in str(refused.value)


def permits(who: Identity, verb: Any, bucket: str, name: str = "") -> bool:
    return who.scopes.permit(verb, bucket.encode() + b"\0" + name.encode())


# -- what is valid --


def test_a_valid_jwt_is_an_identity_until_it_expires() -> None:
    who = of()
    assert who.name == "jwt:ada"
    assert who.ends_ms == (NOW_S + 300 + LEEWAY_S) * 1000
    assert permits(who, "read", "agents", "run-1")
    assert not permits(who, "append", "agents", "run-1")


@pytest.mark.parametrize("key", [ONE, RSA], ids=["EdDSA", "RS256"])
def test_each_key_of_the_provider_signs(key: SigningKey) -> None:
    assert identity(key.sign(claims())).name == "jwt:ada"


@pytest.mark.parametrize(
    "scope", ["read:a/* append:a/x", ["read:a/*", "append:a/x"], "  openid read:a/*  append:a/x "]
)
def test_scopes_are_a_text_or_an_array(scope: object) -> None:
    who = of(scope=scope)
    assert permits(who, "read", "a", "b")
    assert permits(who, "append", "a", "x")
    assert not permits(who, "append", "a", "y")


@pytest.mark.parametrize(
    "scope",
    [
        None, "", "openid profile", "read:", "read", "*", "*:*", "root:*", "read:a", "read:/a",
        "read:../b", "read:a/*/b", "READ:*", 7, {"read:*": 1}, [["read:*"]], [7, None], True,
        "read:a\\*",
    ],
)  # fmt: skip
def test_what_is_not_a_scope_permits_nothing(scope: object) -> None:
    who = of(scope=scope, sub="nobody")
    for verb in ("read", "append", "admin", "operate"):
        assert not permits(who, verb, "a", "b")
        assert not permits(who, verb, "")


def test_every_jwt_has_the_scopes_for_everyone_with_its_own_claims() -> None:
    assert permits(of(scope=None), "read", "users", "ada/inbox")
    assert not permits(of(scope=None), "read", "users", "bob/inbox")


def test_roles_give_the_scopes_that_the_configuration_has_for_them() -> None:
    who = of(realm={"roles": ["ops", "unknown", 7]}, tenant="acme")
    assert who.scopes.permit("operate", b"metrics")
    assert permits(who, "append", "acme", "x")
    assert not permits(who, "append", "other", "x")


def test_a_role_may_be_one_text_and_its_claim_may_have_a_dot_in_its_name() -> None:
    assert of(realm={"roles": "ops"}).scopes.permit("operate", b"metrics")
    assert of(**{"realm.roles": "ops"}).scopes.permit("operate", b"metrics")
    for realm in ("ops", {"roles": {"ops": 1}}, {"roles": None}, ["roles"], {"role": "ops"}):
        assert not of(realm=realm).scopes.permit("operate", b"metrics")


@pytest.mark.parametrize("sub", ["*", "a*", "a/../b", "a/b", "..", "a\\b"])
def test_a_subject_cannot_widen_a_template(sub: str) -> None:
    refuses(ONE.sign(claims(sub=sub)), "a claim that a scope template uses")


def test_a_subject_may_have_a_slash_where_no_template_names_it() -> None:
    policy = POLICY._replace(everyone=())
    token = ONE.sign(claims(sub="spiffe://example/worker"))
    assert verify(token, KEYS, policy, NOW_MS).name == "jwt:spiffe://example/worker"


@pytest.mark.parametrize("sub", [None, "", 7, "a" * 256, "a\nb", "a\0", "a\u202eb", "\ud800", []])
def test_a_subject_that_is_not_a_plain_text_is_refused(sub: object) -> None:
    refuses(ONE.sign(claims(sub=sub)), "sub")


def test_scopes_are_limited_as_those_of_tokens_are() -> None:
    assert of(scope=[f"read:a/{number}" for number in range(99)])
    refuses(ONE.sign(claims(scope=[f"read:a/{number}" for number in range(100)])), "too many")


# -- what is not --


@pytest.mark.parametrize("name", ["iss", "aud", "exp", "sub"])
def test_a_claim_that_is_missing_is_not_assumed(name: str) -> None:
    refuses(ONE.sign(claims(**{name: None})), name)


@pytest.mark.parametrize("issuer", ["https://id.example/", "https://ID.example", "", [ISSUER]])
def test_another_issuer_is_refused(issuer: object) -> None:
    refuses(ONE.sign(claims(iss=issuer)), "iss")


@pytest.mark.parametrize("audience", ["other", "", ["other"], [], [[AUDIENCE]], {AUDIENCE: 1}, 7])
def test_a_jwt_for_another_server_is_refused(audience: object) -> None:
    refuses(ONE.sign(claims(aud=audience)), "aud")


def test_one_of_several_audiences_suffices() -> None:
    assert of(aud=["other", AUDIENCE])


def test_times_are_compared_with_a_little_leeway() -> None:
    token = ONE.sign(claims(exp=NOW_S, nbf=NOW_S - 60, iat=NOW_S - 60))
    assert identity(token, NOW_S + LEEWAY_S - 0.001)
    refuses(token, "expired", NOW_S + LEEWAY_S)
    early = ONE.sign(claims(nbf=NOW_S + 60, iat=NOW_S + 60, exp=NOW_S + 90))
    refuses(early, "nbf is in the future", NOW_S + 60 - LEEWAY_S - 0.001)
    assert identity(early, NOW_S + 60 - LEEWAY_S)
    refuses(ONE.sign(claims(iat=NOW_S + 60)), "iat is in the future")


@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
@pytest.mark.parametrize("value", ["1900000000", True, [], {}, 10**400, -(10**400)])
def test_a_time_that_is_not_a_number_is_refused(name: str, value: object) -> None:
    refuses(ONE.sign(claims(**{name: value})), f"{name} is not a number")


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_a_time_without_end_is_refused(text: bytes) -> None:
    body = json.dumps(claims(exp="X")).encode().replace(b'"X"', text)
    refuses(ONE.sign_texts(b'{"alg":"EdDSA","kid":"one"}', body), "exp|JSON")


@pytest.mark.parametrize("exp", [1e300, 10**300, NOW_S + 0.5])
def test_a_time_far_away_is_a_time(exp: float) -> None:
    ends_ms = of(exp=exp).ends_ms
    assert ends_ms is not None
    assert NOW_MS < ends_ms < 2**63


@pytest.mark.parametrize("exp", [-1e308, -1e306, -(10**300), -1, 0])
def test_a_time_long_ago_is_a_time(exp: float) -> None:
    refuses(ONE.sign(claims(exp=exp)), "it has expired")


@pytest.mark.parametrize("signature", [b"", b".", b".AA"])
@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", None])
def test_a_jwt_without_a_signature_is_refused(algorithm: str | None, signature: bytes) -> None:
    head = json.dumps({"alg": algorithm, "kid": "one"}).encode()
    token = encoded(head) + b"." + encoded(json.dumps(claims()).encode()) + signature
    refuses(token, "algorithm|signed")


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
@pytest.mark.parametrize("kid", ["one", "rsa", None])
def test_a_public_key_is_never_the_secret_of_an_hmac(algorithm: str, kid: str | None) -> None:
    for key in (ONE, RSA):
        public = key.private.public_key()
        for secret in (
            public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
            json.dumps(key.jwk()).encode(),
            b"",
        ):
            head = json.dumps({"alg": algorithm, "kid": kid}).encode()
            signed = encoded(head) + b"." + encoded(json.dumps(claims()).encode())
            digest = hmac.digest(secret, signed, "sha" + algorithm[2:])
            refuses(signed + b"." + encoded(digest), "algorithm")


def test_a_key_of_another_kind_is_refused() -> None:
    """A signature of one kind, under the name and with the key of another."""
    for key, head in (
        (ONE, {"kid": "rsa"}),
        (ONE, {"alg": "RS256"}),
        (RSA, {"kid": "one"}),
        (RSA, {"alg": "EdDSA"}),
        (RSA, {"alg": "PS256"}),
        (RSA, {"alg": "RS512"}),
    ):
        refuses(key.sign(claims(), head), "signature|algorithm")


@pytest.mark.parametrize(
    "kid", ["two", "", "../../etc/passwd", "/dev/null", "file:///dev/zero", "https://evil.example/",
            "one' OR '1'='1", "one\0", "$(reboot)", "x" * 4000],
)  # fmt: skip
def test_a_key_id_is_a_key_of_a_dictionary_and_nothing_else(kid: str) -> None:
    with pytest.raises(UnknownKey):
        identity(STRANGER.sign(claims(), {"kid": kid}))


@pytest.mark.parametrize("kid", [7, True, ["one"], {"one": 1}])
def test_a_key_id_that_is_not_a_text_is_refused(kid: object) -> None:
    refuses(ONE.sign(claims(), {"kid": kid}), "kid")


def test_keys_in_or_named_by_the_header_are_ignored() -> None:
    elsewhere = {"jku": "https://evil.example/jwks", "x5u": "https://evil.example/cert"}
    jwk = STRANGER.jwk()
    refuses(STRANGER.sign(claims(), {"kid": "one", "jwk": jwk, **elsewhere}), "signature")
    with pytest.raises(UnknownKey):
        identity(STRANGER.sign(claims(), {"jwk": jwk, "x5c": ["MIIB"], **elsewhere}))
    assert identity(ONE.sign(claims(), {"jwk": jwk, "x5c": ["MIIB"], **elsewhere}))


def test_without_a_key_id_the_only_key_of_the_kind_is_meant() -> None:
    assert identity(ONE.sign(claims(), {"kid": None}))
    refuses(STRANGER.sign(claims(), {"kid": None}), "signature")


@pytest.mark.parametrize("head", [{"crit": ["exp"]}, {"crit": []}, {"b64": False}, {"b64": True}])
def test_an_extension_is_refused(head: dict[str, Any]) -> None:
    refuses(ONE.sign(claims(), head), "extension")


@pytest.mark.parametrize("kind", ["at+jwt", "AT+JWT", "application/at+jwt", "jwt", None])
def test_types_of_access_tokens_are_taken(kind: str | None) -> None:
    assert identity(ONE.sign(claims(), {"typ": kind}))


@pytest.mark.parametrize("kind", ["logout+jwt", "secevent+jwt", "dpop+jwt", "JOSE", "", 7])
def test_a_jwt_for_another_purpose_is_refused(kind: object) -> None:
    refuses(ONE.sign(claims(), {"typ": kind}), "typ")


def test_a_jwt_that_is_bound_to_its_senders_key_is_refused() -> None:
    refuses(ONE.sign(claims(cnf={"jkt": "x"})), "cnf")


def test_names_that_occur_twice_are_refused() -> None:
    head, body = b'{"alg":"EdDSA","kid":"one"}', json.dumps(claims()).encode()
    assert identity(ONE.sign_texts(head, body))
    for twice in (
        (b'{"alg":"EdDSA","alg":"EdDSA","kid":"one"}', body),
        (head, body[:-1] + b', "scope": "admin:*"}'),
        (head, body[:-1] + b', "realm": {"roles": "a", "roles": "ops"}}'),
    ):
        refuses(ONE.sign_texts(*twice), "unique")


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"null", b'"x"', b"{", b"\xff", b"\xef\xbb\xbf{}", b"{}x", b"[" * 5000,
             b'{"a":' * 1000, "{}".encode("utf-16")],
)  # fmt: skip
def test_parts_that_are_not_objects_are_refused(text: bytes) -> None:
    refuses(ONE.sign_texts(text, json.dumps(claims()).encode()), "JSON|signed")
    refuses(ONE.sign_texts(b'{"alg":"EdDSA","kid":"one"}', text), "JSON|signed")


def test_a_deep_value_in_a_claim_is_refused() -> None:
    body = json.dumps(claims()).encode()[:-1] + b',"x":' + b"[" * 2000 + b"]" * 2000 + b"}"
    refuses(ONE.sign_texts(b'{"alg":"EdDSA","kid":"one"}', body), "JSON")


def test_a_large_jwt_is_refused_unread() -> None:
    least = len(ONE.sign(claims()))
    filling = (MAX_BYTES - least) * 3 // 4 - 20
    assert identity(ONE.sign(claims(x="a" * filling)))
    refuses(ONE.sign(claims(x="a" * (filling + 40))), "too large")


def test_other_forms_are_refused() -> None:
    token = ONE.sign(claims())
    head, body, signature = token.split(b".")
    for other in (
        head + b"." + body,
        token + b".",
        b"." + token,
        token + b"." + signature + b".x",
        head + b"=." + body + b"." + signature,
        head + b"." + body + b"." + signature + b"==",
        head + b"." + body + b"." + signature[:-1],
        token.replace(b".", b" "),
        token + b"\n",
        b"",
    ):
        refuses(other, "signed|base64url")


def test_a_jwt_signed_by_a_stranger_is_refused() -> None:
    refuses(SigningKey("one", "EdDSA", STRANGER.private).sign(claims()), "signature")


# -- whatever comes --


@given(st.binary(max_size=300))
def test_no_bytes_make_it_fail_otherwise(token: bytes) -> None:
    with pytest.raises(JWTRefused):
        identity(token)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_HEADS = st.dictionaries(
    st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jku", "jwk", "x5c", "zip"]),
    st.sampled_from(["one", "rsa", "EdDSA", "RS256", "HS256", "none"]) | _VALUES,
)
_CLAIMS = st.dictionaries(
    st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "scope", "realm", "tenant", "cnf"]),
    _VALUES,
)


@given(_HEADS)
def test_no_header_makes_it_fail_otherwise(head: dict[str, Any]) -> None:
    try:
        found = identity(ONE.sign(claims(), head))
    except (JWTRefused, UnknownKey):
        return
    assert found.name == "jwt:ada"


@given(_CLAIMS)
def test_no_claims_make_it_fail_otherwise(others: dict[str, Any]) -> None:
    try:
        found = identity(ONE.sign({**claims(), **others}))
    except JWTRefused:
        return
    assert found.name.startswith("jwt:")
    assert found.ends_ms is not None
    assert found.ends_ms > NOW_MS


@given(st.data())
def test_a_jwt_with_any_bit_changed_is_refused(data: st.DataObject) -> None:
    token = bytearray(ONE.sign(claims()))
    place = data.draw(st.integers(0, len(token) - 1))
    token[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((JWTRefused, UnknownKey)):
        identity(bytes(token))
