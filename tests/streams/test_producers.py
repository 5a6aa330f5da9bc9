"""Idempotent producers: each request of a producer takes effect once, in order."""

from __future__ import annotations

import pytest

from streamd.streams.commands import Outcome, Result
from streamd.streams.offsets import Position
from tests.streams.driver import Driver


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.create()
    return driver


def said(outcome: Outcome) -> tuple[Result, int, int]:
    return outcome.result, outcome.epoch, outcome.seq


def test_a_producer_counts_from_0(driver: Driver) -> None:
    assert said(driver.append(b"x", producer=("p", 4, 1))) == (Result.SEQ_GAP, 4, 0)
    assert said(driver.append(b"x", producer=("p", 4, 0))) == (Result.APPENDED, 4, 0)
    assert said(driver.append(b"y", producer=("p", 4, 1))) == (Result.APPENDED, 4, 1)


def test_a_gap_names_the_number_expected(driver: Driver) -> None:
    driver.append(b"x", producer=("p", 0, 0))
    assert said(driver.append(b"z", producer=("p", 0, 2))) == (Result.SEQ_GAP, 0, 1)
    assert driver.content() == b"x"


def test_a_repeated_last_request_gets_its_own_tail(driver: Driver) -> None:
    driver.append(b"x", producer=("p", 0, 0))
    driver.append(b"others")
    again = driver.append(b"x", producer=("p", 0, 0))
    assert said(again) == (Result.DUPLICATE, 0, 0)
    assert again.tail == Position(1, 1)
    assert driver.content() == b"xothers"


def test_a_repeated_older_request_gets_the_streams_tail_and_the_last_number(driver: Driver) -> None:
    driver.append(b"x", producer=("p", 0, 0))
    driver.append(b"y", producer=("p", 0, 1))
    driver.append(b"z", producer=("p", 0, 2))
    again = driver.append(b"x", producer=("p", 0, 0))
    assert said(again) == (Result.DUPLICATE, 0, 2)
    assert again.tail == Position(3, 3)


def test_an_epoch_fences_off_those_before_it(driver: Driver) -> None:
    driver.append(b"x", producer=("p", 1, 0))
    assert said(driver.append(b"y", producer=("p", 2, 0))) == (Result.APPENDED, 2, 0)
    assert said(driver.append(b"z", producer=("p", 1, 1))) == (Result.EPOCH_STALE, 2, 0)
    assert said(driver.append(b"z", producer=("p", 1, 0))) == (Result.EPOCH_STALE, 2, 0)
    assert driver.content() == b"xy"


def test_an_epoch_starts_with_0(driver: Driver) -> None:
    driver.append(b"x", producer=("p", 1, 0))
    driver.append(b"x", producer=("p", 1, 1))
    refused = driver.append(b"y", producer=("p", 2, 2))
    assert (refused.result, refused.epoch) == (Result.EPOCH_WITHOUT_RESTART, 1)
    assert said(driver.append(b"y", producer=("p", 1, 2))) == (Result.APPENDED, 1, 2)


def test_epochs_may_be_skipped(driver: Driver) -> None:
    driver.append(b"x", producer=("p", 0, 0))
    assert driver.append(b"y", producer=("p", 9, 0)).result is Result.APPENDED


def test_producers_are_distinguished_by_id_and_stream(driver: Driver) -> None:
    driver.create("other")
    for name in ("s", "other"):
        for producer in ("p", "q", ""):
            outcome = driver.append(b"x", name, producer=(producer, 0, 0))
            assert outcome.result is Result.APPENDED
    assert driver.content("s") == driver.content("other") == b"xxx"


def test_a_refused_append_does_not_consume_its_number(driver: Driver) -> None:
    driver.append(b"x", producer=("p", 0, 0))
    refused = driver.append(b"1", content_type="application/json", producer=("p", 0, 1))
    assert refused.result is Result.CONTENT_TYPE_DIFFERS
    assert driver.append(b"y", producer=("p", 0, 1)).result is Result.APPENDED


def test_a_close_takes_a_number_like_an_append(driver: Driver) -> None:
    driver.append(b"x", producer=("p", 0, 0))
    assert said(driver.close(producer=("p", 0, 2))) == (Result.SEQ_GAP, 0, 1)
    closed = driver.close(producer=("p", 0, 1))
    assert said(closed) == (Result.CLOSED, 0, 1)
    assert closed.closed


def test_the_request_that_closed_can_be_repeated(driver: Driver) -> None:
    driver.append(b"x", close=True, producer=("p", 0, 0))
    again = driver.append(b"x", close=True, producer=("p", 0, 0))
    assert said(again) == (Result.DUPLICATE, 0, 0)
    assert again.closed
    assert again.tail == Position(1, 1)
    assert driver.append(b"y", producer=("p", 0, 1)).result is Result.STREAM_CLOSED


def test_a_close_without_records_can_be_repeated_by_its_producer(driver: Driver) -> None:
    driver.close(producer=("p", 0, 0))
    again = driver.close(producer=("p", 0, 0))
    assert (again.result, again.closed) == (Result.DUPLICATE, True)


def test_another_producer_gets_stream_closed(driver: Driver) -> None:
    driver.close(producer=("p", 0, 0))
    assert driver.close(producer=("q", 0, 0)).result is Result.STREAM_CLOSED
    assert driver.close(producer=("p", 1, 0)).result is Result.STREAM_CLOSED
    assert driver.close().result is Result.CLOSED


def test_a_request_before_the_close_was_not_the_one_that_closed(driver: Driver) -> None:
    driver.append(b"x", producer=("p", 0, 0))
    driver.close()
    again = driver.append(b"x", producer=("p", 0, 0))
    assert again.result is Result.DUPLICATE
    assert not again.closed


def test_producers_are_remembered_across_a_restart(driver: Driver) -> None:
    driver.append(b"x", producer=("ü", 2, 0))
    driver.append(b"y", close=True, producer=("p", 3, 0))
    driver.flush()
    driver.reopen()
    assert said(driver.append(b"x", producer=("ü", 2, 0))) == (Result.DUPLICATE, 2, 0)
    assert driver.append(b"y", producer=("p", 3, 0)).closed
    assert said(driver.append(b"y", producer=("p", 2, 9))) == (Result.EPOCH_STALE, 3, 0)
