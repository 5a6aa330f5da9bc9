"""Snapshots of applications in the machine: parts, retention, forks, the end of uploads."""

from __future__ import annotations

import msgspec
import pytest

from streamd.streams import keys
from streamd.streams.chunks import Window
from streamd.streams.codec import decode_batch
from streamd.streams.commands import Append, DropUploads, Result, StorePart
from streamd.streams.model import Settings, Stream
from streamd.streams.offsets import START, Position
from tests.streams.driver import JSON, Driver, key

ONE, TWO, TAIL = Position(1, 3), Position(2, 6), Position(3, 9)


@pytest.fixture
def driver() -> Driver:
    """A stream of three records of three bytes."""
    driver = Driver()
    driver.create()
    for record in (b"one", b"two", b"six"):
        driver.append(record)
    return driver


def chunks(driver: Driver, name: str = "s") -> int:
    start, stop = keys.id_range(keys.CHUNK, driver.stream(name).stream_id)
    return len(driver.store.scan(start, stop, limit=100))


def rows(driver: Driver, letter: bytes) -> int:
    return sum(row[:1] == letter for row in driver.store.rows)


def test_a_snapshot_makes_earlier_records_unreadable(driver: Driver) -> None:
    outcome = driver.publish(b"state", TWO)
    assert (outcome.result, outcome.tail, outcome.earliest) == (Result.PUBLISHED, TAIL, TWO)
    assert (driver.stream().earliest, driver.blob(), driver.content()) == (TWO, b"state", b"six")


def test_parts_become_one_snapshot(driver: Driver) -> None:
    upload_id = driver.upload(TWO, b"st", b"at", b"e")
    assert driver.publish(b"state", TWO, upload_id=upload_id).result is Result.PUBLISHED
    assert driver.blob() == b"state"
    driver.flush()
    driver.reopen()
    assert driver.blob() == b"state"
    assert rows(driver, keys.UPLOAD) == 0


def test_a_part_out_of_turn_or_of_no_upload_is_refused(driver: Driver) -> None:
    upload_id = driver.upload(TWO, b"st")
    for wrong in (
        StorePart(upload_id, 0, b"st"),
        StorePart(upload_id, 2, b"e"),
        StorePart(99, 0, b"x"),
    ):
        assert driver.do(wrong).result is Result.UPLOAD_LOST


def test_an_upload_of_another_size_is_not_published(driver: Driver) -> None:
    upload_id = driver.upload(TWO, b"st")
    assert driver.publish(b"state", TWO, upload_id=upload_id).result is Result.UPLOAD_LOST
    assert driver.stream().snapshot is None


def test_an_upload_for_a_stream_that_was_created_again_is_not_published(driver: Driver) -> None:
    upload_id = driver.upload(START, b"old")
    driver.delete()
    driver.create()
    assert driver.publish(b"old", START, upload_id=upload_id).result is Result.NOT_FOUND
    assert driver.stream().snapshot is None


@pytest.mark.parametrize("end", ["published", "refused", "deleted"])
def test_an_upload_leaves_no_rows_whatever_its_outcome(driver: Driver, end: str) -> None:
    upload_id = driver.upload(TWO, b"state")
    if end == "refused":
        driver.publish(b"newer", TAIL)
    elif end == "deleted":
        driver.delete()
    driver.publish(b"state", TWO, upload_id=upload_id)
    driver.flush()
    driver.reclaim()
    assert rows(driver, keys.UPLOAD) == 0
    assert rows(driver, keys.BLOB_PART) == (0 if end == "deleted" else 1)


def test_abandoned_uploads_expire_by_log_time(driver: Driver) -> None:
    old = driver.upload(TWO, b"st")
    driver.now_ms += 60
    new = driver.upload(TWO, b"st")
    driver.now_ms += 40
    driver.do(DropUploads([old, new], idle_ms=100))
    assert driver.do(StorePart(old, 1, b"x")).result is Result.UPLOAD_LOST
    assert driver.do(StorePart(new, 1, b"x")).result is Result.UPLOADING


def test_trimmed_chunks_and_superseded_blobs_leave_the_store(driver: Driver) -> None:
    driver.append(bytes(300_000))
    driver.append(b"end")
    driver.flush()
    before = chunks(driver)
    driver.publish(b"old", ONE)
    driver.publish(b"new", Position(5, 300_012))
    driver.flush()
    driver.reclaim()
    assert chunks(driver) < before
    assert (rows(driver, keys.BLOB_PART), rows(driver, keys.BLOB)) == (1, 1)
    driver.append(b"more")
    driver.flush()
    driver.reopen()
    assert (driver.content(), driver.blob()) == (b"more", b"new")


def test_records_that_a_fork_reads_stay_until_the_fork_is_deleted(driver: Driver) -> None:
    driver.fork("f", "s", TWO)
    driver.publish(b"state", TAIL)
    driver.flush()
    driver.reclaim()
    assert driver.content("f") == b"onetwo"
    driver.delete("f")
    driver.flush()
    driver.reclaim()
    assert chunks(driver) == 0


def test_forks_share_a_blob_that_is_removed_with_the_last_of_them(driver: Driver) -> None:
    driver.publish(b"state", TWO)
    driver.fork("f", "s")
    driver.fork("g", "f")
    driver.delete("s")
    driver.publish(b"own", TAIL, "f")
    for name, expected in (("g", b"state"), ("f", b"own")):
        driver.flush()
        driver.reclaim()
        driver.reopen()
        assert driver.blob(name) == expected
        driver.delete(name)
    driver.flush()
    driver.reclaim()
    assert rows(driver, keys.BLOB_PART) == rows(driver, keys.BLOB) == 0


def test_a_fork_below_the_snapshot_is_refused_and_leaves_no_reference(driver: Driver) -> None:
    driver.publish(b"state", TWO)
    outcome = driver.fork("f", "s", ONE)
    assert (outcome.result, outcome.earliest) == (Result.OFFSET_GONE, TWO)
    assert driver.stream().forks == 0


@pytest.mark.parametrize("end", ["deleted", "expired"])
def test_a_deleted_stream_frees_its_blob_and_a_recreated_one_has_none(end: str) -> None:
    driver = Driver()
    driver.create(ttl_ms=50)
    driver.append(b"one")
    driver.publish(b"state", ONE)
    if end == "deleted":
        driver.delete()
    driver.now_ms += 60
    assert driver.create(ttl_ms=50).result is Result.CREATED
    assert (driver.stream().snapshot, driver.stream().earliest) == (None, START)
    driver.flush()
    driver.reclaim()
    assert rows(driver, keys.BLOB_PART) == rows(driver, keys.BLOB) == 0


def test_publishing_renews_a_sliding_window() -> None:
    driver = Driver()
    driver.create(ttl_ms=50)
    driver.now_ms += 40
    driver.publish(b"", START)
    driver.now_ms += 40
    assert driver.append(b"x").result is Result.APPENDED


def test_json_records_come_with_their_lengths(driver: Driver) -> None:
    driver.create("j", JSON)
    driver.append(b"[1, 22, 333]", "j", JSON)
    found = driver.recent(driver.stream("j"), Window(Position(1, 2), 100))
    assert found is not None
    assert found.lengths() == [3, 4]


def test_rows_written_before_snapshots_existed_are_still_read() -> None:
    row = msgspec.msgpack.encode([7, [None, None, None, None, None], "text/plain", 1, 2, 3])
    stream = msgspec.msgpack.decode(row, type=Stream)
    assert (stream.stream_id, stream.settings, stream.snapshot) == (7, Settings(), None)
    batch = msgspec.msgpack.encode([5, [["append", key("s"), "text/plain", b"x", [1]]]])
    assert decode_batch(batch).commands == [Append(key("s"), "text/plain", b"x", [1])]
