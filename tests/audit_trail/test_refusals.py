"""A flood of refusals makes few entries, and all of them are counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamd.audit_trail.refusals import (
    MAX_ENTRIES,
    MAX_KINDS,
    MAX_OF_A_KIND,
    OTHERS,
    WINDOW_S,
    Kind,
    RefusalLimit,
)


def kind(number: int) -> Kind:
    return Kind(401, "INVALID_TOKEN", f"10.0.0.{number}", None)


def test_the_first_refusals_of_a_kind_get_entries_and_more_are_counted() -> None:
    limit = RefusalLimit()
    admitted = [limit.admits(kind(1), 5.0) for _ in range(MAX_OF_A_KIND + 3)]
    assert admitted == [True] * MAX_OF_A_KIND + [False] * 3
    assert limit.end() == [(kind(1), 3)]


def test_a_window_begins_with_a_refusal_and_ends_once() -> None:
    limit = RefusalLimit()
    assert limit.ends == float("inf")
    limit.admits(kind(1), 5.0)
    limit.admits(kind(2), 7.0)
    assert limit.ends == 5.0 + WINDOW_S
    assert limit.end() == []
    assert limit.ends == float("inf")
    assert limit.admits(kind(1), 40.0), "the next window counts from nothing"


@given(st.lists(st.integers(0, 3 * MAX_KINDS), max_size=3000))
def test_no_flood_has_more_entries_than_the_limits_and_none_is_uncounted(
    numbers: list[int],
) -> None:
    limit = RefusalLimit()
    admitted = sum(limit.admits(kind(number), 1.0) for number in numbers)
    more = dict(limit.end())
    assert admitted <= MAX_ENTRIES
    assert len(more) <= MAX_KINDS + 1
    assert admitted + sum(more.values()) == len(numbers)
    assert (OTHERS in more) == (len(set(numbers)) > MAX_KINDS)
