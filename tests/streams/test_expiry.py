"""Expiry: sliding windows, fixed ends, and sweeps."""

from __future__ import annotations

import pytest

from streamd.streams.commands import CreateBucket, Result, Sweep, Touch
from streamd.streams.state import due_for_sweep
from tests.streams.driver import Driver, key

WINDOW_MS = 5000


@pytest.fixture
def driver() -> Driver:
    return Driver()


def touch(driver: Driver, at_ms: int, name: str = "s") -> None:
    read = (key(name), driver.stream(name).stream_id, at_ms)
    assert driver.do(Touch([read])).result is Result.DONE


def sweep(driver: Driver, *names: str) -> None:
    assert driver.do(Sweep([key(name) for name in names])).result is Result.DONE


def due(driver: Driver) -> list[bytes]:
    driver.flush()
    return due_for_sweep(driver.store, driver.now_ms, limit=100)


# -- log time ---------------------------------------------------------------------------------


def test_log_time_never_goes_backwards(driver: Driver) -> None:
    driver.create("early", ttl_ms=WINDOW_MS)
    driver.now_ms += WINDOW_MS
    driver.do(CreateBucket(b"later"))
    driver.now_ms -= WINDOW_MS
    assert driver.append(b"x", "early").result is Result.NOT_FOUND
    driver.create("late")
    assert driver.stream("late").created_ms == driver.now_ms + WINDOW_MS
    assert driver.state.header.log_ms == driver.now_ms + WINDOW_MS


# -- sliding windows --------------------------------------------------------------------------


def test_a_window_ends_on_the_millisecond(driver: Driver) -> None:
    driver.create(ttl_ms=WINDOW_MS)
    driver.now_ms += WINDOW_MS - 1
    assert driver.create(ttl_ms=WINDOW_MS).result is Result.EXISTS
    driver.now_ms += 1
    assert driver.append(b"x").result is Result.NOT_FOUND
    assert driver.find() is None
    assert driver.state.header.streams == 0


def test_an_append_renews_the_window(driver: Driver) -> None:
    driver.create(ttl_ms=WINDOW_MS)
    for _ in range(3):
        driver.now_ms += WINDOW_MS - 1
        assert driver.append(b"x").result is Result.APPENDED
    driver.now_ms += WINDOW_MS
    assert driver.append(b"x").result is Result.NOT_FOUND


def test_a_close_renews_the_window(driver: Driver) -> None:
    driver.create(ttl_ms=WINDOW_MS)
    driver.now_ms += WINDOW_MS - 1
    driver.close()
    driver.now_ms += WINDOW_MS - 1
    assert driver.close().result is Result.CLOSED


def test_a_refused_append_does_not_renew_the_window(driver: Driver) -> None:
    driver.create(ttl_ms=WINDOW_MS)
    driver.now_ms += WINDOW_MS - 1
    driver.append(b"1", content_type="application/json")
    driver.now_ms += 1
    assert driver.append(b"x").result is Result.NOT_FOUND


def test_a_read_renews_the_window_from_its_own_time_on(driver: Driver) -> None:
    driver.create(ttl_ms=WINDOW_MS)
    read_ms = driver.now_ms + 3000
    driver.now_ms += 4000
    touch(driver, read_ms)
    driver.now_ms = read_ms + WINDOW_MS - 1
    assert driver.append(b"x").result is Result.APPENDED


def test_a_read_at_the_end_of_the_window_renews_nothing(driver: Driver) -> None:
    driver.create(ttl_ms=WINDOW_MS)
    end = driver.now_ms + WINDOW_MS
    touch(driver, end)
    assert driver.stream().expiry_ms() == end
    touch(driver, end - 1)
    assert driver.stream().expiry_ms() == end - 1 + WINDOW_MS


def test_an_older_read_does_not_shorten_the_window(driver: Driver) -> None:
    driver.create(ttl_ms=WINDOW_MS)
    driver.now_ms += 1000
    driver.append(b"x")
    touch(driver, driver.now_ms - 500)
    assert driver.stream().expiry_ms() == driver.now_ms + WINDOW_MS


def test_a_read_of_a_former_stream_of_that_name_renews_nothing(driver: Driver) -> None:
    driver.create(ttl_ms=WINDOW_MS)
    former = driver.stream().stream_id
    driver.delete()
    driver.create(ttl_ms=WINDOW_MS)
    driver.do(Touch([(key("s"), former, driver.now_ms + 1), (key("absent"), 1, driver.now_ms)]))
    assert driver.stream().expiry_ms() == driver.now_ms + WINDOW_MS


def test_a_read_not_yet_in_the_log_can_be_taken_into_account(driver: Driver) -> None:
    driver.create(ttl_ms=WINDOW_MS)
    stream = driver.stream()
    end = driver.now_ms + WINDOW_MS
    assert stream.expired(end)
    assert not stream.expired(end, touched_ms=driver.now_ms + 1)


# -- fixed ends -------------------------------------------------------------------------------


def test_a_fixed_end_is_not_renewed(driver: Driver) -> None:
    end = driver.now_ms + WINDOW_MS
    driver.create(expires_at_ms=end)
    driver.now_ms = end - 1
    assert driver.append(b"x").result is Result.APPENDED
    touch(driver, driver.now_ms)
    driver.now_ms = end
    assert driver.append(b"x").result is Result.NOT_FOUND


def test_a_stream_without_window_or_end_stays(driver: Driver) -> None:
    driver.create()
    driver.now_ms += 10**12
    assert driver.append(b"x").result is Result.APPENDED
    assert due(driver) == []


# -- what an expired stream is to a command ---------------------------------------------------


def test_an_expired_stream_cannot_be_deleted(driver: Driver) -> None:
    driver.create(ttl_ms=WINDOW_MS)
    driver.now_ms += WINDOW_MS
    assert driver.delete() is Result.NOT_FOUND
    assert driver.find() is None


def test_an_expired_stream_makes_room_for_a_new_one(driver: Driver) -> None:
    driver.create(body=b"old", ttl_ms=WINDOW_MS)
    former = driver.stream().stream_id
    driver.now_ms += WINDOW_MS
    assert driver.create(body=b"new").result is Result.CREATED
    assert driver.stream().stream_id != former
    assert driver.content() == b"new"
    assert driver.state.header.streams == 1


def test_an_expired_stream_ends_even_for_a_refused_fork(driver: Driver) -> None:
    driver.create(ttl_ms=WINDOW_MS)
    driver.now_ms += WINDOW_MS
    assert driver.fork("s", "s").result is Result.SOURCE_NOT_FOUND
    assert driver.find() is None
    assert driver.state.header.streams == 0


def test_live_readers_hear_of_the_expiry(driver: Driver) -> None:
    driver.create(ttl_ms=WINDOW_MS)
    stream_id = driver.stream().stream_id
    driver.now_ms += WINDOW_MS
    sweep(driver, "s")
    assert driver.machine.take_changes()[stream_id].ended


@pytest.mark.parametrize("end", [-1, -62_135_596_800_000], ids=["1969", "year 1"])
def test_an_end_before_1970_is_over_at_once(driver: Driver, end: int) -> None:
    assert driver.create(expires_at_ms=end).result is Result.CREATED
    assert due(driver) == [key("s")]
    sweep(driver, "s")
    assert driver.find() is None
    assert due(driver) == []
    driver.create(expires_at_ms=end)
    assert driver.append(b"x").result is Result.NOT_FOUND


# -- sweeping ---------------------------------------------------------------------------------


def test_a_sweep_removes_expired_streams(driver: Driver) -> None:
    driver.create("a", ttl_ms=WINDOW_MS)
    driver.create("b", expires_at_ms=driver.now_ms + WINDOW_MS)
    driver.create("c", ttl_ms=WINDOW_MS + 1)
    driver.now_ms += WINDOW_MS
    assert due(driver) == [key("a"), key("b")]
    sweep(driver, "a", "b", "c", "never was")
    assert driver.find("a") is None
    assert driver.find("b") is None
    assert driver.find("c") is not None
    assert due(driver) == []


def test_a_renewed_stream_is_checked_again_later(driver: Driver) -> None:
    driver.create(ttl_ms=WINDOW_MS)
    driver.now_ms += WINDOW_MS - 1
    driver.append(b"x")
    driver.now_ms += 1
    assert due(driver) == [key("s")]
    sweep(driver, "s")
    assert due(driver) == []
    driver.now_ms += WINDOW_MS - 1
    assert due(driver) == [key("s")]
    sweep(driver, "s")
    assert driver.find() is None


def test_a_sweep_ahead_of_time_changes_nothing(driver: Driver) -> None:
    driver.create(ttl_ms=WINDOW_MS)
    sweep(driver, "s", "s")
    driver.now_ms += WINDOW_MS
    assert due(driver) == [key("s")]


def test_a_deleted_stream_is_not_checked_again(driver: Driver) -> None:
    driver.create(ttl_ms=WINDOW_MS)
    driver.flush()
    driver.delete()
    driver.now_ms += WINDOW_MS
    assert due(driver) == []


def test_due_streams_are_returned_in_order_and_limited_in_number(driver: Driver) -> None:
    for name, ttl_ms in (("late", 3000), ("early", 1000), ("middle", 2000)):
        driver.create(name, ttl_ms=ttl_ms)
    driver.now_ms += 3000
    driver.flush()
    assert due_for_sweep(driver.store, driver.now_ms, limit=2) == [key("early"), key("middle")]
