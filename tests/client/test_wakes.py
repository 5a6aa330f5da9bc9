"""Wakes in the hands of workers, at a real server: leases, heartbeats, and what ends them."""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

import anyio
import pytest
import trio

from streamd.client import (
    AlreadyExists,
    AsyncClient,
    AsyncSubscription,
    Client,
    InvalidOffset,
    LeaseLost,
    ProducerFenced,
    Subscription,
    SubscriptionNotFound,
    Wake,
)
from tests.support.server_process import ServerProcess

# So long that a busy machine renews it in time, and so short that a test may wait for its renewal.
LEASE_S = 4.0


@pytest.fixture
def name() -> str:
    return f"s-{uuid4().hex[:12]}"


@pytest.fixture
def subscription(client: Client, name: str) -> Subscription:
    """A pull-wake subscription to `NAME/*`."""
    client.stream(f"wakes/{name}").create("application/json")
    subscription = client.subscription(name)
    subscription.create(wake_stream=f"wakes/{name}", pattern=f"{name}/*", lease_ttl_s=LEASE_S)
    return subscription


def fill(client: Client, path: str, *messages: Any) -> str:
    """Append each message by itself; the offset after them."""
    stream = client.stream(path)
    end = stream.create("application/json").next_offset
    for message in messages:
        end = stream.append_json(message).next_offset
    return end


# --- subscriptions


def test_a_subscription_lives_until_it_is_deleted(
    client: Client, subscription: Subscription, name: str
) -> None:
    settings: dict[str, Any] = {"wake_stream": f"wakes/{name}", "lease_ttl_s": LEASE_S}
    assert not subscription.create(pattern=f"{name}/*", **settings).is_new
    with pytest.raises(AlreadyExists):
        subscription.create(pattern=f"{name}/**", **settings)
    info = subscription.info()
    assert (info.subscription_id, info.type, info.status) == (name, "pull-wake", "active")
    assert (info.lease_ttl_ms, info.pattern) == (4000, f"{name}/*")
    assert name in [listed.subscription_id for listed in client.subscriptions()]
    subscription.delete()
    with pytest.raises(SubscriptionNotFound):
        subscription.info()


def test_streams_are_named_and_no_longer_named(
    client: Client, subscription: Subscription, name: str
) -> None:
    fill(client, f"{name}/a", 1)
    subscription.add(f"{name}/a", f"{name}-else/ü")
    links = {stream.path: stream.link_type for stream in subscription.streams()}
    assert links == {f"{name}/a": "explicit", f"{name}-else/ü": "explicit"}
    subscription.remove(f"{name}/a")
    subscription.remove(f"{name}-else/ü")
    links = {stream.path: stream.link_type for stream in subscription.streams()}
    assert links == {f"{name}/a": "glob"}


# --- workers


def test_a_worker_gets_what_was_appended_and_acknowledges_it_at_the_end(
    client: Client, subscription: Subscription, name: str
) -> None:
    end = fill(client, f"{name}/a", 1, 2)
    with subscription.worker("w").next() as wake:
        [stream] = wake.pending
        assert (stream.path, stream.tail_offset) == (f"{name}/a", end)
        assert list(client.stream(stream.path).read_json(stream.acked_offset)) == [1, 2]
    [stream] = subscription.streams()
    assert (stream.acked_offset, stream.has_pending) == (end, False)


def test_what_comes_during_a_wake_is_the_next_one(
    client: Client, subscription: Subscription, name: str
) -> None:
    fill(client, f"{name}/a", 1)
    worker = subscription.worker()
    with worker.next() as wake:
        fill(client, f"{name}/a", 2)
        assert wake.done() is True
        first = wake.generation
    with worker.next() as wake:
        assert wake.generation > first
        [stream] = wake.pending
        assert list(client.stream(stream.path).read_json(stream.acked_offset)) == [2]


def test_a_worker_acknowledges_message_by_message(
    client: Client, subscription: Subscription, name: str
) -> None:
    fill(client, f"{name}/a", 1, 2, 3)

    def work(wake: Wake) -> None:
        [stream] = wake.pending
        pairs = client.stream(stream.path).read_json(stream.acked_offset, offsets=True)
        for position, message in pairs:
            1 / (3 - message)
            wake.ack({stream.path: position})

    with pytest.raises(ZeroDivisionError), subscription.worker().next() as wake:
        work(wake)
    with subscription.worker().next() as wake:
        [stream] = wake.pending
        [*_, last] = client.stream(stream.path).read_json(stream.acked_offset)
        assert last == 3


def test_a_wake_that_is_given_back_goes_to_the_next_worker_with_all_of_its_work(
    client: Client, subscription: Subscription, name: str
) -> None:
    fill(client, f"{name}/a", 1)
    with subscription.worker().next() as wake:
        first = wake.wake_id
        wake.release()
    with subscription.worker().next() as wake:
        assert wake.wake_id != first
        assert [stream.path for stream in wake.pending] == [f"{name}/a"]


def test_a_lease_is_renewed_while_the_block_runs(
    server: ServerProcess, client: Client, subscription: Subscription, name: str
) -> None:
    def lease_until_ms() -> int:
        record = client.request("GET", f"/v1/stream/__ds/subscriptions/{name}").json()
        return int(record["wake"]["lease_until_ms"])

    fill(client, f"{name}/a", 1)
    with subscription.worker().next() as wake:
        first, generation = lease_until_ms(), wake.generation
        server.await_alive(lambda: lease_until_ms() > first + 4500, "renewed")
        wake.check()
        [stream] = subscription.streams()
        assert stream.has_pending
        assert wake.generation == generation


def test_an_offset_after_the_end_is_refused_and_the_wake_stays(
    client: Client, subscription: Subscription, name: str
) -> None:
    fill(client, f"{name}/a", 1)
    with subscription.worker().next() as wake:
        with pytest.raises(InvalidOffset):
            wake.ack({f"{name}/a": "0000000000000009_0000000000000999"})
        with pytest.raises(InvalidOffset):
            wake.ack({f"{name}-other/a": wake.pending[0].tail_offset or ""})
        wake.ack({})


def test_a_stream_that_is_deleted_during_a_wake_does_not_hinder_its_end(
    client: Client, subscription: Subscription, name: str
) -> None:
    fill(client, f"{name}/a", 1)
    fill(client, f"{name}/b", 1)
    with subscription.worker().next() as wake:
        assert len(wake.pending) == 2
        client.stream(f"{name}/a").delete()
    assert [stream.has_pending for stream in subscription.streams()] == [False]


def test_a_wake_whose_subscription_is_deleted_is_lost(
    client: Client, subscription: Subscription, name: str
) -> None:
    fill(client, f"{name}/a", 1)
    with pytest.raises(LeaseLost), subscription.worker().next():
        subscription.delete()


def test_a_wake_is_used_in_one_block(client: Client, subscription: Subscription, name: str) -> None:
    fill(client, f"{name}/a", 1)
    wake = subscription.worker().next()
    with pytest.raises(ValueError, match="within its `with` block"):
        wake.ack({})
    with wake:
        pass
    with pytest.raises(ValueError, match="this wake has ended"):
        wake.ack({})
    with pytest.raises(ValueError, match="once"), wake:
        pass


async def prepared(client: AsyncClient) -> AsyncSubscription:
    """A subscription with one message pending."""
    name = f"s-{uuid4().hex[:12]}"
    await client.stream(f"wakes/{name}").create("application/json")
    subscription = client.subscription(name)
    settings: dict[str, Any] = {"wake_stream": f"wakes/{name}", "lease_ttl_s": LEASE_S}
    await subscription.create(pattern=f"{name}/*", **settings)
    await client.stream(f"{name}/a").create("application/json", data="[1]")
    return subscription


async def test_the_block_of_a_task_is_cancelled_when_its_wake_is_lost(
    server: ServerProcess,
) -> None:
    async def work(subscription: AsyncSubscription) -> None:
        async with subscription.worker().next():
            await subscription.delete()
            await anyio.sleep_forever()

    async with AsyncClient(server.url) as client:
        subscription = await prepared(client)
        with pytest.raises(LeaseLost), anyio.fail_after(30):
            await work(subscription)


async def test_a_block_in_a_nursery_of_trio_is_cancelled_too(server: ServerProcess) -> None:
    async def work(subscription: AsyncSubscription) -> None:
        async with subscription.worker().next(), trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await subscription.delete()
            await trio.sleep_forever()

    async with AsyncClient(server.url) as client:
        subscription = await prepared(client)
        with pytest.raises(LeaseLost), anyio.fail_after(30):
            await work(subscription)


async def test_a_task_that_is_cancelled_gives_its_wake_back(server: ServerProcess) -> None:
    async with AsyncClient(server.url) as client:
        subscription = await prepared(client)
        with anyio.CancelScope() as scope:
            async with subscription.worker().next() as first:
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        with anyio.fail_after(30):
            async with subscription.worker().next() as wake:
                assert wake.generation == first.generation + 1
                assert len(wake.pending) == 1


def test_a_worker_waits_until_there_is_something(
    client: Client, subscription: Subscription, name: str
) -> None:
    found: list[str] = []

    def work() -> None:
        with subscription.worker().next() as wake:
            found.extend(stream.path for stream in wake.pending)

    thread = threading.Thread(target=work)
    thread.start()
    fill(client, f"{name}/a", 1)
    thread.join(60)
    assert found == [f"{name}/a"]


def test_a_subscription_can_be_woken_for_a_test(
    client: Client, subscription: Subscription, name: str
) -> None:
    fill(client, f"{name}/a")
    subscription.test()
    events = list(client.stream(f"wakes/{name}").read_json())
    assert [event["subscription_id"] for event in events] == [name]


def test_the_token_of_a_wake_goes_in_place_of_the_clients_however_that_is_spelled(
    server: ServerProcess, client: Client, subscription: Subscription, name: str
) -> None:
    fill(client, f"{name}/a", 1)
    with (
        Client(server.url, headers={"authorization": "Bearer x"}) as other,
        other.subscription(name).worker().next() as wake,
    ):
        wake.ack({})


# --- producers of wakes


def test_a_producer_of_a_later_wake_ends_those_of_earlier_ones(
    client: Client, subscription: Subscription, name: str
) -> None:
    fill(client, f"{name}/a", 1)
    client.stream(f"{name}-out/a").create("application/json")
    worker = subscription.worker()

    def late_append(first: Wake) -> None:
        with first.producer(f"{name}-out/a", "agent") as early:
            early.append_json("one")
            early.flush()
            first.release()
            with worker.next() as second, second.producer(f"{name}-out/a", "agent") as late:
                assert late.epoch == second.generation > first.generation
                late.append_json("two")
            early.append_json("late")

    with pytest.raises(ProducerFenced), worker.next() as first:
        late_append(first)
    assert list(client.stream(f"{name}-out/a").read_json()) == ["one", "two"]
