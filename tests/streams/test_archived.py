"""The log itself records how far it is archived."""

from __future__ import annotations

import pytest

from streamd.streams.commands import Archived, Result
from streamd.streams.model import LogPosition
from tests.streams.driver import Driver

NOTHING = LogPosition()
TERM = 1


@pytest.fixture
def driver() -> Driver:
    """A machine that has applied ten entries."""
    driver = Driver()
    for _ in range(10):
        driver.entry()
    return driver


def _place(index: int) -> LogPosition:
    return LogPosition(index, TERM, 7 * index, 1_000)


def test_the_archive_continues_where_it_ended(driver: Driver) -> None:
    driver.do(Archived(TERM, NOTHING, _place(4)))
    assert driver.do(Archived(TERM, _place(4), _place(9))).result is Result.DONE
    driver.flush()
    driver.reopen()
    assert driver.state.header.archived == _place(9)


@pytest.mark.parametrize(
    "refused",
    [
        Archived(TERM + 1, _place(4), _place(9)),
        Archived(TERM - 1, _place(4), _place(9)),
        Archived(TERM, NOTHING, _place(9)),
        Archived(TERM, LogPosition(4, TERM, 1, 1_000), _place(9)),
        Archived(TERM, _place(4), _place(4)),
        Archived(TERM, _place(4), _place(3)),
        Archived(TERM, _place(4), _place(12)),
    ],
    ids=["later term", "deposed", "from the start", "another chain", "again", "back", "itself"],
)
def test_a_segment_that_does_not_continue_the_archive_changes_nothing(
    driver: Driver, refused: Archived
) -> None:
    driver.do(Archived(TERM, NOTHING, _place(4)))
    assert driver.state.header.applied_index == 11
    assert driver.do(refused).result is Result.STALE
    assert driver.state.header.archived == _place(4)
