"""Which seeds the random tests of a commit run."""

from __future__ import annotations

import pytest

from tests.support.seeds import first_seed, one_each, replayed


@pytest.mark.skipif(replayed() is not None, reason="one seed was named")
def test_a_few_seeds_of_each_commit_are_quick_and_all_others_long() -> None:
    first = first_seed()
    items = one_each(5, 2, once_failed=[17])
    assert items[:2] == [first, first + 1]
    assert [item.values for item in items[2:]] == [(17,), (first + 2,), (first + 3,), (first + 4,)]
    assert {mark.name for item in items[2:] for mark in item.marks} == {"long"}
    assert all(item.marks for item in items[2:])
