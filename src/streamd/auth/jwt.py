"""JSON Web Tokens of an identity provider: who sent a request, and what the provider's claims
permit (RFC 7519, RFC 7515; RFC 8725 for what can go wrong).

Only the algorithm's name, the key id and the type are taken from a header, and the id is a key of a
dictionary. Headers that name or hold keys (`jku`, `x5u`, `jwk`, `x5c`) are ignored. What is cheap
is checked first: a signature is verified only if there is a key for it.
"""

from __future__ import annotations

import json
import math
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from streamd.auth.identity import Identity
from streamd.auth.jwks import KeySet
from streamd.auth.scopes import MAX_SCOPES, MAX_SCOPES_BYTES, Scope, ScopeError, Scopes, parse_scope
from streamd.auth.templates import Template, filled

# Thousands are kept in memory by the bytes with which they came.
MAX_BYTES = 8 * 1024
# How much the clocks of the provider and of the cluster may differ.
LEEWAY_S = 10
MAX_SUBJECT_CHARACTERS = 255

_COMPACT = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
# A signature for another purpose is not for us, although it has our issuer's key (RFC 8725, 3.11).
_TYPES = frozenset(("jwt", "at+jwt", "application/at+jwt"))
_LAST_MS = 2**63 - 1


class JWTRefused(Exception):
    """A JWT is not valid here; the message, which has nothing of the JWT, says why."""


class UnknownKey(Exception):
    """A JWT is signed with a key that is not in the set."""


class Policy(NamedTuple):
    """What a JWT must say, and what its claims permit.

    `scope_claim` holds scopes; those that are not scopes of streamd permit nothing. `roles` has the
    templates for each value of `roles_claim`, and `everyone` those for all JWTs.
    """

    issuer: str
    audience: str
    algorithms: frozenset[str]
    scope_claim: str
    roles_claim: str
    everyone: tuple[Template, ...]
    roles: Mapping[str, tuple[Template, ...]]


def verify(token: bytes, keys: KeySet, policy: Policy, now_ms: int) -> Identity:
    """The identity that a JWT stands for. `now_ms` is in ms since the epoch.

    Raises `JWTRefused`, and `UnknownKey` before the signature or a claim is looked at.
    """
    parts = _COMPACT.fullmatch(token) if len(token) <= MAX_BYTES else None
    if parts is None:
        raise JWTRefused("it is not a signed JWT, or it is too large")
    kid, algorithm = _key_of(_object(_decoded(parts[1])), policy)
    if not keys.has(kid):
        raise UnknownKey
    signed, signature = token[: parts.end(2)], _decoded(parts[3])
    if not keys.verify(kid, algorithm, signed, signature):
        raise JWTRefused("the signature does not verify with any key for this algorithm")
    claims = _object(_decoded(parts[2]))
    ends_ms = _check_claims(claims, policy, now_ms)
    name = _name(claims)
    scopes = Scopes(_scopes(claims, policy))
    return Identity(name, scopes, credential="JWT", ends_ms=ends_ms)


def _key_of(header: Mapping[str, Any], policy: Policy) -> tuple[str | None, str]:
    """Key id and algorithm. Raises `JWTRefused`."""
    algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in policy.algorithms:
        raise JWTRefused("its algorithm is not among auth.jwt.algorithms")
    if "crit" in header or "b64" in header:
        raise JWTRefused(
            "its header has an extension (crit or b64), which streamd does not support"
        )
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise JWTRefused("its typ is not that of an access token")
    if kid is not None and not isinstance(kid, str):
        raise JWTRefused("its kid is not a string")
    return kid, algorithm


def _check_claims(claims: Mapping[str, Any], policy: Policy, now_ms: int) -> int:
    """When a JWT with these claims ends, in ms. Raises `JWTRefused`."""
    if claims.get("iss") != policy.issuer:
        raise JWTRefused("iss does not match auth.jwt.issuer")
    audience = claims.get("aud")
    if policy.audience not in (audience if isinstance(audience, list) else [audience]):
        raise JWTRefused("aud does not match auth.jwt.audience")
    if "cnf" in claims:
        raise JWTRefused("it has a cnf claim, and streamd does not check proof of possession")
    ends_s = _time_s(claims, "exp")
    if ends_s is None:
        raise JWTRefused("it has no exp")
    ends_ms = math.ceil(max(0, min((ends_s + LEEWAY_S) * 1000, _LAST_MS)))
    if ends_ms <= now_ms:
        raise JWTRefused("it has expired")
    for name in ("nbf", "iat"):
        begins_s = _time_s(claims, name)
        if begins_s is not None and (begins_s - LEEWAY_S) * 1000 > now_ms:
            raise JWTRefused(f"{name} is in the future")
    return ends_ms


def _time_s(claims: Mapping[str, Any], name: str) -> float | None:
    """A claim of type NumericDate, in s since the epoch (RFC 7519 section 2). Raises
    `JWTRefused`."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise JWTRefused(f"{name} is not a number")
    try:
        # An integer may have more digits than any float.
        if math.isfinite(value):
            return value
    except OverflowError:
        pass
    raise JWTRefused(f"{name} is not a number")


def _name(claims: Mapping[str, Any]) -> str:
    """The name in logs. Raises `JWTRefused`."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT_CHARACTERS:
        raise JWTRefused(f"sub is not a string of 1 to {MAX_SUBJECT_CHARACTERS} characters")
    if not subject.isprintable():
        raise JWTRefused("sub contains unprintable characters")
    return f"jwt:{subject}"


def _scopes(claims: Mapping[str, Any], policy: Policy) -> list[Scope]:
    """What the claims permit. Raises `JWTRefused`."""
    given = _texts(claims, policy.scope_claim, separator=" ")
    roles = dict.fromkeys(_texts(claims, policy.roles_claim))
    templates = [*policy.everyone, *(one for role in roles for one in policy.roles.get(role, ()))]
    try:
        scopes = [*_understood(given), *filled(templates, claims)]
    except ScopeError:
        raise JWTRefused("a claim that a scope template uses is not one plain name") from None
    if len(scopes) > MAX_SCOPES or sum(len(one.pattern) for one in scopes) > MAX_SCOPES_BYTES:
        raise JWTRefused("it has too many scopes")
    return scopes


def _understood(texts: Iterable[str]) -> Iterable[Scope]:
    """Those that are scopes: a provider's ``openid`` permits nothing here."""
    for text in texts:
        try:
            yield parse_scope(text)
        except ScopeError:
            continue


def _texts(claims: Mapping[str, Any], name: str, separator: str | None = None) -> list[str]:
    """A claim that holds an array of texts, or one text, of several with a separator between them.

    The name may be a path, such as ``realm_access.roles``.
    """
    value: object = claims.get(name)
    if value is None and "." in name:
        value = claims
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, str):
        return [value] if separator is None else value.split(separator)
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _decoded(text: bytes) -> bytes:
    """Base64url without padding, in its one form (RFC 7515 section 2). Raises `JWTRefused`."""
    try:
        data = urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except ValueError:
        data = b""
    if urlsafe_b64encode(data).rstrip(b"=") != text:
        raise JWTRefused("one of its parts is not base64url")
    return data


def _object(text: bytes) -> dict[str, Any]:
    """A JSON object without names that occur twice (RFC 7519 section 4). Raises `JWTRefused`."""
    try:
        found = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise JWTRefused("one of its parts is not a JSON object with unique names")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
