"""The pages of subscriptions, in Chromium, while a worker claims and acknowledges."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from streamd.client import Client
from tests.console.consoles import WITH_ROOT, Cluster, Console

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Client:
    client = cluster.client()
    client.stream("wakes/pool").create("application/json")
    return client


def ask(cluster: Cluster, path: str, body: object, token: str | None = None) -> Any:
    headers = WITH_ROOT if token is None else {"Authorization": f"Bearer {token}"}
    url = f"{cluster.url}/v1/stream/__ds/subscriptions/{path}"
    method = "POST" if "/" in path else "PUT"
    answer = httpx.request(method, url, headers=headers, json=body, timeout=20)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


def create(console: Console, name: str, **fields: str) -> None:
    console.go("subscriptions")
    console.press("Create a subscription")
    console.answer(id=name, place="wakes/pool", **fields)
    console.sees("h1", name)


def status(console: Console) -> str:
    return console.page.text("header.title .badge")


def test_a_wake_is_followed_from_the_append_to_the_acknowledgement(
    cluster: Cluster, console: Console, client: Client
) -> None:
    create(console, "mailer", pattern="mails/*", description="sends them")
    console.sees("dd", "sends them")
    console.sees("main", "No stream yet")
    assert status(console) == "idle"

    stream = client.stream("mails/one")
    stream.create("text/plain")
    tail = stream.append("hello").next_offset
    console.sees("header.title .badge", "waiting")
    console.sees("td", "pending")
    console.sees("td a", "mails/one")
    console.go("subscriptions")
    console.sees("tbody td", "waiting")
    console.page.click("td a")

    claim = ask(cluster, "mailer/claim", {"worker": "worker-1"})
    console.sees("header.title .badge", "claimed")
    console.sees("dd", "worker-1")
    wake = {"wake_id": claim["wake_id"], "generation": claim["generation"]}
    acks = [{"stream": "mails/one", "offset": tail}]
    ask(cluster, "mailer/ack", {**wake, "acks": acks, "done": True}, claim["token"])
    console.sees("header.title .badge", "idle")
    console.sees("td .badge", "done")
    console.sees("td:nth-child(3)", tail)
    console.page.click("td a")
    console.sees("h1", "one")


def test_a_subscription_is_tested(cluster: Cluster, console: Console, client: Client) -> None:
    create(console, "tested", pattern="quiet/*")
    console.press("Wake it as a test")
    console.sees("[role=status]", "Nobody has come yet")
    ask(cluster, "tested/claim", {"worker": "worker-7"})
    console.sees("[role=status]", "worker-7 has claimed the wake")


def test_streams_are_named_and_named_no_longer(console: Console, client: Client) -> None:
    create(console, "chosen", streams="chosen/one")
    console.page.wait("td a", ["chosen/one"])
    console.press("Name streams")
    console.answer(streams="chosen/two\nlone")
    console.page.wait("td a", ["lone", "chosen/one", "chosen/two"])
    console.press("Name it no longer: chosen/one")
    console.answer("chosen/one")
    console.page.wait("td a", ["lone", "chosen/two"])
    client.stream("lone").create("text/plain")
    console.page.click("td a")
    console.sees("nav.crumbs", "_default")
    console.sees("main", "There is no record yet")


def test_a_subscription_is_deleted_with_its_name(
    cluster: Cluster, console: Console, client: Client
) -> None:
    create(console, "ended", pattern="ended/*")
    console.press("Delete")
    console.answer("ended")
    console.page.until("location.hash === '#/subscriptions'")
    console.misses("td", "ended")
    url = f"{cluster.url}/v1/stream/__ds/subscriptions/ended"
    assert httpx.get(url, headers=WITH_ROOT).status_code == 404


def test_the_key_of_webhooks_is_rotated(cluster: Cluster, console: Console) -> None:
    console.go("subscriptions")
    console.press("Rotate the key of webhooks")
    console.answer("webhooks")
    console.sees("[role=status]", "Webhooks are signed with the key")
    key = console.page.text("[role=status] code")
    published = httpx.get(f"{cluster.url}/v1/stream/__ds/jwks.json").json()["keys"]
    assert key in [one["kid"] for one in published]


def test_a_webhook_that_leads_inward_is_refused(console: Console) -> None:
    console.go("subscriptions")
    console.press("Create a subscription")
    console.sees("dialog[open]", "")
    console.page.evaluate("document.querySelector('dialog [name=type]').value = 'webhook'")
    console.answer(id="inward", pattern="x/*", place="http://127.0.0.1:1/hook")
    console.sees("dialog [role=alert]", "WEBHOOK_URL_REJECTED")
    console.page.press("Escape")
    console.misses("dialog")


def test_a_token_sees_the_subscriptions_that_it_may_use(
    cluster: Cluster, console: Console, client: Client
) -> None:
    body = {"type": "pull-wake", "wake_stream": "wakes/pool"}
    ask(cluster, "inside", {**body, "pattern": "inside/*"})
    ask(cluster, "outside", {**body, "pattern": "outside/*"})
    scopes = ("subscribe:inside/*", "subscribe:wakes/*", "append:wakes/*")
    console.open(cluster.token("subscriber", *scopes))
    console.go("subscriptions")
    console.page.wait("td a.row", ["inside"])
    assert "Rotate the key of webhooks" not in console.buttons()
    console.go("subscription", "outside")
    console.sees("[role=alert]", "SUBSCRIPTION_NOT_FOUND")
    console.open(cluster.token("reader-only", "read:inside/*", "list:inside/*"))
    console.misses("header.frame nav a", "Subscriptions")
    console.open()
