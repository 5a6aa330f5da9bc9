"""Receivers of webhooks: what they take for genuine, and which keys they know."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from streamd.client import BadWebhook, Client, Notification, StreamdError, Unreachable
from streamd.client.core.receiving import ReceiverFlows
from streamd.client.core.steps import Answer, Lost
from streamd.client.webhooks import UnknownWebhookKey, public_keys, signature, verified
from tests.client.drivers import KINDS, connected
from tests.client.flows import Network, result_of
from tests.client.receivers import FRAMEWORKS, receiver
from tests.support.key_server import KeyServer, key_server

NOW_S = 1_800_000_000
KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
OTHER = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
BODY = json.dumps(
    {
        "subscription_id": "mail", "wake_id": "w_1", "generation": 7,
        "streams": [
            {"path": "inbox/a", "link_type": "glob", "acked_offset": "01", "tail_offset": "02",
             "has_pending": True},
            {"path": "inbox/b", "link_type": "explicit", "acked_offset": "02",
             "tail_offset": "02", "has_pending": False},
        ],
        "callback_url": "https://a/v1/stream/__ds/subscriptions/mail/callback",
        "callback_token": "dsc_secret", "lease_ttl_ms": 3000,
    }
).encode()  # fmt: skip


def coded(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def jwk(key: Ed25519PrivateKey, kid: str, **other: object) -> dict[str, object]:
    raw = key.public_key().public_bytes_raw()
    return {"kty": "OKP", "crv": "Ed25519", "kid": kid, "use": "sig", "x": coded(raw)} | other


def jwks(*keys: dict[str, object]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def headers(
    body: bytes = BODY, key: Ed25519PrivateKey = KEY, kid: str = "ds_1", at_s: int = NOW_S
) -> dict[str, str]:
    signed = key.sign(f"{at_s}.".encode() + body)
    return {"Webhook-Signature": f"t={at_s},kid={kid},ed25519={coded(signed)}"}


def check(given: dict[str, str], body: bytes = BODY, *ids: str) -> Notification:
    return verified(signature(given, NOW_S), body, public_keys(jwks(jwk(KEY, "k")))["k"], ids)


# --- what is genuine


@pytest.mark.parametrize("name", ["Webhook-Signature", "webhook-signature"])
def test_a_signed_body_says_which_streams_have_something(name: str) -> None:
    notification = check({name: headers()["Webhook-Signature"], "Host": "b"}, BODY, "mail")
    assert [stream.path for stream in notification.pending] == ["inbox/a"]
    assert (notification.generation, notification.lease_ttl_ms) == (7, 3000)
    assert "secret" not in repr(notification)


@pytest.mark.parametrize("at_s", [NOW_S - 301, NOW_S + 301])
def test_a_webhook_from_outside_of_five_minutes_is_refused(at_s: int) -> None:
    check(headers(at_s=NOW_S - 300))
    with pytest.raises(BadWebhook, match="300 s are allowed"):
        check(headers(at_s=at_s))


GENUINE = headers()["Webhook-Signature"]


@pytest.mark.parametrize(
    "value",
    [
        "", "t=1", GENUINE.replace("ed25519", "v1"), GENUINE + ",t=1", GENUINE.replace("t=", "t=-"),
        GENUINE.replace("t=", "t=+"), GENUINE.replace("t=18", "t=\u0661\u0668"),
        GENUINE[:-1], GENUINE + "AA", GENUINE.replace("ed25519=", "ed25519=\u00fc"),
        GENUINE + "," + "x" * 1024,
    ],
)  # fmt: skip
def test_a_header_that_is_malformed_is_refused(value: str) -> None:
    with pytest.raises(BadWebhook):
        check({"Webhook-Signature": value})


def test_a_request_without_a_signature_or_with_two_is_refused() -> None:
    for given in ({}, headers() | {"webhook-signature": GENUINE}):
        with pytest.raises(BadWebhook, match="not one"):
            check(given)


@pytest.mark.parametrize("body", [BODY + b" ", BODY.replace(b"inbox/a", b"inbox/z"), b""])
def test_a_body_that_was_changed_is_refused(body: bytes) -> None:
    with pytest.raises(BadWebhook, match="does not fit the body"):
        check(headers(), body)


def test_a_signature_by_another_key_or_of_another_time_is_refused() -> None:
    with pytest.raises(BadWebhook):
        check(headers(key=OTHER))
    with pytest.raises(BadWebhook):
        check({"Webhook-Signature": GENUINE.replace(f"t={NOW_S}", f"t={NOW_S + 1}")})


def test_another_subscription_and_what_is_no_webhook_are_refused() -> None:
    with pytest.raises(BadWebhook, match="of another subscription: mail"):
        check(headers(), BODY, "orders", "bills")
    for body in (b"[]", b"\xff", b"[" * 100_000):
        with pytest.raises(BadWebhook, match="not a webhook"):
            check(headers(body), body)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"keys": 1}', b'{"keys": []}' + b" " * 70_000, b"[" * 100_000]
)
def test_what_is_not_a_set_of_keys_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="set"):
        public_keys(body)


def test_only_keys_for_signatures_of_ed25519_are_taken_and_no_more_than_a_server_has() -> None:
    others: list[dict[str, object]] = [
        {"crv": "X25519"},
        {"kty": "RSA"},
        {"use": "enc"},
        {"x": "AA"},
        {"x": 1},
    ]
    given = [jwk(KEY, f"k{n}", **other) for n, other in enumerate(others)]
    assert public_keys(jwks(*given, jwk(KEY, "good"))).keys() == {"good"}
    assert public_keys(b'{"keys": [1, "a"]}') == {}
    with pytest.raises(ValueError, match="more than 64 keys"):
        public_keys(jwks(*(jwk(KEY, f"k{n}") for n in range(65))))


def test_the_client_needs_cryptography_for_nothing_but_webhooks() -> None:
    program = """
import sys
sys.modules["cryptography"] = None
from streamd.client import Client, webhooks
try:
    webhooks.public_keys(b'{"keys": []}')
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'durable-streamd[webhooks]'" in done.stdout, done.stderr


# --- which keys are known


class Receiver:
    """A receiver whose server answers from a script."""

    def __init__(self, *script: object) -> None:
        self.network = Network(script)
        session = self.network.session(retry_for_s=1.0)
        self._flows = ReceiverFlows(session, (), lambda: NOW_S)

    def takes(self, given: dict[str, str], **_: Any) -> bool:
        found = result_of(self._flows.verify(given, BODY), self.network)
        return isinstance(found, Notification)

    @property
    def asked(self) -> int:
        return len(self.network.sent)


FIRST = Answer(200, {}, jwks(jwk(KEY, "ds_1")))
SECOND = Answer(200, {}, jwks(jwk(KEY, "ds_1"), jwk(OTHER, "ds_2")))
ROTATED = Answer(200, {}, jwks(jwk(OTHER, "ds_2")))


def test_keys_are_asked_for_once_and_again_after_five_minutes() -> None:
    server = Receiver(FIRST, ROTATED)
    for _ in range(3):
        assert server.takes(headers())
    assert [send.url for send in server.network.sent] == ["http://a/v1/stream/__ds/jwks.json"]
    server.network.now_s = 300.0
    with pytest.raises(UnknownWebhookKey):
        server.takes(headers())
    assert server.asked == 2


def test_a_new_key_is_found_and_invented_ones_make_no_more_than_one_request_in_ten_seconds() -> (
    None
):
    server = Receiver(FIRST, SECOND)
    assert server.takes(headers())
    for _ in range(5):
        with pytest.raises(UnknownWebhookKey):
            server.takes(headers(key=OTHER, kid="ds_2"))
    assert server.asked == 1
    server.network.now_s = 10.0
    assert server.takes(headers(key=OTHER, kid="ds_2"))
    with pytest.raises(UnknownWebhookKey):
        server.takes(headers(kid="invented"))
    assert server.asked == 2


def test_known_keys_serve_while_the_server_is_away() -> None:
    away = [Lost("reset", sent=False)] * 20
    server = Receiver(FIRST, *away)
    assert server.takes(headers())
    server.network.now_s = 300.0
    assert server.takes(headers())
    asked = server.asked
    assert server.takes(headers())
    assert server.asked == asked, "it is asked again only after a while"
    server.network.now_s += 10.0
    with pytest.raises(Unreachable):
        server.takes(headers(kid="new"))


def test_an_answer_that_is_not_a_set_of_keys_is_the_servers_fault() -> None:
    with pytest.raises(StreamdError, match="not a set of keys"):
        Receiver(Answer(200, {}, b"{}")).takes(headers())


# --- over real HTTP


@pytest.fixture
def server() -> Iterator[KeyServer]:
    with key_server(jwks(jwk(KEY, "ds_1"))) as server:
        yield server


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_client_verifies(server: KeyServer, kind: str) -> None:
    with connected(kind, server.url.removesuffix("/keys")) as client:
        hooks = client.webhooks("mail")
        for _ in range(3):
            found = hooks.verify(headers(at_s=int(time.time())), BODY)
            assert found.wake_id == "w_1"
        with pytest.raises(BadWebhook):
            hooks.verify(headers(at_s=int(time.time())), BODY + b" ")
    assert server.asked == ["/v1/stream/__ds/jwks.json"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_receiver_in_a_framework_takes_what_is_genuine_and_nothing_else(
    server: KeyServer, framework: str
) -> None:
    taken: list[str] = []

    def handle(notification: Notification) -> bool:
        taken.append(notification.wake_id)
        return len(taken) > 1

    url = server.url.removesuffix("/keys")
    patient = httpx.HTTPTransport(retries=5)
    with receiver(framework, url, handle) as hook, httpx.Client(transport=patient) as sender:
        now_s = int(time.time())
        answers = [
            sender.post(hook, content=BODY, headers=given)
            for given in (headers(at_s=now_s), headers(at_s=now_s), headers(), {})
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 401, 401]
    assert [answer.json() for answer in answers[:2]] == [{}, {"done": True}]
    assert taken == ["w_1", "w_1"]


def test_a_client_is_closed_with_what_it_verified(server: KeyServer) -> None:
    with Client(server.url.removesuffix("/keys")) as client:
        hooks = client.webhooks()
    with pytest.raises(RuntimeError):
        hooks.verify(headers(at_s=int(time.time())), BODY)
