"""What webhooks are sent: the texts of the protocol, and signatures that others can check."""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode
from random import Random

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from jwt.algorithms import OKPAlgorithm

from streamd.streams.subscriptions.signing_keys import NONCE_BYTES, SECRET_BYTES, new_key, opened
from streamd.streams.subscriptions.webhook_texts import (
    Notification,
    NotifiedStream,
    body_of,
    jwks,
    jwks_url,
    kid_of,
    says_done,
    signature,
    subscription_url,
)

KEYS = [
    new_key(number, Random(number).randbytes(SECRET_BYTES + NONCE_BYTES), sealing_secret=None)
    for number in (1, 2)
]
STREAM = NotifiedStream("events/a", "glob", "0", "1", has_pending=True)
NOTIFICATION = Notification(
    "sub", "w_1", 7, [STREAM], "https://s.example/callback", "dsc_x", 30_000
)


def decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_a_signature_is_verified_with_the_published_key() -> None:
    body = body_of(NOTIFICATION)
    value = signature(body, opened(KEYS[1], None), 1_700_000_000)
    match = re.fullmatch(r"t=(\d+),kid=([^,]+),ed25519=([A-Za-z0-9_-]{86})", value)
    assert match is not None
    [found] = [one for one in json.loads(jwks(KEYS))["keys"] if one["kid"] == match[2]]
    public = OKPAlgorithm.from_jwk(found)
    assert isinstance(public, Ed25519PublicKey)
    public.verify(decoded(match[3]), f"{match[1]}.".encode() + body)


def test_the_name_of_a_key_is_its_thumbprint() -> None:
    # The example of RFC 8037, appendix A.3.
    public_key = decoded("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")
    assert kid_of(public_key) == "ds_kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


def test_the_set_has_the_newest_key_first_and_no_secret() -> None:
    found = json.loads(jwks(KEYS))["keys"]
    assert [one["kid"] for one in found] == [kid_of(key.public_key) for key in KEYS[::-1]]
    assert {frozenset(one) for one in found} == {
        frozenset(("kty", "crv", "kid", "use", "alg", "x"))
    }


def test_a_body_has_the_fields_of_the_protocol() -> None:
    body = json.loads(body_of(NOTIFICATION))
    assert body == {
        "subscription_id": "sub",
        "wake_id": "w_1",
        "generation": 7,
        "streams": [
            {
                "path": "events/a",
                "link_type": "glob",
                "acked_offset": "0",
                "tail_offset": "1",
                "has_pending": True,
            }
        ],
        "callback_url": "https://s.example/callback",
        "callback_token": "dsc_x",
        "lease_ttl_ms": 30_000,
    }


def test_urls_for_receivers_are_below_the_configured_one() -> None:
    base = "https://s.example/root/"
    url = subscription_url(base, "a b/c", "callback")
    assert url == "https://s.example/root/v1/stream/__ds/subscriptions/a%20b%2Fc/callback"
    assert jwks_url(base) == "https://s.example/root/v1/stream/__ds/jwks.json"


@pytest.mark.parametrize(
    ("answer", "is_done"),
    [
        (b'{"done":true}', True),
        (b'{"done": true, "more": [1]}', True),
        (b'{"done":false}', False),
        (b"{}", False),
        (b"", False),
        (b'{"done":1}', False),
        (b'{"done":"true"}', False),
        (b"[true]", False),
        (b"true", False),
        (b'{"done":true', False),
        (b"\xff\xfe{}", False),
        (b"[" * 100_000, False),
    ],
)
def test_only_an_object_that_says_so_acknowledges(answer: bytes, is_done: bool) -> None:
    assert says_done(answer) is is_done
