"""A webhook's wake is due when it begins; the leader's attempts to deliver it are in the log."""

from __future__ import annotations

import pytest

from streamd.streams.commands import Create, Result
from streamd.streams.model import Settings
from streamd.streams.subscriptions.commands import EndDelivery
from streamd.streams.subscriptions.model import Ack
from tests.streams.driver import TEXT, key
from tests.streams.subscribed import HOOK, LEASE_MS, PULL, Subscribed


@pytest.fixture
def driver() -> Subscribed:
    """With a wake stream and an empty stream `s`."""
    driver = Subscribed()
    driver.create_wakes()
    driver.create("s")
    return driver


@pytest.fixture
def hook(driver: Subscribed) -> Subscribed:
    """With a webhook that an append to `s` has woken."""
    driver.put(HOOK)
    driver.append(b"x")
    return driver


def test_a_webhook_is_due_when_it_is_woken(hook: Subscribed) -> None:
    records = hook.state.subscriptions
    assert records.due.take(hook.now_ms, 10) == [hook.named("hook").number]
    assert hook.begin().result is Result.DONE
    assert records.due.next_ms == hook.now_ms + LEASE_MS
    assert hook.begin().result is Result.STALE, "another leader has begun it"
    assert hook.begin(2).result is Result.STALE


def test_an_attempt_is_of_one_wake_and_one_webhook(hook: Subscribed) -> None:
    assert hook.begin(wake_id="w_other").result is Result.STALE
    hook.put(PULL)
    hook.append(b"y")
    assert hook.begin(name="pull").result is Result.STALE
    number = hook.named("hook").number
    hook.drop("hook")
    late = EndDelivery(number, "w_1", 1, True)
    assert hook.do(late).result is Result.STALE


def test_an_answer_of_done_acknowledges_what_was_shown(hook: Subscribed) -> None:
    hook.begin()
    shown = hook.whole("s")
    hook.append(b"later")
    found = hook.named("hook")
    assert found.wake is not None
    gone = Ack(key("gone"), 1, 1)
    end = EndDelivery(found.number, found.wake.wake_id, 1, True, "", [gone, shown], True)
    outcome = hook.do(end)
    assert outcome.result is Result.DONE
    assert outcome.wake is not None
    assert outcome.wake.next_wake, "what came later wakes again"
    assert hook.acked("hook", "s") == 1
    assert hook.do(end).result is Result.STALE


def test_an_answer_that_promises_a_callback_keeps_the_lease(hook: Subscribed) -> None:
    hook.begin()
    assert hook.end().result is Result.DONE
    assert hook.named("hook").lease_until_ms == hook.now_ms + LEASE_MS
    assert hook.ack("hook", hook.stamp("hook"), "s", done=True).result is Result.DONE
    assert hook.named("hook").wake is None


def test_a_failed_attempt_is_repeated_when_its_time_comes(hook: Subscribed) -> None:
    hook.begin()
    hook.end(why="status 500")
    found = hook.named("hook")
    assert (found.is_failed, found.why) == (True, "status 500")
    assert hook.begin(2).result is Result.STALE, "it is not due"
    hook.now_ms += 2_000
    assert hook.begin(2).result is Result.DONE
    assert hook.end(1).result is Result.STALE, "the answer of an earlier attempt"
    assert hook.end(2, "s", done=True).result is Result.DONE
    assert not hook.named("hook").is_failed
    assert hook.named("hook").generation == 1


def test_a_lapsed_attempt_begins_another_wake_later(hook: Subscribed) -> None:
    """Its leader was lost, or the receiver hangs."""
    hook.begin()
    hook.now_ms += LEASE_MS
    hook.end_leases()
    found = hook.named("hook")
    assert (found.generation, found.failures, found.attempts) == (2, 1, 0)
    assert found.next_attempt_ms is not None
    assert found.next_attempt_ms > hook.now_ms
    assert hook.end(1).result is Result.STALE


def test_a_webhook_whose_work_was_deleted_gets_no_request(hook: Subscribed) -> None:
    hook.delete("s")
    assert hook.begin().result is Result.NO_PENDING_WORK
    assert hook.named("hook").wake is None


def test_a_webhook_has_no_leave_to_claim_by_fenced_streams(driver: Subscribed) -> None:
    driver.put(HOOK)
    driver.do(Create(key("f"), Settings(TEXT, write_fence=True)))
    driver.append(b"x")
    driver.delete("s")
    assert driver.begin().result is Result.NO_PENDING_WORK
