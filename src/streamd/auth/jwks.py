"""Sets of public keys with which an identity provider signs (RFC 7517, RFC 8037).

A key is taken if it is public, meant for signatures, and of a kind and size that fits an accepted
algorithm (RFC 7518). All others are passed over: providers list keys for other purposes as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from jwt.algorithms import get_default_algorithms
from jwt.exceptions import PyJWTError

MAX_KEYS = 100
# RFC 7518 section 3.3 demands the least; the time of a verification grows with the square.
MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192

_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
# By kty and crv: the algorithms, and the members that make the public key.
_KINDS: Mapping[tuple[str | None, str | None], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("RSA", None): (_RSA, ("kty", "n", "e")),
    ("EC", "P-256"): (("ES256",), ("kty", "crv", "x", "y")),
    ("EC", "P-384"): (("ES384",), ("kty", "crv", "x", "y")),
    ("EC", "P-521"): (("ES512",), ("kty", "crv", "x", "y")),
    ("OKP", "Ed25519"): (("EdDSA",), ("kty", "crv", "x")),
    ("OKP", "Ed448"): (("EdDSA",), ("kty", "crv", "x")),
}
# Base64 of the largest RSA modulus: a longer text is not decoded.
_MAX_MEMBER_CHARACTERS = MAX_RSA_BITS // 6 + 4
_ALGORITHMS = get_default_algorithms()
# By curve: the prime of its field, and the y of its points of low order, up to the sign. Those of
# order 1 and 2 have y = 1 and -1, those of order 4 have 0; Ed25519 has four of order 8.
_ED25519, _ED448 = 2**255 - 19, 2**448 - 2**224 - 1
_ORDER_8 = 2707385501144840649318225287225658788936804267575313519463743609750303402022
_EDWARDS = {
    "Ed25519": (_ED25519, frozenset((0, 1, _ORDER_8))),
    "Ed448": (_ED448, frozenset((0, 1))),
}

# What makes a public key, in the order of `_KINDS`.
Members = tuple[str, ...]


class KeySetError(ValueError):
    """A text is not a set of keys of which one could be used; the message says why."""


class KeySet:
    """Public keys by their ids and algorithms. Equal sets verify the same signatures."""

    def __init__(self, found: Iterable[tuple[str | None, tuple[str, ...], Members, Any]]) -> None:
        """`found` has key id, algorithms, members and key; of keys with the same id and algorithm
        the first is used."""
        self._keys: dict[tuple[str | None, str], tuple[Members, Any]] = {}
        by_algorithm: dict[str, dict[Members, Any]] = {}
        for kid, algorithms, members, key in found:
            for algorithm in algorithms:
                self._keys.setdefault((kid, algorithm), (members, key))
                by_algorithm.setdefault(algorithm, {})[members] = key
        # For a signature without an id, where only one key is possible.
        self._alone = {
            algorithm: next(iter(keys.values()))
            for algorithm, keys in by_algorithm.items()
            if len(keys) == 1
        }
        self._ids = frozenset(kid for kid, _ in self._keys)
        self._shape = {place: members for place, (members, _) in self._keys.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeySet) and (self._shape, self._alone.keys()) == (
            other._shape,
            other._alone.keys(),
        )

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(set(self._shape.values()))

    def has(self, kid: str | None) -> bool:
        """Whether there is a key with this id; without one, whether there is any key."""
        return kid is None or kid in self._ids

    def verify(self, kid: str | None, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Whether the key with this id has made the signature by this algorithm. Without an id it
        must be the only key for the algorithm. Takes 30 to 150 µs if there is such a key."""
        if kid is None:
            key = self._alone.get(algorithm)
        else:
            _, key = self._keys.get((kid, algorithm), ((), None))
        return key is not None and bool(_ALGORITHMS[algorithm].verify(signed, key, signature))


def parse_keys(text: bytes, algorithms: Iterable[str]) -> KeySet:
    """The keys in a JWK set that fit one of `algorithms`. Raises `KeySetError`."""
    try:
        found = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise KeySetError(f"this is not JSON: {type(error).__name__}") from None
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list):
        raise KeySetError('this is not a JWK set (an object with an array "keys")')
    if len(keys) > MAX_KEYS:
        raise KeySetError(f"there are more than {MAX_KEYS} keys")
    accepted = frozenset(algorithms)
    parsed = (_parse(key, accepted) for key in keys if isinstance(key, dict))
    usable = KeySet(key for key in parsed if key is not None)
    if not len(usable):
        raise KeySetError(
            f"none of the {len(keys)} keys can be used with {', '.join(sorted(accepted))}"
        )
    return usable


def _parse(
    jwk: Mapping[str, Any], accepted: frozenset[str]
) -> tuple[str | None, tuple[str, ...], Members, Any] | None:
    """Key id, algorithms, members and key; None for one that is not used."""
    kid, algorithm, operations = jwk.get("kid"), jwk.get("alg"), jwk.get("key_ops")
    curve = jwk.get("crv") if jwk.get("kty") != "RSA" else None
    place = jwk.get("kty"), curve
    if not all(part is None or isinstance(part, str) for part in (kid, algorithm, *place)):
        return None
    if jwk.get("use", "sig") != "sig" or place not in _KINDS:
        return None
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return None
    possible, names = _KINDS[place]
    usable = tuple(one for one in possible if one in accepted and algorithm in (None, one))
    # A private key that was published by mistake is used as the public one that it holds.
    members = tuple(jwk.get(name, "") for name in names)
    if not usable or not all(isinstance(part, str) for part in members):
        return None
    if any(len(part) > _MAX_MEMBER_CHARACTERS for part in members):
        return None
    key = _key(dict(zip(names, members, strict=True)), usable[0])
    return None if key is None else (kid, usable, members, key)


def _is_weak(curve: str, encoded: bytes) -> bool:
    """Whether the public key of an Edwards curve is one that verifies what nobody signed: a point
    of low order, or one that is not encoded as RFC 8032 demands (a coordinate of p or more)."""
    prime, weak = _EDWARDS[curve]
    sign_bit = 1 << (8 * len(encoded) - 1)
    y = int.from_bytes(encoded, "little") & (sign_bit - 1)
    return y >= prime or y in weak or prime - y in weak


def _key(members: dict[str, Any], algorithm: str) -> Any:
    """The public key with these members, None if they make none."""
    try:
        # PyJWT passes on what the decoding and OpenSSL raise.
        key = _ALGORITHMS[algorithm].from_jwk(members)
        _ALGORITHMS[algorithm].prepare_key(key)
        if members["kty"] == "OKP" and _is_weak(members["crv"], key.public_bytes_raw()):
            return None
    except (PyJWTError, UnsupportedAlgorithm, ValueError, TypeError):
        return None
    if members["kty"] == "RSA" and not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
        return None
    return key
