"""The log itself records how far it is archived."""

from __future__ import annotations

import pytest

from streamd.streams.commands import Archived, RenewIncarnations, Result
from streamd.streams.model import LogPosition, LogTree
from tests.streams.driver import Driver

NOTHING = LogPosition()
TERM = 1

ONE, TWO = bytes([1]) * 32, bytes([2]) * 32


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


def test_the_tree_over_the_log_is_that_of_the_last_segment(driver: Driver) -> None:
    header = driver.state.header
    driver.do(Archived(TERM, NOTHING, _place(4), tree=LogTree(1, (ONE,))))
    assert header.tree == LogTree(1, (ONE,))
    assert header.tree.size_at(4) == 4
    driver.do(Archived(TERM, _place(4), _place(5), tree=LogTree(1, (ONE, TWO))))
    driver.flush()
    driver.reopen()
    assert driver.state.header.tree == LogTree(1, (ONE, TWO))
    driver.do(Archived(TERM, _place(4), _place(6), tree=LogTree(1, (TWO, ONE))))
    assert driver.state.header.tree == LogTree(1, (ONE, TWO)), "it did not continue the archive"
    driver.do(Archived(TERM, _place(5), _place(6)))
    assert driver.state.header.tree == LogTree(), "a member of an earlier release archived this"
    driver.do(Archived(TERM, _place(6), _place(7), tree=LogTree(7, (TWO,))))
    driver.do(RenewIncarnations(5))
    assert driver.state.header.tree == LogTree(), "it is of another cluster from here on"


@pytest.mark.parametrize(
    "tree",
    [
        LogTree(),
        LogTree(5, ()),
        LogTree(-1, (ONE, TWO)),
        LogTree(1, (ONE, TWO)),
        LogTree(1, (ONE[1:],)),
    ],
    ids=["none", "of later entries", "of a negative entry", "too many nodes", "a short node"],
)
def test_what_cannot_be_a_tree_up_to_that_entry_is_refused(driver: Driver, tree: LogTree) -> None:
    refused = driver.do(Archived(TERM, NOTHING, _place(4), tree=tree))
    assert refused.result is Result.INVALID
    assert driver.state.header.archived == NOTHING
