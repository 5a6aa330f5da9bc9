"""The leader delivers what is due, to receivers on real sockets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from streamd.config.subscriptions import SubscriptionsConfig
from streamd.node.delivery.keyring import Keyring
from streamd.node.delivery.webhooks import Webhooks
from streamd.storage.state_store import StateStore
from streamd.streams.commands import Result
from streamd.streams.subscriptions.commands import DeleteSubscription, WakeSubscription
from streamd.streams.subscriptions.linked import LinkedStream, LinkQuery
from streamd.streams.subscriptions.webhook_texts import RESERVED_PATH
from tests.node.delivery.nodes import (
    LOCAL,
    call_back,
    create_stream,
    node_with_webhooks,
    record,
    subscribe,
)
from tests.node.delivery.receivers import Receiver, answers, close_early, hang, receiver
from tests.support.nodes import Clock, append_to, wait_until

DONE = answers(200, b'{"done":true}')


def body_of(there: Receiver, number: int = -1) -> dict[str, object]:
    found: dict[str, object] = json.loads(there.requests[number].body)
    return found


async def test_an_append_is_delivered_once_and_done(tmp_path: Path) -> None:
    async with receiver(DONE) as there, node_with_webhooks(tmp_path) as node:
        await create_stream(node, "a")
        subscription = await subscribe(node, "s", there.url)
        await append_to(node, "a", b"one")
        await there.count(1)
        await wait_until(lambda: record(node, "s").wake is None)
        body = body_of(there)
        assert body["subscription_id"] == "s"
        assert body["generation"] == subscription.generation == 1
        assert body["lease_ttl_ms"] == 30_000
        assert str(body["callback_url"]).endswith(f"{RESERVED_PATH}/subscriptions/s/callback")
        assert body["streams"] == [
            {
                "path": "bucket/a",
                "link_type": "glob",
                "acked_offset": "0000000000000000_0000000000000000",
                "tail_offset": "0000000000000001_0000000000000003",
                "has_pending": True,
            }
        ]
        [line] = await node.subscriptions.for_wake(subscription.number)
        assert (line.acked, line.has_pending) == (line.tail, False)
        assert (len(there.requests), node.deliverer.outcomes["done"]) == (1, 1)


async def test_what_comes_after_a_notification_wakes_again(tmp_path: Path) -> None:
    async with node_with_webhooks(tmp_path) as node:
        seen = 0

        async def append_once(stream: trio.abc.Stream) -> None:
            nonlocal seen
            seen += 1
            if seen == 1:
                await append_to(node, "a", b"two")
            await DONE(stream)

        async with receiver(append_once) as there:
            await create_stream(node, "a")
            await subscribe(node, "s", there.url)
            await append_to(node, "a", b"one")
            await there.count(2)
            await wait_until(lambda: record(node, "s").wake is None)
            tails = [body_of(there, n)["streams"][0]["tail_offset"] for n in (0, 1)]  # type: ignore[index]
            assert tails == [
                "0000000000000001_0000000000000003",
                "0000000000000002_0000000000000006",
            ]
            assert [body_of(there, n)["generation"] for n in (0, 1)] == [1, 2]
            assert record(node, "s").pending == 0


async def test_a_receiver_that_takes_a_wake_may_call_back_later(tmp_path: Path) -> None:
    async with receiver(answers()) as there, node_with_webhooks(tmp_path) as node:
        await create_stream(node, "a")
        await subscribe(node, "s", there.url)
        await append_to(node, "a", b"one")
        await there.count(1)
        await wait_until(lambda: record(node, "s").is_received)
        outcome = await call_back(node, body_of(there), done=False)
        assert outcome.result is Result.DONE
        assert record(node, "s").wake is not None
        assert len(there.requests) == 1


@pytest.mark.parametrize("behave", [answers(500), answers(302), close_early, hang])
async def test_a_failed_attempt_is_repeated_when_it_is_due(tmp_path: Path, behave: object) -> None:
    clock = Clock()
    async with (
        receiver(behave) as there,  # type: ignore[arg-type]
        node_with_webhooks(tmp_path, clock=clock) as node,
    ):
        await create_stream(node, "a")
        await subscribe(node, "s", there.url)
        await append_to(node, "a", b"one")
        for attempt in (1, 2, 3):
            await there.count(attempt)
            count = attempt
            await wait_until(lambda: record(node, "s").failures == count)  # noqa: B023
            failed = record(node, "s")
            assert failed.is_failed
            assert failed.attempts == attempt
            assert failed.next_attempt_ms is not None
            delay_ms = failed.next_attempt_ms - clock.now_ms
            assert 800 * 2 ** (attempt - 1) <= delay_ms <= 1_200 * 2 ** (attempt - 1)
            assert there.url.split("/")[-1] not in failed.why
            clock.now_ms = failed.next_attempt_ms
            await append_to(node, "a", b"more")
        ids = {body_of(there, number)["wake_id"] for number in range(3)}
        assert len(ids) == 1


async def test_a_wake_whose_lease_lapses_is_followed_by_another(tmp_path: Path) -> None:
    clock = Clock()
    async with receiver(answers()) as there, node_with_webhooks(tmp_path, clock=clock) as node:
        await create_stream(node, "a")
        await subscribe(node, "s", there.url, lease_ttl_ms=1_000)
        await append_to(node, "a", b"one")
        await there.count(1)
        await wait_until(lambda: record(node, "s").is_received)
        clock.now_ms += 1_000
        await there.count(2)
        assert [body_of(there, n)["generation"] for n in (0, 1)] == [1, 2]
        assert (await call_back(node, body_of(there, 0), done=True)).result is Result.FENCED
        assert (await call_back(node, body_of(there, 1), done=True)).result is Result.DONE


async def test_a_request_of_a_wake_that_has_ended_is_broken_off(tmp_path: Path) -> None:
    clock = Clock()
    config = SubscriptionsConfig(allow_local_http=True, delivery_timeout_ms=600_000)
    async with (
        receiver(hang) as there,
        node_with_webhooks(tmp_path, config, clock) as node,
    ):
        await create_stream(node, "a")
        await subscribe(node, "s", there.url, lease_ttl_ms=1_000)
        await append_to(node, "a", b"one")
        await there.count(1)
        for _ in range(3):
            clock.now_ms += 100_000
        # It is a failure, so the next wake waits as a retry would.
        await wait_until(lambda: record(node, "s").generation == 2)
        assert record(node, "s").failures == 1
        clock.now_ms += 2_000
        await there.count(2)
        assert node.deliverer.queue.placed == 1


async def test_receivers_that_hang_hold_up_no_other(tmp_path: Path) -> None:
    config = SubscriptionsConfig(
        allow_local_http=True, delivery_timeout_ms=600_000, max_deliveries=16
    )
    async with (
        receiver(hang) as stuck,
        receiver(DONE, host="127.0.0.2") as there,
        node_with_webhooks(tmp_path, config) as node,
    ):
        await create_stream(node, "a")
        for number in range(50):
            await subscribe(node, f"stuck{number}", stuck.url)
        url = there.url.replace("127.0.0.1", "127.0.0.2")
        await subscribe(node, "s", url)
        for number in range(20):
            await append_to(node, "a", b"one")
            await there.count(number + 1)
            await wait_until(lambda: record(node, "s").wake is None)
        assert len(stuck.requests) == 2
        assert len(node.deliverer.queue) == 48


async def test_clients_that_list_streams_hold_up_no_delivery(tmp_path: Path) -> None:
    async with (
        receiver(DONE) as there,
        node_with_webhooks(tmp_path) as node,
        trio.open_nursery() as clients,
    ):
        await create_stream(node, "a")
        number = (await subscribe(node, "s", there.url)).number
        reads, may_end = node.subscriptions, trio.Event()
        really = reads._run_blocking

        async def slowly(
            search: Any, store: StateStore, query: LinkQuery, *, limiter: trio.CapacityLimiter
        ) -> Any:
            if query.pattern:  # Of a page, not of a wake.
                async with limiter:
                    await may_end.wait()
            return await really(search, store, query, limiter=limiter)

        reads._run_blocking = slowly  # type: ignore[assignment]
        for _ in range(20):
            clients.start_soon(reads.page, number)
        await trio.testing.wait_all_tasks_blocked()
        await append_to(node, "a", b"one")
        await there.count(1)
        may_end.set()


async def test_deleting_a_subscription_ends_its_deliveries(tmp_path: Path) -> None:
    async with receiver(answers(500)) as there, node_with_webhooks(tmp_path) as node:
        await create_stream(node, "a")
        await subscribe(node, "s", there.url)
        await append_to(node, "a", b"one")
        await there.count(1)
        outcome = await node.group.writes.propose(DeleteSubscription("s"))
        assert outcome.result is Result.DELETED
        await wait_until(lambda: node.deliverer.queue.placed == 0)
        assert node.group.state.subscriptions.due.next_ms is None


@pytest.mark.parametrize("by", ["deletion", "callback"])
async def test_a_request_of_a_wake_that_others_end_gives_its_place_back(
    tmp_path: Path, by: str
) -> None:
    """Nothing is due then, and the receiver may hang for as long as it is given."""
    config = SubscriptionsConfig(allow_local_http=True, delivery_timeout_ms=600_000)
    async with receiver(hang) as there, node_with_webhooks(tmp_path, config) as node:
        await create_stream(node, "a")
        await subscribe(node, "s", there.url)
        # What is over is not noticed by anything that comes due later.
        forced = WakeSubscription("s")
        assert (await node.group.writes.propose(forced)).result is Result.DONE
        await there.count(1)
        assert node.deliverer.queue.placed == 1
        if by == "deletion":
            outcome = await node.group.writes.propose(DeleteSubscription("s"))
            assert outcome.result is Result.DELETED
        else:
            outcome = await call_back(node, body_of(there), done=True)
            assert outcome.result is Result.DONE
        await wait_until(lambda: node.deliverer.queue.placed == 0)


async def test_keys_that_are_sealed_meanwhile_cost_an_attempt_and_not_the_node(
    tmp_path: Path,
) -> None:
    """Another node, with another secret, rotates between the attempt's record and its request."""
    file = tmp_path / "secret"
    file.write_text("s" * 64)
    config = SubscriptionsConfig(allow_local_http=True, secret_file=str(file))
    clock = Clock()
    async with (
        receiver(DONE) as there,
        node_with_webhooks(tmp_path / "n", config, clock) as node,
    ):
        await create_stream(node, "a")
        await subscribe(node, "s", there.url, lease_ttl_ms=1_000)
        other = Keyring(node.group, Webhooks(sealing_secret=b"t" * 64), Random(1))
        streams_of = node.deliverer._streams_of

        async def rotated_meanwhile(number: int) -> Sequence[LinkedStream]:
            await other.rotate()
            return await streams_of(number)

        node.deliverer._streams_of = rotated_meanwhile
        await append_to(node, "a", b"one")
        await wait_until(lambda: record(node, "s").attempts == 1)
        await wait_until(lambda: node.deliverer.queue.placed == 0)
        assert there.connections == 0
        # Once this node can sign, the wake comes again.
        node.deliverer._streams_of = streams_of
        await node.keyring.rotate()
        clock.now_ms += 10_000
        await wait_until(lambda: record(node, "s").generation == 2)
        clock.now_ms += 10_000
        await there.count(1)


async def test_a_retry_survives_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    async with receiver(answers(500)) as there:
        async with node_with_webhooks(tmp_path, clock=clock) as node:
            await create_stream(node, "a")
            await subscribe(node, "s", there.url)
            await append_to(node, "a", b"one")
            await wait_until(lambda: record(node, "s").failures == 1)
            failed = record(node, "s")
            assert failed.next_attempt_ms is not None
        async with node_with_webhooks(tmp_path, clock=clock) as node:
            # As long as it is not due nothing is sent.
            await append_to(node, "a", b"two")
            assert len(there.requests) == 1
            clock.now_ms = failed.next_attempt_ms
            await append_to(node, "a", b"three")
            await there.count(2)
            assert body_of(there)["wake_id"] == body_of(there, 0)["wake_id"]


async def test_an_attempt_that_a_crash_interrupted_is_followed_by_another_wake(
    tmp_path: Path,
) -> None:
    clock = Clock()
    async with receiver(hang) as there:
        async with node_with_webhooks(tmp_path, clock=clock) as node:
            await create_stream(node, "a")
            await subscribe(node, "s", there.url, lease_ttl_ms=5_000)
            await append_to(node, "a", b"one")
            await there.count(1)
        async with node_with_webhooks(tmp_path, clock=clock) as node:
            await append_to(node, "a", b"two")
            assert len(there.requests) == 1, "the lease of the first attempt has not lapsed"
            clock.now_ms += 10_000
            await wait_until(lambda: record(node, "s").generation == 2)
            # It may have been received or not: the next attempt waits as a retry does.
            clock.now_ms += 2_000
            await there.count(2)
            assert [body_of(there, n)["generation"] for n in (0, 1)] == [1, 2]


async def test_nothing_is_done_while_nothing_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiver(DONE) as there, node_with_webhooks(tmp_path, LOCAL) as node:
        await create_stream(node, "a")
        for number in range(100):
            await subscribe(node, f"s{number}", there.url, pattern="elsewhere/*")
        await trio.testing.wait_all_tasks_blocked(0.05)
        looks = 0
        look = node.deliverer._look

        def counted(nursery: trio.Nursery) -> None:
            nonlocal looks
            looks += 1
            look(nursery)

        monkeypatch.setattr(node.deliverer, "_look", counted)
        for _ in range(50):
            await append_to(node, "a", b"one")
        assert looks == 0
        assert there.connections == 0
