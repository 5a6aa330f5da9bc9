"""A subscription wakes, its wake is delivered or claimed, renewed, and ends."""

from __future__ import annotations

import pytest

from streamd.streams.subscriptions import transitions
from streamd.streams.subscriptions.model import Subscription, SubscriptionConfig, Wake, WakeStamp

WEBHOOK = SubscriptionConfig("webhook", webhook_url="https://x", lease_ttl_ms=1_000)
PULL = SubscriptionConfig("pull-wake", wake_key=b"wake\0pool", lease_ttl_ms=1_000)
NOW_MS = 50_000
STAMP = WakeStamp(7, 1, "w_1")


def woken(config: SubscriptionConfig = WEBHOOK) -> Subscription:
    subscription = Subscription(7, "s", config, b"", 0)
    transitions.begin_wake(subscription, Wake("w_1", NOW_MS))
    return subscription


def test_a_wake_is_of_the_next_generation_and_due_at_once() -> None:
    subscription = woken()
    assert subscription.generation == 1
    assert (subscription.next_attempt_ms, subscription.due_ms) == (NOW_MS, NOW_MS)
    assert not subscription.is_failed


def test_an_id_of_a_wake_is_of_one_wake_alone() -> None:
    ids = {transitions.wake_id(*parts) for parts in [(1, 1, 9, 0), (2, 1, 9, 0), (1, 2, 9, 0)]}
    ids |= {transitions.wake_id(1, 1, 8, 0), transitions.wake_id(1, 1, 9, 5)}
    assert len(ids) == 5
    assert all(one.startswith("w_") and len(one) == 34 for one in ids)


@pytest.mark.parametrize(
    ("failures", "about_ms"), [(1, 1_000), (2, 2_000), (6, 32_000), (7, 60_000), (10_000, 60_000)]
)
def test_retries_come_ever_later_up_to_a_minute(failures: int, about_ms: int) -> None:
    delays = [transitions.retry_delay_ms(f"w_{number}", failures) for number in range(300)]
    assert min(delays) >= about_ms * 0.8
    assert max(delays) <= about_ms * 1.2
    assert max(delays) - min(delays) > about_ms * 0.3, "they are spread"
    assert delays == [transitions.retry_delay_ms(f"w_{one}", failures) for one in range(300)]


# -- deliveries ------------------------------------------------------------------------------------


def test_an_attempt_is_made_once_and_when_it_is_due() -> None:
    subscription = woken()
    assert not transitions.may_attempt(subscription, "w_1", 1, NOW_MS - 1), "not due yet"
    assert not transitions.may_attempt(subscription, "w_2", 1, NOW_MS), "of another wake"
    assert not transitions.may_attempt(subscription, "w_1", 2, NOW_MS), "one is missing"
    assert transitions.may_attempt(subscription, "w_1", 1, NOW_MS)
    transitions.begin_attempt(subscription, NOW_MS)
    assert not transitions.may_attempt(subscription, "w_1", 1, NOW_MS), "it was made"
    assert not transitions.may_attempt(subscription, "w_1", 2, NOW_MS), "one is under way"
    assert subscription.lease_until_ms == subscription.due_ms == NOW_MS + 1_000


def test_no_attempt_is_made_without_a_wake() -> None:
    subscription = Subscription(7, "s", WEBHOOK, b"", 0)
    assert not transitions.may_attempt(subscription, "", 1, NOW_MS)
    assert not transitions.is_latest_attempt(subscription, "", 0)


def test_a_failed_attempt_is_repeated_later() -> None:
    subscription = woken()
    transitions.begin_attempt(subscription, NOW_MS)
    transitions.attempt_failed(subscription, "status 500" * 100, NOW_MS)
    assert subscription.is_failed
    assert len(subscription.why) == 500
    assert subscription.lease_until_ms is None
    due_ms = NOW_MS + transitions.retry_delay_ms("w_1", 1)
    assert subscription.next_attempt_ms == due_ms
    assert not transitions.may_attempt(subscription, "w_1", 2, due_ms - 1)
    assert transitions.may_attempt(subscription, "w_1", 2, due_ms)


def test_an_answer_of_success_ends_the_retries_and_leaves_the_lease() -> None:
    subscription = woken()
    transitions.begin_attempt(subscription, NOW_MS)
    transitions.attempt_failed(subscription, "status 500", NOW_MS)
    transitions.begin_attempt(subscription, NOW_MS)
    assert transitions.is_latest_attempt(subscription, "w_1", 2)
    assert not transitions.is_latest_attempt(subscription, "w_1", 1)
    transitions.attempt_arrived(subscription)
    assert (subscription.failures, subscription.why) == (0, "")
    assert subscription.lease_until_ms is not None


def test_a_callback_outweighs_the_failure_of_its_attempt() -> None:
    """The receiver has the wake, though its answer was lost."""
    subscription = woken()
    transitions.begin_attempt(subscription, NOW_MS)
    transitions.renew(subscription, NOW_MS + 10)
    transitions.attempt_failed(subscription, "the connection broke", NOW_MS + 20)
    assert not subscription.is_failed
    assert subscription.lease_until_ms == NOW_MS + 1_010


def test_a_callback_while_a_retry_waits_ends_the_retries() -> None:
    subscription = woken()
    transitions.begin_attempt(subscription, NOW_MS)
    transitions.attempt_failed(subscription, "the connection broke", NOW_MS)
    assert transitions.is_current(subscription, STAMP)
    transitions.renew(subscription, NOW_MS + 10)
    assert subscription.next_attempt_ms is None


# -- leases ----------------------------------------------------------------------------------------


def test_a_lease_lapses_at_its_end_and_not_before() -> None:
    subscription = woken(PULL)
    assert not transitions.lapse(subscription, NOW_MS + 10**9), "there is no lease"
    transitions.claim(subscription, "worker", NOW_MS)
    assert not transitions.lapse(subscription, NOW_MS + 999)
    assert transitions.is_current(subscription, STAMP)
    assert transitions.lapse(subscription, NOW_MS + 1_000)
    assert (subscription.wake, subscription.holder, subscription.due_ms) == (None, "", None)
    assert not transitions.is_current(subscription, STAMP)
    assert subscription.failures == 0


def test_an_attempt_without_an_answer_counts_as_a_failure_of_the_next_wake_too() -> None:
    """Else a receiver that hangs would get a request at the end of each lease."""
    subscription = woken()
    transitions.begin_attempt(subscription, NOW_MS)
    assert transitions.lapse(subscription, NOW_MS + 1_000)
    transitions.begin_wake(subscription, Wake("w_2", NOW_MS + 1_000))
    assert subscription.is_failed
    delay_ms = transitions.retry_delay_ms("w_2", 1)
    assert subscription.next_attempt_ms == NOW_MS + 1_000 + delay_ms


def test_a_worker_that_was_reached_and_died_is_no_failure_of_the_delivery() -> None:
    subscription = woken()
    transitions.begin_attempt(subscription, NOW_MS)
    transitions.attempt_arrived(subscription)
    assert transitions.lapse(subscription, NOW_MS + 1_000)
    transitions.begin_wake(subscription, Wake("w_2", NOW_MS + 1_000))
    assert subscription.next_attempt_ms == NOW_MS + 1_000


def test_a_lease_never_ends_beyond_what_a_row_can_hold() -> None:
    subscription = woken(PULL)
    transitions.claim(subscription, "worker", 2**63 - 10)
    assert subscription.lease_until_ms == 2**63 - 1


# -- fencing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stamp", [WakeStamp(7, 0, "w_1"), WakeStamp(7, 2, "w_1"), WakeStamp(7, 1, "w_2")]
)
def test_another_generation_or_wake_is_not_the_present_one(stamp: WakeStamp) -> None:
    subscription = woken(PULL)
    transitions.claim(subscription, "worker", NOW_MS)
    assert transitions.is_current(subscription, STAMP)
    assert not transitions.is_current(subscription, stamp)


def test_a_wake_that_nobody_was_given_is_not_acted_on() -> None:
    assert not transitions.is_current(woken(PULL), STAMP)
    assert not transitions.is_current(woken(WEBHOOK), STAMP)


def test_the_end_of_a_wake_leaves_nothing_outstanding() -> None:
    subscription = woken()
    transitions.begin_attempt(subscription, NOW_MS)
    transitions.end_wake(subscription)
    assert subscription.due_ms is None
    assert (subscription.attempts, subscription.is_received) == (0, False)
    assert subscription.generation == 1
