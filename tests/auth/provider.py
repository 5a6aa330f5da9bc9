"""An identity provider of a test: its keys, and the JWTs that it signs."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import get_default_algorithms

from streamd.auth.jwt import Policy
from streamd.auth.templates import parse_template

ISSUER = "https://id.example"
AUDIENCE = "streamd"
NOW_S = 1_800_000_000
NOW_MS = NOW_S * 1000
_CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
ALGORITHMS = get_default_algorithms()
# The policy of a cluster that trusts this provider.
POLICY = Policy(
    ISSUER,
    AUDIENCE,
    frozenset(("EdDSA", "ES256", "RS256")),
    "scope",
    "realm.roles",
    (parse_template("read:users/{sub}/*"),),
    {"ops": (parse_template("operate:metrics"), parse_template("append:{tenant}/*"))},
)


class SigningKey:
    """A private key with an id."""

    def __init__(self, kid: str | None, algorithm: str, private: Any) -> None:
        self.kid = kid
        self.algorithm = algorithm
        self.private = private

    def jwk(self, **members: Any) -> dict[str, Any]:
        """The public key, as a provider publishes it."""
        public = ALGORITHMS[self.algorithm].to_jwk(self.private.public_key(), as_dict=True)
        public.pop("key_ops", None)
        named = {} if self.kid is None else {"kid": self.kid}
        return {**public, "use": "sig", **named, **members}

    def sign(self, claims: object, header: Mapping[str, Any] | None = None) -> bytes:
        """A JWT with these claims; `header` adds to its header, and None takes away."""
        head = {"alg": self.algorithm, "typ": "JWT", "kid": self.kid, **(header or {})}
        head = {name: value for name, value in head.items() if value is not None}
        return self.sign_texts(json.dumps(head).encode(), json.dumps(claims).encode())

    def sign_texts(self, header: bytes, claims: bytes) -> bytes:
        """A JWT of these bytes, whatever they are."""
        signed = encoded(header) + b"." + encoded(claims)
        signature = ALGORITHMS[self.algorithm].sign(signed, self.private)
        return signed + b"." + encoded(signature)


@cache
def signing_key(kid: str | None = "one", algorithm: str = "EdDSA", bits: int = 2048) -> SigningKey:
    """A key, the same for the same arguments; RSA keys take long to make."""
    private: Any
    if algorithm == "EdDSA":
        private = ed25519.Ed25519PrivateKey.generate()
    elif algorithm in _CURVES:
        private = ec.generate_private_key(_CURVES[algorithm])
    else:
        private = rsa.generate_private_key(65537, bits)
    return SigningKey(kid, algorithm, private)


def ed448_key(kid: str) -> SigningKey:
    """A key on the larger of the two Edwards curves."""
    return SigningKey(kid, "EdDSA", ed448.Ed448PrivateKey.generate())


def claims(now_s: float = NOW_S, /, **others: Any) -> dict[str, Any]:
    """Claims of a valid JWT; None takes one away."""
    found = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "ada",
        "iat": now_s - 1,
        "exp": now_s + 300,
        "scope": "read:agents/*",
        **others,
    }
    return {name: value for name, value in found.items() if value is not None}


def key_set(*keys: SigningKey) -> bytes:
    """The set that the provider publishes."""
    return jwks(key.jwk() for key in keys)


def jwks(keys: Iterable[object]) -> bytes:
    """A set of JWKs as they are."""
    return json.dumps({"keys": list(keys)}).encode()


def encoded(data: bytes) -> bytes:
    """Base64url without padding."""
    return urlsafe_b64encode(data).rstrip(b"=")
