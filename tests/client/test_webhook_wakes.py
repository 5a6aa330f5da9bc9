"""Webhooks from a real server to receivers in frameworks, and the wakes that they bring."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from uuid import uuid4

import pytest

from streamd.client import Client, LeaseLost, Notification, Subscription, WebhookUrlRejected
from tests.client.drivers import KINDS, connected
from tests.client.receivers import FRAMEWORKS, receiver
from tests.support.server_process import ServerProcess

DEADLINE_S = 30
LOCAL = {"STREAMD_SUBSCRIPTIONS_ALLOW_LOCAL_HTTP": "true"}


@pytest.fixture(scope="module", name="server")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir = tmp_path_factory.mktemp("server") / "data"
    with ServerProcess(data_dir, environment=LOCAL) as server:
        yield server


@pytest.fixture(name="client", params=KINDS)
def _client(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Client]:
    with connected(request.param, server.url) as client:
        yield client


def created(client: Client, url: str, prefix: str, lease_ttl_s: float = 4.0) -> Subscription:
    """The subscription "mail" to `PREFIX/*`, in place of an earlier one."""
    subscription = client.subscription("mail")
    if "mail" in [listed.subscription_id for listed in client.subscriptions()]:
        subscription.delete()
    info = subscription.create(webhook=url, pattern=f"{prefix}/*", lease_ttl_s=lease_ttl_s)
    assert info.webhook is not None
    assert info.webhook.signing is not None
    assert info.webhook.signing.alg == "ed25519"
    return subscription


def is_done(subscription: Subscription) -> bool:
    streams = list(subscription.streams())
    return bool(streams) and not any(stream.has_pending for stream in streams)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_answer_of_done_acknowledges_what_the_webhook_had(
    server: ServerProcess, framework: str
) -> None:
    told: SimpleQueue[Notification] = SimpleQueue()

    def handle(notification: Notification) -> bool:
        told.put(notification)
        return True

    prefix = f"s-{uuid4().hex[:12]}"
    with receiver(framework, server.url, handle) as url, Client(server.url) as client:
        subscription = created(client, url, prefix)
        client.stream(f"{prefix}/a").create("application/json", data="[1]")
        notification = told.get(timeout=DEADLINE_S)
        assert [stream.path for stream in notification.pending] == [f"{prefix}/a"]
        assert notification.lease_ttl_ms == 4000
        server.await_alive(lambda: is_done(subscription), "done")
        assert told.empty()


def test_a_receiver_that_works_after_its_answer_keeps_the_wake_by_callbacks(
    server: ServerProcess, client: Client
) -> None:
    told: SimpleQueue[Notification] = SimpleQueue()
    prefix = f"s-{uuid4().hex[:12]}"

    def later(notification: Notification) -> bool:
        told.put(notification)
        return False

    def lease_until_ms() -> int:
        record = client.request("GET", "/v1/stream/__ds/subscriptions/mail").json()
        return int(record["wake"]["lease_until_ms"])

    with receiver("flask", server.url, later) as url:
        subscription = created(client, url, prefix)
        client.stream(f"{prefix}/a").create("application/json", data="[1]")
        hooks = client.webhooks("mail")
        with hooks.wake(told.get(timeout=DEADLINE_S)) as wake:
            begun = lease_until_ms()
            server.await_alive(lambda: lease_until_ms() > begun + 4500, "renewed")
            wake.check()
            client.stream(f"{prefix}/a").append_json(2)
        again = told.get(timeout=DEADLINE_S)
        assert again.generation > wake.generation
        with hooks.wake(again) as wake:
            [stream] = wake.pending
            assert list(client.stream(stream.path).read_json(stream.acked_offset)) == [2]
            wake.ack({stream.path: stream.tail_offset or ""})
        assert is_done(subscription)


def test_a_wake_that_its_receiver_leaves_comes_again_when_its_lease_ends(
    server: ServerProcess, client: Client
) -> None:
    told: SimpleQueue[Notification] = SimpleQueue()
    prefix = f"s-{uuid4().hex[:12]}"

    def later(notification: Notification) -> bool:
        told.put(notification)
        return False

    with receiver("flask", server.url, later) as url:
        created(client, url, prefix, lease_ttl_s=1.0)
        client.stream(f"{prefix}/a").create("application/json", data="[1]")
        first = told.get(timeout=DEADLINE_S)
        hooks = client.webhooks("mail")
        with pytest.raises(ZeroDivisionError), hooks.wake(first):
            1 / 0  # noqa: B018
        second = told.get(timeout=DEADLINE_S)
        assert second.generation > first.generation
        with pytest.raises(LeaseLost), hooks.wake(first) as wake:
            wake.ack({})
        client.subscription("mail").delete()


def test_a_url_where_webhooks_may_not_lead_is_refused(client: Client) -> None:
    subscription = client.subscription("elsewhere")
    with pytest.raises(WebhookUrlRejected):
        subscription.create(webhook="http://10.0.0.1/", pattern="a/*")
