"""The streams of a subscription are listed in pages, wherever their rows are."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from streamd.streams import keys
from streamd.streams.commands import Command, Create
from streamd.streams.model import Settings
from streamd.streams.subscriptions import linked
from streamd.streams.subscriptions.commands import (
    AcknowledgeWake,
    ClaimWake,
    EndDelivery,
    EndLeases,
    LinkStreams,
    PutSubscription,
    ReleaseWake,
    UnlinkStream,
    WakeSubscription,
)
from streamd.streams.subscriptions.model import Ack, SubscriptionConfig, WakeStamp
from streamd.streams.subscriptions.webhook_texts import NotifiedStream
from tests.streams.driver import TEXT, key
from tests.streams.subscribed import HOOK, PULL, Subscribed


@pytest.fixture
def driver() -> Subscribed:
    return Subscribed()


def paths(driver: Subscribed, **asked: object) -> list[str]:
    return [one.path for one in driver.listed("hook", **asked).streams]  # type: ignore[arg-type]


def all_pages(driver: Subscribed, limit: int, name: str = "hook") -> list[str]:
    found: list[str] = []
    cursor: bytes | None = b""
    while cursor is not None:
        page = driver.listed(name, after=cursor, limit=limit)
        assert len(page.streams) <= limit
        found += [one.path for one in page.streams]
        cursor = page.cursor
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pages_together_are_all_streams_in_order(driver: Subscribed, limit: int) -> None:
    """Some are in the store, some not yet; some are only named, some only matched."""
    for name in ("m", "c", "k"):
        driver.create(name)
    driver.flush()
    driver.put(HOOK, streams=["x", "k", "a"])
    driver.create("b", body=b"1")
    driver.create("d", body=b"1")
    driver.flush()
    driver.append(b"1", "c")
    driver.delete("d")
    driver.create("n")
    assert all_pages(driver, limit) == [f"b/{name}" for name in "abckmnx"]


def test_streams_are_shown_as_they_are(driver: Subscribed) -> None:
    driver.create("old", body=b"1")
    driver.flush()
    driver.put(HOOK, streams=["absent"])
    driver.create("new", body=b"22")
    listed = {one.path: one for one in driver.listed("hook").streams}
    old, new, absent = listed["b/old"], listed["b/new"], listed["b/absent"]
    assert (old.link_type, old.acked, old.has_pending) == ("glob", old.tail, False)
    assert old.tail.record == 1
    assert (new.acked.record, new.tail.record, new.has_pending) == (0, 1, True)
    assert (absent.link_type, absent.tail.record, absent.has_pending) == ("explicit", 0, False)
    assert new.notified == NotifiedStream(
        "b/new",
        "glob",
        "0000000000000000_0000000000000000",
        "0000000000000001_0000000000000002",
        True,
    )


def test_pending_streams_are_listed_by_themselves(driver: Subscribed) -> None:
    driver.put(HOOK)
    for name in "abc":
        driver.create(name, body=b"1")
    driver.flush()
    driver.begin()
    driver.end(1, "b", done=True)
    page = driver.listed("hook", keys.PENDING, with_pattern=False)
    assert [one.path for one in page.streams if one.has_pending] == ["b/a", "b/c"]
    driver.flush()
    assert driver.listed("hook", keys.PENDING, with_pattern=False) == page


def test_rows_that_are_being_stored_are_not_missed(driver: Subscribed) -> None:
    driver.put(HOOK)
    driver.create("a", body=b"1")
    items = driver.state.begin_flush()
    driver.create("b", body=b"1")
    assert paths(driver) == ["b/a", "b/b"]
    driver.store.write(items)
    driver.state.end_flush()
    assert paths(driver) == ["b/a", "b/b"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**", ["m", "m/a", "m/a/b", "m/ab/c", "n/a"]),
        ("*", ["m"]),
        ("m", ["m"]),
        ("m/*", ["m/a"]),
        ("m/**", ["m", "m/a", "m/a/b", "m/ab/c"]),
        ("m/a/**", ["m/a", "m/a/b"]),
        ("m/a", ["m/a"]),
        ("*/a", ["m/a", "n/a"]),
        ("x/**", []),
    ],
)
def test_a_pattern_looks_where_its_streams_can_be(
    driver: Subscribed, pattern: str, expected: list[str]
) -> None:
    for each in (b"_default\0m", b"m\0a", b"m\0a/b", b"m\0ab/c", b"n\0a"):
        driver.do(Create(each, Settings(TEXT), implicit_bucket=True))
    driver.flush()
    config = SubscriptionConfig("webhook", pattern, "https://x")
    driver.put(config)
    assert sorted(paths(driver)) == expected
    assert sorted(all_pages(driver, 1)) == expected


def test_a_search_ends_after_so_many_streams(
    driver: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pattern may match one stream of a million."""
    monkeypatch.setattr(linked, "MAX_LOOKED_AT", 3)
    for number in range(8):
        driver.create(f"s{number}")
    driver.flush()
    driver.put(replace(HOOK, pattern="b/*"), streams=["a", "s9"])
    first = driver.listed("hook")
    assert [one.path for one in first.streams] == ["b/a", "b/s0", "b/s1", "b/s2"]
    assert first.cursor is not None
    assert all_pages(driver, 100) == ["b/a", *(f"b/s{number}" for number in range(8)), "b/s9"]


def test_a_wake_stream_is_not_listed_for_its_own_subscription(driver: Subscribed) -> None:
    driver.create_wakes()
    driver.create("s")
    driver.flush()
    driver.put(PULL)
    assert all_pages(driver, 10, "pull") == ["b/s"]


def test_a_row_of_a_stream_that_was_unlinked_since_is_not_shown(driver: Subscribed) -> None:
    driver.create("s")
    driver.put(replace(HOOK, pattern="b/other"))
    found = driver.named("hook")
    assert linked.shown(key("s"), driver.stream(), found, frozenset(), driver.now_ms) is None


def test_rows_that_are_not_stored_count_as_memory(driver: Subscribed) -> None:
    driver.put(HOOK, streams=["absent"])
    driver.flush()
    before = driver.state.unstored_bytes
    driver.create("s")
    driver.append(b"x")
    driver.link("hook", "t")
    assert driver.state.subscriptions.unstored == 4
    assert driver.state.unstored_bytes > before + 4 * 100


def test_the_rows_that_a_command_about_a_subscription_reads_are_loaded_ahead(
    driver: Subscribed,
) -> None:
    driver.create_wakes()
    driver.put(PULL)
    driver.create("s")
    driver.flush()
    driver.reopen()
    state, stamp = driver.state, WakeStamp(1, 1, "w_1")
    wakes, stream = keys.STREAM + key("wakes"), keys.STREAM + key("s")
    number = driver.named("pull").number
    wanted: list[tuple[Command, list[bytes]]] = [
        (PutSubscription("other", HOOK, [key("s")]), [stream]),
        (LinkStreams("pull", [key("s")]), [stream]),
        (UnlinkStream("pull", key("s")), [stream]),
        (ClaimWake("pull", "w"), [wakes]),
        (WakeSubscription("pull"), [wakes]),
        (ReleaseWake("pull", stamp), [wakes]),
        (ReleaseWake("absent", stamp), []),
        (AcknowledgeWake("pull", stamp, [Ack(key("s"), 0, 0)]), [stream, wakes]),
        (EndDelivery(number, "w_1", 1, True, "", [Ack(key("s"), 0, 0)]), [stream]),
        (EndLeases([number, number + 1]), [wakes]),
    ]
    for command, rows in wanted:
        assert list(state.missing([command])) == rows
    assert driver.stream("s").stream_id
    assert driver.stream("wakes").stream_id
    assert list(state.missing([command for command, _ in wanted])) == []


def test_an_ended_stream_is_not_listed(driver: Subscribed) -> None:
    driver.create("s", ttl_ms=50)
    driver.create("t")
    driver.flush()
    driver.put(HOOK)
    driver.delete("t")
    driver.now_ms += 100
    assert paths(driver) == []
    assert key("s") in driver.state.streams
