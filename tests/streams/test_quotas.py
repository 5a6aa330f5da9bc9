"""Quotas: what buckets may keep, decided when a command is applied."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from streamd.streams import keys
from streamd.streams.commands import Append, Create, DeleteBucket, Outcome, Result, SetLimits, Sweep
from streamd.streams.limits import Limits
from streamd.streams.model import Bucket, Settings
from streamd.streams.subscriptions.commands import DeleteSubscription, PutSubscription
from streamd.streams.subscriptions.model import SubscriptionConfig
from tests.streams.driver import TEXT, Driver, key


def limited(max_bytes: int | None = None, **quotas: int) -> Driver:
    """A driver whose buckets all have these quotas."""
    driver = Driver()
    driver.do(SetLimits("bucket", "*", Limits(max_bytes=max_bytes, **quotas)))
    return driver


def bucket(driver: Driver, name: str = "b") -> Bucket:
    found = driver.state.buckets.get(name.encode())
    assert found is not None
    return found


def create(driver: Driver, name: str, of: str = "b", body: bytes = b"") -> Result:
    lengths = [len(body)] if body else []
    return driver.do(
        Create(key(name, of), Settings(TEXT), data=body, lengths=lengths, implicit_bucket=True)
    ).result


def append(driver: Driver, size: int, name: str = "s") -> Result:
    return driver.append(bytes(size), name).result


# -- bytes -----------------------------------------------------------------------------------------


def test_an_append_that_fits_exactly_is_the_last() -> None:
    driver = limited(10)
    driver.create()
    assert append(driver, 10) is Result.APPENDED
    assert append(driver, 1) is Result.BUCKET_FULL
    assert bucket(driver).size == 10


def test_all_streams_of_a_bucket_share_its_bytes() -> None:
    driver = limited(10)
    driver.create("a", body=bytes(4))
    driver.create("c")
    assert append(driver, 7, "c") is Result.BUCKET_FULL
    assert append(driver, 6, "c") is Result.APPENDED
    assert create(driver, "d", body=b"x") is Result.BUCKET_FULL
    assert create(driver, "d") is Result.CREATED
    assert create(driver, "d", "other", bytes(10)) is Result.CREATED


def test_a_refused_append_changes_nothing_that_a_client_can_see() -> None:
    driver = limited(10)
    driver.create()
    driver.append(bytes(8), seq="1", producer=("p", 0, 0))
    driver.flush()
    before = dict(driver.store.rows)
    tail, refused = driver.stream().tail, ("p", 0, 1)
    for close in (False, True):
        outcome = driver.append(bytes(3), seq="2", producer=refused, close=close)
        assert outcome == Outcome.of(Result.BUCKET_FULL, driver.stream())
    driver.flush()
    changed = {row for row, raw in driver.store.rows.items() if before.get(row) != raw}
    assert changed == {keys.HEADER}
    assert driver.stream().tail == tail
    # What the producer asks for next has the number that was refused.
    assert driver.append(bytes(2), seq="2", producer=refused).result is Result.APPENDED


def test_a_repeated_append_is_a_duplicate_however_full_the_bucket_is() -> None:
    driver = limited(10)
    driver.create()
    driver.append(bytes(10), producer=("p", 0, 0))
    assert driver.append(bytes(10), producer=("p", 0, 0)).result is Result.DUPLICATE
    driver.do(SetLimits("bucket", "*", Limits(max_bytes=0)))
    assert driver.append(bytes(10), producer=("p", 0, 0)).result is Result.DUPLICATE


def test_a_full_bucket_can_be_closed_read_cut_and_deleted() -> None:
    driver = limited(10)
    driver.create(body=bytes(6))
    driver.create("other", body=bytes(4))
    assert driver.publish(b"cut", driver.stream().tail).result is Result.PUBLISHED
    assert bucket(driver).size == 4 + 3
    assert driver.close().result is Result.CLOSED
    assert driver.delete() is Result.DELETED
    assert bucket(driver).size == 4


def test_a_quota_below_what_is_kept_refuses_only_more() -> None:
    driver = limited(10)
    driver.create(body=bytes(10))
    driver.do(SetLimits("bucket", "b", Limits(max_bytes=4)))
    assert append(driver, 1) is Result.BUCKET_FULL
    assert create(driver, "another") is Result.CREATED
    assert driver.content() == bytes(10)
    assert driver.publish(bytes(9), driver.stream().tail).result is Result.PUBLISHED
    assert append(driver, 1) is Result.BUCKET_FULL
    assert driver.publish(b"", driver.stream().tail).result is Result.SNAPSHOT_DIFFERS
    assert driver.delete() is Result.DELETED
    assert create(driver, "s", body=bytes(4)) is Result.CREATED


def test_a_quota_of_a_stream_is_for_each_of_them() -> None:
    driver = limited(max_stream_bytes=5)
    assert create(driver, "s", body=bytes(6)) is Result.STREAM_FULL
    driver.create(body=bytes(5))
    driver.create("other", body=bytes(5))
    assert append(driver, 1) is Result.STREAM_FULL
    driver.publish(b"123", driver.stream().tail)
    assert append(driver, 3) is Result.STREAM_FULL
    assert append(driver, 2) is Result.APPENDED


def test_the_quota_that_leaves_less_room_gives_the_reason() -> None:
    driver = limited(10, max_stream_bytes=6)
    driver.create(body=bytes(6))
    driver.create("other", body=bytes(3))
    assert append(driver, 1) is Result.STREAM_FULL
    assert append(driver, 2, "other") is Result.BUCKET_FULL


def test_a_snapshot_larger_than_what_it_replaces_needs_room() -> None:
    driver = limited(10)
    driver.create(body=bytes(6))
    at = driver.stream().tail
    assert driver.publish(bytes(11), at).result is Result.BUCKET_FULL
    assert driver.content() == bytes(6)
    upload_id = driver.upload(at, bytes(6), bytes(5))
    assert driver.publish(bytes(11), at, upload_id=upload_id).result is Result.BUCKET_FULL
    # The upload has ended, as after any refusal.
    again = driver.publish(bytes(11), at, upload_id=upload_id)
    assert again.result is Result.UPLOAD_LOST
    assert driver.publish(bytes(10), at).result is Result.PUBLISHED
    assert bucket(driver).size == 10


# -- forks -----------------------------------------------------------------------------------------


def test_a_fork_counts_only_its_own_records() -> None:
    driver = limited(10)
    driver.create(body=bytes(8))
    assert driver.fork("f", "s").result is Result.CREATED
    assert append(driver, 2, "f") is Result.APPENDED
    assert append(driver, 1, "f") is Result.BUCKET_FULL
    driver.delete("f")
    assert bucket(driver).size == 8


def test_records_that_forks_keep_count_until_the_last_fork_is_gone() -> None:
    driver = limited(10)
    driver.create(body=bytes(8))
    driver.fork("f", "s")
    driver.publish(b"x", driver.stream().tail)
    assert bucket(driver).size == 8 + 1
    driver.delete("s")
    assert bucket(driver).size == 8
    assert append(driver, 3, "f") is Result.BUCKET_FULL
    driver.delete("f")
    assert bucket(driver) == Bucket(driver.now_ms)


def test_the_cut_of_a_stream_takes_effect_when_its_last_fork_ends() -> None:
    driver = limited(100)
    driver.create(body=bytes(8))
    driver.fork("f", "s")
    driver.publish(b"x", driver.stream().tail)
    driver.delete("f")
    assert bucket(driver).size == 1


def test_an_inherited_snapshot_counts_in_each_stream_that_has_it() -> None:
    driver = limited(10)
    driver.create(body=bytes(8))
    driver.publish(bytes(6), driver.stream().tail)
    assert driver.fork("f", "s").result is Result.BUCKET_FULL
    driver.do(SetLimits("bucket", "*", Limits(max_bytes=12)))
    assert driver.fork("f", "s").result is Result.CREATED
    assert bucket(driver).size == 12


def test_a_chain_of_deleted_sources_cannot_evade_the_number_of_streams() -> None:
    driver = limited(max_streams=2)
    driver.create()
    driver.fork("f", "s")
    driver.delete("s")
    assert driver.fork("g", "f").result is Result.TOO_MANY_STREAMS
    driver.delete("f")
    assert create(driver, "g") is Result.CREATED


# -- streams ---------------------------------------------------------------------------------------


def test_a_bucket_has_only_so_many_streams() -> None:
    driver = limited(max_streams=2)
    assert [create(driver, name) for name in "abc"] == [
        Result.CREATED, Result.CREATED, Result.TOO_MANY_STREAMS
    ]  # fmt: skip
    assert create(driver, "a") is Result.EXISTS
    assert create(driver, "c", "other") is Result.CREATED
    driver.delete("a")
    assert create(driver, "c") is Result.CREATED


def test_a_stream_that_is_refused_makes_no_bucket() -> None:
    driver = limited(max_streams=0)
    assert create(driver, "a") is Result.TOO_MANY_STREAMS
    assert driver.state.buckets.get(b"b") is None
    assert driver.do(DeleteBucket(b"b")).result is Result.BUCKET_NOT_FOUND


def test_a_bucket_of_its_own_limits_is_not_under_those_of_the_star() -> None:
    driver = limited(1, max_streams=1)
    driver.do(SetLimits("bucket", "own", Limits(max_bytes=5)))
    driver.do(SetLimits("bucket", "free", Limits()))
    assert create(driver, "a", "own", bytes(5)) is Result.CREATED
    assert create(driver, "c", "own", bytes(1)) is Result.BUCKET_FULL
    assert create(driver, "c", "own") is Result.CREATED
    assert create(driver, "a", "free", bytes(50)) is Result.CREATED
    assert create(driver, "a", "b", bytes(2)) is Result.BUCKET_FULL


# -- counting --------------------------------------------------------------------------------------


def test_nothing_is_counted_before_the_first_quota() -> None:
    driver = Driver()
    driver.do(SetLimits("bucket", "b", Limits(requests_per_s=1)))
    driver.create(body=bytes(5))
    assert driver.stream().kept_from is None
    assert bucket(driver) == Bucket(driver.now_ms, 1)


def test_streams_from_before_the_first_quota_are_counted_by_a_sweep_and_only_once() -> None:
    driver = Driver()
    driver.create(body=bytes(5))
    driver.publish(b"12", driver.stream().tail)
    driver.append(b"345")
    driver.fork("f", "s")
    driver.append(b"6", "f")
    driver.do(SetLimits("bucket", "b", Limits(max_bytes=6)))
    assert bucket(driver).counted == 0
    for _ in range(2):
        driver.do(Sweep([key("s"), key("f"), key("gone")]))
    assert bucket(driver).counted == 2
    assert bucket(driver).size == 2 + 3 + 2 + 1
    driver.delete("f")
    driver.delete("s")
    assert bucket(driver) == Bucket(driver.now_ms)


def test_a_stream_from_before_the_first_quota_is_counted_before_it_grows() -> None:
    driver = Driver()
    driver.create(body=bytes(5))
    driver.do(SetLimits("bucket", "b", Limits(max_bytes=6)))
    assert append(driver, 2) is Result.BUCKET_FULL
    assert append(driver, 1) is Result.APPENDED
    assert bucket(driver).size == 6


def test_an_uncounted_stream_that_ends_takes_nothing_from_the_count() -> None:
    driver = Driver()
    driver.create(body=bytes(5))
    driver.do(SetLimits("bucket", "b", Limits(max_bytes=6)))
    driver.create("counted", body=b"x")
    driver.delete()
    assert bucket(driver) == Bucket(driver.now_ms, 1, 0, 1, 1)


def test_counting_continues_after_the_last_quota_is_cleared() -> None:
    driver = limited(10)
    driver.do(SetLimits("bucket", "*", None))
    driver.create(body=bytes(11))
    assert bucket(driver).size == 11


def test_counts_and_quotas_survive_a_restart() -> None:
    driver = limited(10)
    driver.create(body=bytes(6))
    driver.flush()
    driver.reopen()
    assert bucket(driver).size == 6
    assert append(driver, 5) is Result.BUCKET_FULL
    assert create(driver, "new", body=bytes(4)) is Result.CREATED
    assert driver.stream("new").kept_from == 0


def test_moving_records_to_the_cold_store_frees_nothing() -> None:
    driver = limited(10)
    driver.create(body=bytes(8))
    driver.flush_cold()
    assert bucket(driver).size == 8
    assert append(driver, 3) is Result.BUCKET_FULL


def test_rows_from_before_there_were_quotas_are_read() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode([5, 2, 1]), type=Bucket) == Bucket(5, 2, 1)


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    limits=st.builds(
        Limits,
        max_bytes=st.none() | st.integers(0, 30),
        max_stream_bytes=st.none() | st.integers(0, 30),
    ),
)
def test_appends_in_a_run_are_judged_like_single_ones(sizes: list[int], limits: Limits) -> None:
    single, together = Driver(), Driver()
    for driver in (single, together):
        driver.do(SetLimits("bucket", "b", limits))
        driver.create()
        driver.create("other", body=b"123")
    commands = [Append(key("s"), TEXT, bytes(size), [size]) for size in sizes]
    expected = [single.do(command) for command in commands]
    outcomes = together.entry(*commands)
    for one, other in zip(outcomes, expected, strict=True):
        assert (one.result, one.tail, one.incarnation) == (
            other.result, other.tail, other.incarnation
        )  # fmt: skip
    assert bucket(together) == bucket(single)
    assert together.find() == single.find()


# -- subscriptions ---------------------------------------------------------------------------------


def subscribe(driver: Driver, name: str, owner: str) -> Result:
    config = SubscriptionConfig("webhook", "b/*", "https://worker.example/")
    return driver.do(PutSubscription(name, config, owner=owner)).result


def test_an_identity_makes_as_many_subscriptions_as_its_limits_allow() -> None:
    driver = Driver()
    driver.do(SetLimits("identity", "ci", Limits(max_subscriptions=1)))
    driver.do(SetLimits("identity", "*", Limits(max_subscriptions=2)))
    assert [subscribe(driver, name, "ci") for name in "ab"] == [
        Result.CREATED, Result.OWNS_TOO_MANY
    ]  # fmt: skip
    assert subscribe(driver, "a", "ci") is Result.EXISTS
    assert [subscribe(driver, name, "other") for name in "cde"] == [
        Result.CREATED, Result.CREATED, Result.OWNS_TOO_MANY
    ]  # fmt: skip
    assert subscribe(driver, "e", "") is Result.CREATED, "root tokens have no limits"
    assert driver.state.limits.refusals == {"owns-too-many-subscriptions": 2}


def test_a_deleted_subscription_counts_no_longer_and_a_stored_one_does() -> None:
    driver = Driver()
    driver.do(SetLimits("identity", "ci", Limits(max_subscriptions=2)))
    for name in "ab":
        subscribe(driver, name, "ci")
    driver.do(DeleteSubscription("a"))
    driver.flush()
    driver.reopen()
    assert driver.state.subscriptions.owned_by("ci") == 1
    assert [subscribe(driver, name, "ci") for name in "cd"] == [
        Result.CREATED, Result.OWNS_TOO_MANY
    ]  # fmt: skip
    # A lower limit leaves what there is, and to clear it allows any number.
    driver.do(SetLimits("identity", "ci", Limits(max_subscriptions=0)))
    assert driver.state.subscriptions.owned_by("ci") == 2
    driver.do(SetLimits("identity", "ci"))
    assert subscribe(driver, "d", "ci") is Result.CREATED


def test_a_quota_of_subscriptions_counts_no_bytes() -> None:
    driver = Driver()
    driver.do(SetLimits("identity", "ci", Limits(max_subscriptions=2)))
    driver.create(body=b"abc")
    assert not driver.state.header.counts
    assert driver.stream().kept_from is None
