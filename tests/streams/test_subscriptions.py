"""Subscriptions are made, linked to streams, and removed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from streamd.streams import keys
from streamd.streams.commands import RenewIncarnations, Result
from streamd.streams.subscriptions import applying as subscribing
from streamd.streams.subscriptions import links
from streamd.streams.subscriptions.commands import (
    AddSubscriptionKey,
    ClaimWake,
    DeleteSubscription,
    LinkStreams,
    SubscriptionCommand,
    UnlinkStream,
    WakeSubscription,
)
from streamd.streams.subscriptions.model import SubscriptionConfig
from streamd.streams.subscriptions.signing_keys import (
    KEPT_MS,
    MAX_SUBSCRIPTION_KEYS,
    PUBLIC_KEY_BYTES,
    SECRET_BYTES,
    SubscriptionKey,
)
from tests.streams.driver import JSON, key
from tests.streams.subscribed import HOOK, PULL, Subscribed, stamp_of

NAMING = replace(HOOK, pattern="")


@pytest.fixture
def driver() -> Subscribed:
    return Subscribed()


# -- made and removed ------------------------------------------------------------------------------


def test_the_same_request_again_finds_the_subscription(driver: Subscribed) -> None:
    made = driver.put(HOOK, streams=["x", "y"])
    assert made.result is Result.CREATED
    again = driver.put(HOOK, streams=["y", "x", "y"])
    assert again.result is Result.EXISTS
    assert stamp_of(again) == stamp_of(made)


@pytest.mark.parametrize(
    ("config", "streams"),
    [
        (replace(HOOK, pattern="b/**"), ["x"]),
        (replace(HOOK, lease_ttl_ms=2_000), ["x"]),
        (replace(HOOK, description="other"), ["x"]),
        (HOOK, ["x", "y"]),
        (HOOK, []),
        (replace(PULL), ["x"]),
    ],
)
def test_another_request_for_the_same_id_is_refused(
    driver: Subscribed, config: SubscriptionConfig, streams: list[str]
) -> None:
    driver.put(HOOK, "one", ["x"])
    assert driver.put(config, "one", streams).result is Result.SUBSCRIPTION_EXISTS
    assert driver.named("one").config == HOOK


def test_streams_that_were_named_later_are_not_compared(driver: Subscribed) -> None:
    driver.put(HOOK, streams=["x"])
    driver.link("hook", "y")
    assert driver.put(HOOK, streams=["x"]).result is Result.EXISTS


def test_a_subscription_that_is_made_again_is_another_one(driver: Subscribed) -> None:
    driver.create("s")
    first = stamp_of(driver.put(HOOK))
    driver.append(b"x")
    generation = driver.named("hook").generation
    assert driver.drop("hook") is Result.DELETED
    second = stamp_of(driver.put(HOOK))
    assert second.number != first.number
    driver.append(b"y")
    assert driver.named("hook").generation > generation
    assert driver.acked("hook", "s") == 1, "it begins at the tail of its own time"


@pytest.mark.parametrize("flush", [True, False])
def test_a_deleted_subscription_leaves_nothing(driver: Subscribed, flush: bool) -> None:
    driver.create("s")
    driver.put(HOOK, streams=["s", "absent"])
    driver.append(b"x")
    if flush:
        driver.flush()
    driver.drop("hook")
    driver.flush()
    driver.reopen()
    assert len(driver.state.subscriptions) == driver.state.subscriptions.named_count == 0
    driver.append(b"y")
    assert driver.stream("s").links == ()
    driver.reclaim()
    letters = {row[:1] for row in driver.store.rows}
    assert not letters & {keys.SUBSCRIPTION, keys.NAMED, keys.LINKED, keys.PENDING, keys.GARBAGE}


def test_commands_about_an_unknown_subscription_are_refused(driver: Subscribed) -> None:
    driver.create_wakes()
    driver.put(PULL)
    stamp = stamp_of(driver.wake("pull"))
    driver.drop("pull")
    missing = Result.SUBSCRIPTION_NOT_FOUND
    assert driver.drop("pull") is missing
    assert driver.link("pull", "x") is missing
    assert driver.unlink("pull", "x") is missing
    assert driver.wake("pull").result is missing
    assert driver.claim("pull").result is missing
    assert driver.ack("pull", stamp).result is missing
    assert driver.release("pull", stamp).result is missing
    driver.put(PULL)
    assert driver.ack("pull", stamp).result is missing, "the number is that of the deleted one"


def test_so_many_subscriptions_may_exist(
    driver: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribing, "MAX_SUBSCRIPTIONS", 2)
    driver.put(HOOK, "1")
    driver.put(HOOK, "2")
    assert driver.put(HOOK, "3").result is Result.TOO_MANY_SUBSCRIPTIONS
    driver.drop("1")
    assert driver.put(HOOK, "3").result is Result.CREATED


# -- links -----------------------------------------------------------------------------------------


def test_a_named_stream_is_linked_at_its_tail(driver: Subscribed) -> None:
    driver.create("s")
    driver.append(b"old")
    driver.put(NAMING, streams=["s"])
    assert driver.acked("hook", "s") == 1
    assert driver.named("hook").pending == 0
    driver.append(b"new")
    assert driver.named("hook").pending == 1
    assert driver.named("hook").generation == 1


def test_a_named_stream_that_does_not_exist_is_linked_when_it_is_created(
    driver: Subscribed,
) -> None:
    driver.put(NAMING, streams=["s"])
    assert driver.acked("hook", "s") == 0
    driver.create("s", body=b"first")
    assert driver.named("hook").pending == 1
    [listed] = driver.listed("hook").streams
    assert (listed.path, listed.link_type, listed.has_pending) == ("b/s", "explicit", True)


def test_a_matching_stream_is_linked_at_the_tail_that_it_had(driver: Subscribed) -> None:
    driver.create("s")
    driver.append(b"old")
    driver.put(HOOK)
    assert driver.stream("s").links == (), "it is not looked at until it is written"
    driver.append(b"new")
    assert driver.acked("hook", "s") == 1
    assert driver.named("hook").pending == 1


def test_a_matching_stream_is_linked_before_its_first_bytes(driver: Subscribed) -> None:
    driver.put(HOOK)
    driver.create("s", body=b"first")
    assert driver.acked("hook", "s") == 0
    assert driver.named("hook").generation == 1


def test_a_stream_without_bytes_gives_no_work(driver: Subscribed) -> None:
    driver.put(HOOK)
    driver.create("s")
    assert (driver.named("hook").pending, driver.named("hook").wake) == (0, None)
    driver.close()
    assert driver.named("hook").pending == 0
    assert len(driver.listed("hook").streams) == 1


def test_a_fork_is_linked_where_it_leaves_its_source(driver: Subscribed) -> None:
    driver.create("s", body=b"one")
    driver.put(HOOK)
    driver.fork("f", "s")
    assert driver.acked("hook", "f") == 1
    assert driver.named("hook").pending == 0
    driver.fork("g", "s", body=b"two")
    assert driver.acked("hook", "g") == 1
    assert driver.named("hook").pending == 1


def test_a_stream_that_is_named_and_matched_stays_linked_without_its_name(
    driver: Subscribed,
) -> None:
    driver.create("s")
    driver.put(HOOK, streams=["s"])
    driver.append(b"x")
    assert driver.listed("hook").streams[0].link_type == "explicit"
    assert driver.unlink("hook", "s") is Result.DONE
    assert driver.listed("hook").streams[0].link_type == "glob"
    assert driver.named("hook").pending == 1


def test_a_stream_that_is_no_longer_named_gives_no_work(driver: Subscribed) -> None:
    driver.create("s")
    driver.put(NAMING, streams=["s", "absent"])
    driver.append(b"x")
    assert driver.unlink("hook", "s") is Result.DONE
    assert driver.unlink("hook", "s") is Result.DONE, "again"
    assert driver.unlink("hook", "absent") is Result.DONE
    assert driver.named("hook").pending == 0
    driver.append(b"y")
    assert (driver.named("hook").pending, driver.listed("hook").streams) == (0, [])


def test_naming_a_linked_stream_again_changes_nothing(driver: Subscribed) -> None:
    driver.create("s")
    driver.put(NAMING, streams=["s"])
    driver.append(b"x")
    assert driver.link("hook", "s") is Result.DONE
    assert (driver.acked("hook", "s"), driver.named("hook").pending) == (0, 1)
    assert driver.state.subscriptions.named_count == 1


@pytest.mark.parametrize(
    "command",
    [
        DeleteSubscription("pull"),
        LinkStreams("pull", [key("other")]),
        UnlinkStream("pull", key("named")),
        WakeSubscription("pull"),
        ClaimWake("pull", "w"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_command_for_a_subscription_does_not_meet_one_that_has_got_its_id(
    command: SubscriptionCommand, driver: Subscribed
) -> None:
    """Its sender may use the former one, and perhaps not this one."""
    driver.create_wakes()
    driver.put(PULL, streams=["named"])
    former = driver.named("pull").number
    assert driver.drop("pull") is Result.DELETED
    driver.put(PULL, streams=["named"])
    before = driver.state.begin_flush()
    assert driver.do(replace(command, number=former)).result is Result.SUBSCRIPTION_NOT_FOUND
    after = driver.state.begin_flush()
    assert len(before) > 1
    assert [row for row, _ in after] == [keys.HEADER]
    present = driver.named("pull").number
    assert driver.do(replace(command, number=present)).result is not Result.SUBSCRIPTION_NOT_FOUND


def test_a_deleted_stream_takes_its_work_along_and_keeps_its_name(driver: Subscribed) -> None:
    driver.create("s")
    driver.put(NAMING, streams=["s"])
    driver.append(b"x")
    driver.delete("s")
    assert driver.named("hook").pending == 0
    assert driver.acked("hook", "s") == 0, "the name is still listed"
    driver.create("s", body=b"again")
    assert (driver.acked("hook", "s"), driver.named("hook").pending) == (0, 1)


def test_a_stream_that_outlives_its_subscription_can_be_deleted(driver: Subscribed) -> None:
    driver.create("s")
    driver.put(HOOK)
    driver.append(b"x")
    driver.drop("hook")
    assert driver.delete("s") is Result.DELETED


def test_a_stream_with_forks_loses_its_links_when_it_is_deleted(driver: Subscribed) -> None:
    driver.put(HOOK)
    driver.create("s", body=b"x")
    driver.fork("f", "s")
    driver.delete("s")
    assert driver.named("hook").pending == 0
    assert [one.path for one in driver.listed("hook").streams] == ["b/f"]


def test_an_expired_stream_loses_its_links(driver: Subscribed) -> None:
    driver.put(NAMING, streams=["s"])
    driver.create("s", body=b"x", ttl_ms=50)
    driver.now_ms += 100
    assert driver.append(b"late").result is Result.NOT_FOUND
    assert driver.named("hook").pending == 0


def test_a_wake_stream_does_not_wake_its_own_subscription(driver: Subscribed) -> None:
    driver.create_wakes()
    driver.put(PULL)
    driver.append(b"1", "wakes", JSON)
    assert driver.named("pull").pending == 0
    assert driver.listed("pull").streams == []
    assert driver.link("pull", "wakes") is Result.INVALID
    assert driver.put(PULL, "other", ["wakes"]).result is Result.INVALID


def test_so_many_streams_may_be_named(driver: Subscribed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribing, "MAX_NAMED", 2)
    monkeypatch.setattr(subscribing, "MAX_NAMED_IN_ALL", 3)
    assert driver.put(NAMING, "1", ["a", "b", "c"]).result is Result.TOO_MANY_LINKS
    assert driver.put(NAMING, "1", ["a", "b"]).result is Result.CREATED
    assert driver.link("1", "c") is Result.TOO_MANY_LINKS
    assert driver.link("1", "b") is Result.DONE
    assert driver.put(NAMING, "2", ["a", "b"]).result is Result.TOO_MANY_LINKS, "in all"
    driver.unlink("1", "a")
    assert driver.put(NAMING, "2", ["a", "b"]).result is Result.CREATED


def test_so_many_subscriptions_may_be_linked_to_a_stream(
    driver: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribing, "MAX_LINKS", 2)
    monkeypatch.setattr(links, "MAX_LINKS", 2)
    driver.put(NAMING, "1", ["absent"])
    driver.put(NAMING, "2", ["absent"])
    assert driver.put(NAMING, "3", ["absent"]).result is Result.TOO_MANY_LINKS
    driver.create("s")
    for name in ("4", "5", "6"):
        driver.put(HOOK, name)
    driver.append(b"x")
    assert [driver.named(name).pending for name in ("4", "5", "6")] == [1, 1, 0]
    assert driver.put(NAMING, "7", ["s"]).result is Result.TOO_MANY_LINKS
    driver.drop("4")
    driver.put(HOOK, "8")
    driver.append(b"y")
    assert driver.named("6").pending == 1, "there is room again"


# -- keys ------------------------------------------------------------------------------------------


def key_of(number: int) -> SubscriptionKey:
    return SubscriptionKey(number, b"p" * PUBLIC_KEY_BYTES, bytes((number,)) * SECRET_BYTES)


def test_a_key_and_the_one_before_it_stay(driver: Subscribed) -> None:
    for number in range(1, 5):
        assert driver.do(AddSubscriptionKey(key_of(number))).result is Result.DONE
        driver.now_ms += KEPT_MS
    assert driver.do(AddSubscriptionKey(key_of(4))).result is Result.STALE
    driver.flush()
    driver.reopen()
    found = driver.state.subscriptions.keys
    assert {number: one.secret[:1] for number, one in found.items()} == {3: b"\3", 4: b"\4"}
    assert found[4].added_ms == driver.now_ms - KEPT_MS


def test_too_many_keys_in_a_day_are_refused(driver: Subscribed) -> None:
    for number in range(1, MAX_SUBSCRIPTION_KEYS + 1):
        assert driver.do(AddSubscriptionKey(key_of(number))).result is Result.DONE
    further = AddSubscriptionKey(key_of(MAX_SUBSCRIPTION_KEYS + 1))
    assert driver.do(further).result is Result.TOO_MANY_SUBSCRIPTION_KEYS
    assert len(driver.state.subscriptions.keys) == MAX_SUBSCRIPTION_KEYS


def test_a_key_that_revokes_the_others_stays_alone(driver: Subscribed) -> None:
    for number in range(1, MAX_SUBSCRIPTION_KEYS + 1):
        assert driver.do(AddSubscriptionKey(key_of(number))).result is Result.DONE
    driver.flush()
    number = MAX_SUBSCRIPTION_KEYS + 1
    assert driver.do(AddSubscriptionKey(key_of(number - 1), True)).result is Result.STALE
    assert len(driver.state.subscriptions.keys) == MAX_SUBSCRIPTION_KEYS
    assert driver.do(AddSubscriptionKey(key_of(number), True)).result is Result.DONE
    driver.flush()
    driver.reopen()
    assert list(driver.state.subscriptions.keys) == [number]


def test_a_key_without_the_sizes_of_one_is_invalid(driver: Subscribed) -> None:
    for wrong in (SubscriptionKey(1, b"", b""), replace(key_of(1), number=-1)):
        assert driver.do(AddSubscriptionKey(wrong)).result is Result.INVALID


def test_another_cluster_makes_its_own_keys(driver: Subscribed) -> None:
    """So nothing that the former one has handed out is taken for its own."""
    driver.do(AddSubscriptionKey(key_of(1)))
    driver.flush()
    driver.do(RenewIncarnations(7))
    driver.flush()
    driver.reopen()
    assert driver.state.subscriptions.keys == {}
