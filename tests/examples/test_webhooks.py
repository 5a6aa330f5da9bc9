"""The receiver of examples/webhooks: each signed delivery is stored once, all others never."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import httpx
import pytest

from streamd.client import Client, NotFound
from tests.examples.applications import Application
from tests.support.server_process import ServerProcess

RECEIVER = "examples.webhooks.receiver:app"
KEY = b"a secret of the sender"
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
STREAM = "webhooks/deliveries"
RETRY_S = 0.05
DEADLINE_S = 60.0


def signed(delivery: str, body: bytes, *, key: bytes = KEY, age_s: int = 0) -> dict[str, str]:
    sent_s = int(time.time()) - age_s
    digest = hmac.digest(key, f"{delivery}.{sent_s}.".encode() + body, "sha256")
    return {
        "content-type": "application/json",
        "webhook-id": delivery,
        "webhook-timestamp": str(sent_s),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


@pytest.fixture(scope="module")
def receiver(server: ServerProcess) -> Iterator[Application]:
    environment = {"WEBHOOK_SECRET": SECRET, "STREAMD_URL": server.url}
    with Application(RECEIVER, environment) as receiver:
        yield receiver


def stored(client: Client, prefix: str) -> list[object]:
    try:
        deliveries = list(client.stream(STREAM).read_json())
    except NotFound:
        return []
    return [each for each in deliveries if each["id"].startswith(prefix)]


def test_a_delivery_that_is_sent_again_is_acknowledged_and_stored_once(
    receiver: Application, client: Client
) -> None:
    def send(number: int) -> int:
        body = b'{"paid": [%d]}' % number
        headers = signed(f"paid-{number}", body)
        return httpx.post(f"{receiver.url}/webhook", content=body, headers=headers).status_code

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(send, [0, 0, 1, 0, 1, 1, 0, 1])) == {204}
    expected = [{"id": f"paid-{n}", "payload": {"paid": [n]}} for n in range(2)]
    assert sorted(stored(client, "paid-"), key=str) == expected


BODY = b'{"paid": 1}'
GOOD = signed("forged-1", BODY)


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (signed("forged-1", BODY, key=b"another secret"), BODY, 401),
        (GOOD, b'{"paid": 9}', 401),
        ({**GOOD, "webhook-id": "forged-2"}, BODY, 401),
        ({**GOOD, "webhook-timestamp": str(int(time.time()) + 1)}, BODY, 401),
        ({**GOOD, "webhook-signature": ""}, BODY, 401),
        ({"content-type": "application/json"}, BODY, 401),
        (signed("forged-1", BODY, age_s=3600), BODY, 400),
        (signed("forged-1", b"{"), b"{", 400),
    ],
    ids=["secret", "body", "id", "time", "empty", "none", "old", "not JSON"],
)
def test_a_delivery_with_a_wrong_signature_is_refused(
    receiver: Application, client: Client, headers: dict[str, str], body: bytes, status: int
) -> None:
    answer = httpx.post(f"{receiver.url}/webhook", content=body, headers=headers)
    assert answer.status_code == status
    assert stored(client, "forged-") == []


def test_the_payload_is_kept_whatever_type_the_sender_gives_it(
    receiver: Application, client: Client
) -> None:
    headers = {**signed("typed", BODY), "content-type": "text/plain"}
    assert httpx.post(f"{receiver.url}/webhook", content=BODY, headers=headers).is_success
    assert stored(client, "typed") == [{"id": "typed", "payload": {"paid": 1}}]


def test_one_of_several_signatures_suffices_while_a_secret_is_replaced(
    receiver: Application, client: Client
) -> None:
    headers = signed("rotated", BODY)
    other = signed("rotated", BODY, key=b"the next secret")["webhook-signature"]
    headers["webhook-signature"] = f"{other} {headers['webhook-signature']}"
    assert httpx.post(f"{receiver.url}/webhook", content=BODY, headers=headers).is_success
    assert len(stored(client, "rotated")) == 1


def send_until_stored(url: str, delivery: str) -> None:
    """Send a delivery as senders do: again until it is acknowledged."""
    body = json.dumps({"about": delivery}).encode()
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if httpx.post(url, content=body, headers=signed(delivery, body)).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(RETRY_S)
    raise AssertionError(f"{delivery} was not acknowledged")


def test_deliveries_are_stored_once_though_receiver_and_server_are_killed(tmp_path: Path) -> None:
    """Each is sent twice, until it is acknowledged twice."""
    with ServerProcess(tmp_path / "data") as server:
        environment = {"WEBHOOK_SECRET": SECRET, "STREAMD_URL": server.url}
        with (
            Application(RECEIVER, environment) as receiver,
            Client(server.url) as client,
            ThreadPoolExecutor(4) as pool,
        ):
            ids = [f"delivery-{n}" for n in range(20)]
            sent = [
                pool.submit(send_until_stored, f"{receiver.url}/webhook", n) for n in [*ids, *ids]
            ]
            client.stream(STREAM).create("application/json")
            deliveries = client.stream(STREAM).follow_json()
            list(islice(deliveries, 5))
            receiver.kill()
            receiver.start()
            list(islice(deliveries, 5))
            server.kill()
            server.start()
            server.wait_ready()
            for each in sent:
                each.result()
            assert sorted(each["id"] for each in client.stream(STREAM).read_json()) == sorted(ids)
