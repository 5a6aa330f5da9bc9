"""The state keeps the record of each operation, and takes only the next version of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from streamd.streams.commands import RaiseLevel, RecordOperation, RenewIncarnations, Result
from streamd.streams.operations.model import Arguments, Operation, Step, StepRecord
from streamd.streams.operations.records import MAX_OPERATIONS
from tests.streams.driver import Driver

FIRST = Operation(1, 1, "drain", Arguments(node_id=2), "ops", 1000, (StepRecord(Step("stop", 2)),))
SECOND = replace(FIRST, version=2, why="it waits")
DONE = replace(FIRST, version=3, state="done", current=1)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def put(driver: Driver, operation: Operation) -> Result:
    return driver.do(RecordOperation(operation)).result


def test_a_record_is_replaced_by_its_next_version_alone(driver: Driver) -> None:
    assert put(driver, FIRST) is Result.DONE
    assert put(driver, DONE) is Result.STALE, "a version is missing"
    assert put(driver, SECOND) is Result.DONE
    assert put(driver, replace(SECOND, why="another leader's")) is Result.STALE
    assert driver.state.operations.current == SECOND
    assert put(driver, DONE) is Result.DONE
    assert put(driver, replace(DONE, version=4)) is Result.STALE, "it has ended"
    assert driver.state.operations.current is None


def test_one_operation_is_in_progress_at_a_time(driver: Driver) -> None:
    put(driver, FIRST)
    assert put(driver, replace(FIRST, operation_id=2)) is Result.OPERATION_IN_PROGRESS
    assert put(driver, replace(SECOND, operation_id=2)) is Result.STALE
    put(driver, replace(DONE, version=2))
    assert put(driver, FIRST) is Result.STALE, "its number was given"
    assert put(driver, replace(FIRST, operation_id=3)) is Result.STALE
    assert put(driver, replace(FIRST, operation_id=2)) is Result.DONE


def test_records_are_in_the_rows_of_the_state(driver: Driver) -> None:
    put(driver, FIRST)
    driver.flush()
    put(driver, SECOND)
    driver.flush()
    driver.reopen()
    assert driver.state.operations.records == {1: SECOND}
    assert driver.state.operations.last_id == 1


def test_the_latest_hundred_are_kept(driver: Driver) -> None:
    for number in range(1, MAX_OPERATIONS + 6):
        put(driver, replace(FIRST, operation_id=number))
        put(driver, replace(DONE, operation_id=number, version=2))
    for _ in range(2):
        assert list(driver.state.operations.records) == list(range(6, MAX_OPERATIONS + 6))
        driver.flush()
        driver.reopen()


def test_what_does_not_fit_changes_nothing(driver: Driver) -> None:
    unfit = replace(FIRST, why="x" * 501)
    assert put(driver, unfit) is Result.INVALID
    heavy = replace(FIRST, steps=tuple(StepRecord(Step("stop"), note="x" * 500) for _ in range(64)))
    assert put(driver, heavy) is Result.INVALID
    assert not driver.state.operations.records


def test_another_cluster_abandons_the_operation(driver: Driver) -> None:
    put(driver, FIRST)
    driver.do(RenewIncarnations(5))
    ended = driver.state.operations.records[1]
    assert (ended.state, ended.version, ended.ended_at_ms) == ("failed", 2, driver.now_ms)
    assert "another cluster" in ended.why
    driver.do(RenewIncarnations(6))
    assert driver.state.operations.records[1] == ended


def test_the_feature_level_only_rises(driver: Driver) -> None:
    assert driver.do(RaiseLevel(6)).result is Result.DONE
    driver.do(RaiseLevel(4))
    driver.flush()
    driver.reopen()
    assert driver.state.header.features == 6
