"""Work wakes a subscription; workers claim it and acknowledge; what they miss wakes it again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from streamd.streams.commands import Append, Command, Create, Result, SetLimits
from streamd.streams.limits import Limits
from streamd.streams.model import Settings
from streamd.streams.offsets import Position
from streamd.streams.subscriptions import wakes
from streamd.streams.subscriptions.commands import EndLeases, PutSubscription
from streamd.streams.subscriptions.model import Ack
from tests.streams.driver import JSON, TEXT, Driver, key
from tests.streams.subscribed import HOOK, LEASE_MS, PULL, WAKES, Subscribed, stamp_of


@pytest.fixture
def driver() -> Subscribed:
    """With a wake stream and an empty stream `s`."""
    driver = Subscribed()
    driver.create_wakes()
    driver.create("s")
    return driver


@pytest.fixture
def pull(driver: Subscribed) -> Subscribed:
    """With a worker's subscription that an append to `s` has woken."""
    driver.put(PULL)
    driver.append(b"x")
    return driver


@pytest.fixture
def hook(driver: Subscribed) -> Subscribed:
    """With a webhook that an append to `s` has woken."""
    driver.put(HOOK)
    driver.append(b"x")
    return driver


# -- waking ----------------------------------------------------------------------------------------


def test_the_event_of_a_wake_is_written_with_the_append_that_causes_it(driver: Subscribed) -> None:
    driver.put(PULL)
    driver.machine.take_changes()
    outcome = driver.append(b"x")
    assert outcome.tail == Position(1, 1)
    assert driver.events() == [
        {
            "type": "wake",
            "subscription_id": "pull",
            "stream": "b/s",
            "generation": 1,
            "ts": driver.now_ms,
        }
    ]
    changed = {change.stream.stream_id: change for change in driver.machine.take_changes().values()}
    assert changed[driver.stream(WAKES).stream_id].start == Position(0, 0)


def test_a_subscription_is_woken_once_until_the_work_is_done(pull: Subscribed) -> None:
    pull.append(b"y")
    pull.create("t", body=b"z")
    assert len(pull.events()) == 1
    assert (pull.named("pull").generation, pull.named("pull").pending) == (1, 2)


def test_a_run_of_appends_wakes_once(driver: Subscribed) -> None:
    driver.put(PULL)
    append = Append(key("s"), TEXT, b"x", [1])
    outcomes = driver.entry(append, append, append)
    assert [outcome.tail.record for outcome in outcomes] == [1, 2, 3]
    assert len(driver.events()) == 1


def test_an_append_to_the_wake_stream_itself_has_its_own_tail(driver: Subscribed) -> None:
    """Another subscription is linked to it, so that its event follows in the same stream."""
    driver.put(replace(PULL, pattern="b/other"))
    driver.put(replace(PULL, wake_key=key("second")), "second")
    driver.create("second", JSON)
    append = Append(key(WAKES), JSON, b"1,", [2])
    outcomes = driver.entry(append, append)
    assert [outcome.tail for outcome in outcomes] == [Position(1, 2), Position(2, 4)]
    assert driver.named("second").generation == 1


def test_an_event_in_the_stream_that_caused_it_comes_after_the_run(driver: Subscribed) -> None:
    driver.put(replace(PULL, pattern="", wake_key=key("x")), "first", ["s"])
    driver.create("x", JSON)
    driver.put(replace(PULL, pattern="b/x", wake_key=key(WAKES)), "watch")
    driver.append(b"x")
    assert driver.stream("x").records == 1
    assert [event["subscription_id"] for event in driver.events()] == ["watch"]


def test_subscriptions_that_follow_the_wakes_of_each_other_end(driver: Subscribed) -> None:
    driver.create("v", JSON)
    driver.put(PULL, "1")
    driver.put(replace(PULL, wake_key=key("v")), "2")
    driver.append(b"x")
    assert [driver.named(name).generation for name in "12"] == [1, 1]
    assert [driver.named(name).pending for name in "12"] == [2, 2]


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (lambda driver: driver.delete(WAKES), "does not exist"),
        (lambda driver: driver.close(WAKES), "is closed"),
        (lambda driver: (driver.delete(WAKES), driver.create(WAKES, TEXT)), "not of type"),
        (lambda driver: driver.do(SetLimits("bucket", "b", Limits(max_bytes=40))), "bucket-full"),
    ],
)
def test_a_wake_stream_that_takes_no_event_is_tried_again(
    driver: Subscribed, prepare: object, why: str
) -> None:
    prepare(driver)  # type: ignore[operator]
    driver.put(PULL)
    driver.append(b"x")
    found = driver.named("pull")
    assert found.is_failed
    assert why in found.why
    assert found.wake is not None
    driver.do(SetLimits("bucket", "b", Limits(max_bytes=10_000)))
    driver.end_leases()
    assert driver.named("pull").attempts == 1, "it is not due yet"
    driver.now_ms += 2_000
    driver.end_leases()
    assert driver.named("pull").attempts == 2
    assert driver.named("pull").is_failed == (why != "bucket-full")


def test_a_wake_stream_that_is_created_gets_the_events_that_wait(driver: Subscribed) -> None:
    driver.delete(WAKES)
    driver.put(PULL, "1")
    driver.put(PULL, "2")
    driver.put(PULL, "claimed")
    driver.append(b"x")
    driver.claimed("claimed")
    driver.create_wakes()
    assert [event["subscription_id"] for event in driver.events()] == ["1", "2"]
    assert not driver.named("1").is_failed


def test_a_wake_that_begins_with_its_wake_stream_has_one_event(driver: Subscribed) -> None:
    """The stream's first record wakes another subscription, whose event wakes this one."""
    driver.delete(WAKES)
    driver.create("v", JSON)
    driver.put(replace(PULL, pattern="b/v"), "last")
    driver.put(replace(PULL, pattern=f"b/{WAKES}", wake_key=key("v")), "first")
    driver.create(WAKES, JSON, body=b"1")
    assert driver.named("first").generation == driver.named("last").generation == 1
    assert driver.content(WAKES).count(b"wake") == 1


def test_so_many_events_are_written_when_a_wake_stream_is_created(
    driver: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakes, "_MAX_AT_CREATION", 1)
    driver.delete(WAKES)
    driver.put(PULL, "1")
    driver.put(PULL, "2")
    driver.append(b"x")
    driver.create_wakes()
    assert len(driver.events()) == 1
    driver.now_ms += 2_000
    driver.end_leases()
    assert len(driver.events()) == 2


def test_an_event_renews_the_wake_stream(driver: Subscribed) -> None:
    driver.delete(WAKES)
    driver.create(WAKES, JSON, ttl_ms=5_000)
    driver.put(PULL)
    driver.now_ms += 4_000
    driver.append(b"x")
    assert driver.stream(WAKES).touched_ms == driver.now_ms
    driver.now_ms += 4_000
    assert len(driver.events()) == 1


# -- claims ----------------------------------------------------------------------------------------


def test_one_worker_holds_the_claim(pull: Subscribed) -> None:
    outcome = pull.claim(worker="one")
    assert outcome.result is Result.DONE
    assert outcome.wake is not None
    assert outcome.wake.lease_until_ms == pull.now_ms + LEASE_MS
    assert outcome.wake.generation == 1, "the wake that the event named"
    refused = pull.claim(worker="two")
    assert refused.result is Result.ALREADY_CLAIMED
    assert refused.wake is not None
    assert (refused.wake.holder, refused.wake.generation) == ("one", 1)


def test_a_claim_needs_work(pull: Subscribed) -> None:
    pull.ack("pull", pull.claimed(), "s", done=True)
    assert pull.claim().result is Result.NO_PENDING_WORK


def test_a_wake_whose_work_was_deleted_ends_with_the_first_claim(pull: Subscribed) -> None:
    """Else the next work would find a wake outstanding, and no worker would hear of it."""
    pull.delete("s")
    assert pull.claim().result is Result.NO_PENDING_WORK
    pull.create("t", body=b"x")
    assert [event["generation"] for event in pull.events()] == [1, 2]


def test_a_claim_of_a_webhook_is_refused(hook: Subscribed) -> None:
    assert hook.claim("hook").result is Result.NOT_PULL_WAKE


def test_a_writer_of_fenced_streams_claims_without_work(driver: Subscribed) -> None:
    driver.put(PULL)
    driver.do(Create(key("f"), Settings(TEXT, write_fence=True)))
    assert driver.named("pull").fenced_links == 1
    stamp = driver.claimed()
    assert stamp.generation == 1
    assert driver.events() == [], "nobody had to be woken"
    assert driver.ack("pull", stamp, done=True).result is Result.DONE
    driver.delete("f")
    assert driver.named("pull").fenced_links == 0
    assert driver.claim().result is Result.NO_PENDING_WORK


# -- acknowledging ---------------------------------------------------------------------------------


def test_an_ack_renews_the_lease_and_keeps_the_claim(pull: Subscribed) -> None:
    stamp = pull.claimed()
    pull.now_ms += LEASE_MS - 1
    outcome = pull.ack("pull", stamp, "s")
    assert outcome.result is Result.DONE
    assert outcome.wake is not None
    assert outcome.wake.lease_until_ms == pull.now_ms + LEASE_MS
    assert pull.acked("pull", "s") == 1
    pull.append(b"y")
    assert len(pull.events()) == 1, "the worker has it still"


def test_the_end_of_the_work_ends_the_wake(pull: Subscribed) -> None:
    stamp = pull.claimed()
    outcome = pull.ack("pull", stamp, "s", done=True)
    assert outcome.wake is not None
    assert not outcome.wake.next_wake
    found = pull.named("pull")
    assert (found.wake, found.holder, found.lease_until_ms) == (None, "", None)
    assert pull.ack("pull", stamp, "s", done=True).result is Result.FENCED


def test_work_that_is_left_wakes_again_at_once(pull: Subscribed) -> None:
    pull.create("t", body=b"x")
    stamp = pull.claimed()
    outcome = pull.ack("pull", stamp, "s", done=True)
    assert outcome.wake is not None
    assert outcome.wake.next_wake
    assert [(one["generation"], one["stream"]) for one in pull.events()] == [
        (1, "b/s"),
        (2, "b/t"),
    ]
    assert pull.ack("pull", stamp).result is Result.FENCED


def test_an_ack_may_stop_before_the_tail(pull: Subscribed) -> None:
    pull.append(b"yy")
    stamp = pull.claimed()
    assert pull.ack("pull", stamp, Ack(key("s"), 1, 1)).result is Result.DONE
    assert pull.acked("pull", "s") == 1
    assert pull.named("pull").pending == 1
    pull.ack("pull", stamp, Ack(key("s"), 1, 1))
    pull.ack("pull", stamp, Ack(key("s"), 2, 3), done=True)
    assert (pull.acked("pull", "s"), pull.named("pull").pending) == (2, 0)


@pytest.mark.parametrize(
    ("ack", "reason"),
    [
        (Ack(key("unknown"), 0, 0), "unlinked"),
        (Ack(key(WAKES), 0, 0), "unlinked"),
        (Ack(key("s"), 0, 0), "regressed"),
        (Ack(key("s"), 3, 3), "beyond-tail"),
        (Ack(key("s"), 2, 4), "beyond-tail"),
        (Ack(key("s"), 2, 2), "beyond-tail"),
    ],
)
def test_an_ack_that_is_wrong_takes_none_of_them(pull: Subscribed, ack: Ack, reason: str) -> None:
    stamp = pull.claimed()
    pull.ack("pull", stamp, "s")
    pull.append(b"yy")
    pull.create("t", body=b"z")
    outcome = pull.ack("pull", stamp, "t", ack, done=True)
    assert outcome.result is Result.ACK_INVALID
    assert outcome.wake is not None
    assert outcome.wake.reason == reason
    assert (pull.acked("pull", "s"), pull.acked("pull", "t")) == (1, 0)
    assert pull.named("pull").holder == "w"


def test_a_stream_that_matches_and_was_not_written_since_can_be_acknowledged(
    driver: Subscribed,
) -> None:
    """It is listed, so a worker may take it for one of its own."""
    driver.append(b"old")
    driver.put(PULL)
    driver.create("t", body=b"x")
    assert driver.ack("pull", driver.claimed(), "s", "t", done=True).result is Result.DONE


def test_a_release_wakes_again_for_the_same_work(pull: Subscribed) -> None:
    stamp = pull.claimed()
    outcome = pull.release("pull", stamp)
    assert outcome.wake is not None
    assert outcome.wake.next_wake
    assert pull.named("pull").generation == 2
    assert pull.release("pull", stamp).result is Result.FENCED
    pull.ack("pull", pull.claimed(), "s")
    assert not pull.release("pull", pull.stamp("pull")).wake.next_wake  # type: ignore[union-attr]


def test_of_two_acks_of_a_stream_the_further_one_counts(pull: Subscribed) -> None:
    pull.append(b"y")
    whole = pull.whole("s")
    pull.ack("pull", pull.claimed(), whole, Ack(key("s"), 1, 1))
    assert (pull.acked("pull", "s"), pull.named("pull").pending) == (2, 0)


def test_subscriptions_of_a_stream_acknowledge_each_for_itself(pull: Subscribed) -> None:
    pull.put(HOOK)
    pull.append(b"y")
    pull.ack("pull", pull.claimed(), "s", done=True)
    assert (pull.acked("pull", "s"), pull.acked("hook", "s")) == (2, 1)
    assert (pull.named("pull").pending, pull.named("hook").pending) == (0, 1)
    pull.append(b"z")
    assert pull.named("pull").generation == 2


# -- leases ----------------------------------------------------------------------------------------


def test_a_lapsed_lease_wakes_again(pull: Subscribed) -> None:
    stamp = pull.claimed()
    pull.now_ms += LEASE_MS
    pull.end_leases()
    assert [event["generation"] for event in pull.events()] == [1, 2]
    assert pull.named("pull").holder == ""
    assert pull.ack("pull", stamp, "s").result is Result.FENCED
    assert pull.acked("pull", "s") == 0


def test_a_lapsed_lease_has_ended_before_anyone_notices(pull: Subscribed) -> None:
    stamp = pull.claimed()
    pull.now_ms += LEASE_MS
    assert pull.ack("pull", stamp, "s", done=True).result is Result.FENCED
    assert pull.named("pull").generation == 2


def test_a_lapsed_lease_without_work_leaves_the_subscription_idle(pull: Subscribed) -> None:
    pull.ack("pull", pull.claimed(), "s")
    pull.now_ms += LEASE_MS
    pull.end_leases()
    assert pull.named("pull").wake is None
    pull.append(b"y")
    assert pull.named("pull").generation == 2


def test_a_successor_takes_a_lapsed_claim_over(pull: Subscribed) -> None:
    pull.claimed()
    pull.now_ms += LEASE_MS
    outcome = pull.claim(worker="successor")
    assert outcome.result is Result.DONE
    assert stamp_of(outcome).generation == 2


def test_nothing_is_due_of_a_wake_that_waits_for_a_worker(pull: Subscribed) -> None:
    assert pull.state.subscriptions.due.next_ms is None
    pull.claimed()
    assert pull.state.subscriptions.due.next_ms == pull.now_ms + LEASE_MS
    number = pull.named("pull").number
    assert pull.do(EndLeases([number])).result is Result.DONE
    assert pull.named("pull").holder == "w", "it is not over"


# -- tests by operators ----------------------------------------------------------------------------


def test_a_wake_can_be_forced(driver: Subscribed) -> None:
    driver.put(PULL)
    outcome = driver.wake("pull")
    assert outcome.wake is not None
    assert outcome.wake.next_wake
    assert driver.events()[0]["stream"] == ""
    again = driver.wake("pull")
    assert again.wake is not None
    assert not again.wake.next_wake, "one is outstanding"
    stamp = driver.claimed()
    assert stamp.generation == 1
    assert driver.ack("pull", stamp, done=True).wake.wake_id == ""  # type: ignore[union-attr]


def test_a_test_tries_at_once_what_waits_for_a_retry(hook: Subscribed) -> None:
    hook.begin()
    hook.end(why="status 500")
    hook.wake("hook")
    assert hook.named("hook").next_attempt_ms == hook.now_ms
    assert hook.begin(2).result is Result.DONE
    hook.wake("hook")
    assert hook.named("hook").attempts == 2, "one is under way"


def test_a_test_writes_an_event_at_once_that_waits_for_its_stream(driver: Subscribed) -> None:
    driver.close(WAKES)
    driver.put(PULL)
    driver.append(b"x")
    driver.wake("pull")
    assert driver.named("pull").attempts == 2


# -- the log ---------------------------------------------------------------------------------------


def test_an_entry_with_everything_is_the_same_on_every_replica() -> None:
    entry: list[Command] = [
        Create(key(WAKES), Settings(JSON), implicit_bucket=True),
        PutSubscription("pull", PULL),
        PutSubscription("hook", HOOK),
        Create(key("s"), Settings(TEXT), data=b"x", lengths=[1]),
    ]
    replicas = [Driver() for _ in range(2)]
    for driver in replicas:
        driver.entry(*entry)
        driver.flush()
    assert replicas[0].store.rows == replicas[1].store.rows
