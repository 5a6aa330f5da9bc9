"""Plans cover every object once, and stay small for any bucket."""

from __future__ import annotations

from itertools import pairwise

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThanOrEqual,
    Not,
)

from streamd_audit.sources.filters import Filters
from streamd_audit.sources.planning import MAX_TASKS, Piece, Planner

pytestmark = pytest.mark.long


def test_neighbours_share_a_task_until_it_is_large_enough() -> None:
    planner = Planner("cluster", task_bytes=100)
    for number in range(10):
        planner.add(Piece(f"object-{number}", 40))
    tasks = planner.finish()
    assert [len(task.pieces or ()) for task in tasks] == [3, 3, 3, 1]
    assert [piece.name for task in tasks for piece in task.pieces or ()] == [
        f"object-{number}" for number in range(10)
    ]


def test_a_large_object_is_a_task_for_each_of_its_parts() -> None:
    planner = Planner("cluster", task_bytes=100)
    planner.add(Piece("small", 10))
    planner.add(Piece("large", 300), parts=3)
    planner.add(Piece("small too", 10))
    found = [[(p.name, p.part, p.parts) for p in task.pieces or ()] for task in planner.finish()]
    assert found == [
        [("small", 0, 1)],
        [("large", 0, 3)],
        [("large", 1, 3)],
        [("large", 2, 3)],
        [("small too", 0, 1)],
    ]


def test_a_plan_of_very_many_objects_has_few_tasks_and_no_names() -> None:
    planner = Planner("cluster", task_bytes=1, max_names=1000)
    names = [f"{number:08x}" for number in range(20 * MAX_TASKS)]
    for name in names:
        planner.add(Piece(name, 10))
    tasks = planner.finish()
    assert len(tasks) <= MAX_TASKS + 1
    assert all(task.pieces is None for task in tasks)
    # End to end, without a gap.
    assert tasks[0].first == names[0]
    assert tasks[-1].last == names[-1]
    follower = dict(pairwise(names))
    for task, later in pairwise(tasks):
        assert follower[task.last] == later.first
    assert sum(task.size for task in tasks) == 10 * len(names)


def test_bounds_let_through_every_row_that_the_filters_do() -> None:
    found = Filters([GreaterThanOrEqual(("index",), 10), LessThanOrEqual(("index",), 20)])
    assert [found.meets("index", *span) for span in ((1, 9), (1, 10), (12, 13), (20, 30))] == [
        False, True, True, True,
    ]  # fmt: skip
    assert not found.meets("index", 21, 30)
    assert found.admits("term", None)
    assert not found.admits("index", None)


def test_lists_and_equalities_become_exact_values() -> None:
    found = Filters([In(("index",), (5, 50)), EqualTo(("stream",), "a")])
    assert found.meets("index", 40, 60)
    assert not found.meets("index", 6, 49)
    assert found.admits("stream", "a")
    assert not found.admits("stream", "b")
    assert not Filters([In(("index",), (5,)), EqualTo(("index",), 6)]).meets("index", 0, 10)


def test_filters_that_are_not_bounds_are_left_to_spark() -> None:
    found = Filters([Not(EqualTo(("index",), 5)), IsNotNull(("index",)), EqualTo(("a", "b"), 1)])
    assert "index" not in found
    assert found.admits("index", 5)
    assert "log_ms" in Filters([GreaterThan(("log_ms",), 1)])
