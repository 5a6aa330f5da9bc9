"""Entries follow one another: indexes, terms, log time, one leader to a term."""

from __future__ import annotations

import pytest

from streamd_audit.log_order import NOOP, RUN, WRONG, Entries, Runs, Told, joined

Entry = tuple[int, int, int | None]
"""Index, term, stamp; an entry without a stamp is a leader's first."""


def told_of(task: list[list[Entry]]) -> list[Told]:
    """The rows of the entries that a task reads, in batches."""
    runs = Runs()
    told: list[Told] = []
    for part in task:
        index, term, stamps = (list(column) for column in zip(*part, strict=True))
        noops = [at for at, stamp in enumerate(stamps) if stamp is None]
        chain = [at * 3 for at in index]
        told += runs.take(Entries(0, f"segment of {index[0]}", index, term, stamps, chain, noops))
    return [*told, *runs.finish()]


def judge(*tasks: list[list[Entry]]) -> tuple[list[tuple[str, int]], list[tuple[int, int]]]:
    """What is wrong with the entries that tasks read, in batches, and the runs they make."""
    told = [one for task in tasks for one in told_of(task)]
    told.sort(key=lambda one: (one.what, one.first_term * (one.what == NOOP), one.first))
    found = list(joined(told))
    wrong = [(one.kind, one.first) for one in found if one.what == WRONG]
    runs = [one for one in found if one.what == RUN]
    assert all(run.last_chain == run.last * 3 for run in runs)
    return wrong, [(run.first, run.last) for run in runs]


def entries(first: int, last: int, term: int = 1) -> list[Entry]:
    return [(index, term, 1000 + index) for index in range(first, last + 1)]


def test_a_log_read_by_many_tasks_in_any_order_is_one_run() -> None:
    first = [[(1, 1, None), *entries(2, 9)], entries(10, 12)]
    assert judge([entries(20, 30)], first, [entries(13, 19)]) == ([], [(1, 30)])


def test_missing_entries_divide_the_log() -> None:
    assert judge([entries(1, 9), entries(12, 14)], [entries(17, 18)]) == (
        [],
        [(1, 9), (12, 14), (17, 18)],
    )


@pytest.mark.parametrize("parted", [False, True])
def test_a_decreasing_term_is_reported_at_its_entry(parted: bool) -> None:
    later, back = entries(1, 5, term=3), entries(6, 9, term=2)
    tasks = [[later], [back]] if parted else [[later, back]]
    assert judge(*tasks) == ([("term_wrong", 6)], [(1, 9)])


@pytest.mark.parametrize("parted", [False, True])
def test_a_decreasing_stamp_is_reported_and_later_ones_are_not(parted: bool) -> None:
    back = [(6, 1, 7), *entries(7, 9)]
    tasks = [[entries(1, 5)], [back]] if parted else [[entries(1, 5), back]]
    assert judge(*tasks) == ([("stamp_back", 6)], [(1, 9)])


def test_entries_without_a_stamp_keep_the_time() -> None:
    assert judge([[(1, 1, None), (2, 1, 50), (3, 2, None), (4, 2, 50)]]) == ([], [(1, 4)])


def test_one_leader_begins_a_term_once() -> None:
    log: list[Entry] = [(1, 1, None), (2, 1, 5), (3, 2, None), (4, 2, 6), (5, 2, None)]
    assert judge([log[:3]], [log[3:]]) == ([("leaders_disagree", 5)], [(1, 5)])
