"""A state's header is what the log leads to, in each field."""

from __future__ import annotations

import pytest

from streamd_audit.commands import (
    AddLogKey,
    Archived,
    LogKey,
    LogTree,
    Place,
    RaiseLevel,
    RenewIncarnations,
    Scrub,
    Scrubbed,
)
from streamd_audit.replay.headers import Expected, OfHeader, difference, follow
from streamd_audit.replay.plan import Plan
from streamd_audit.rows import Header

HEADER = Header(
    applied_index=9, applied_term=2, log_ms=70, next_stream_id=5, configuration=b"c",
    archived=Place(4, 2, 1, 9), incarnation_base=7, scrub=Scrub(passes=1), counts=True,
    tree=LogTree(4, [bytes(32)]), log_keys=[LogKey(1, bytes(32), b"", bytes(64))], features=6,
)  # fmt: skip
EXPECTED = Expected(
    9, 2, 70, 5, b"c", Place(4, 2, 1, 9), 7, Scrub(passes=1), True, HEADER.tree, HEADER.log_keys, 6
)
FIRST, SECOND = Place(3, 1, 33, 5), Place(6, 1, 66, 8)


def test_a_header_as_the_log_leads_to_it_does_not_differ() -> None:
    assert difference(HEADER, EXPECTED) is None


@pytest.mark.parametrize("name", [name for name in Expected._fields if name != "applied_index"])
def test_every_field_is_compared(name: str) -> None:
    odd = Expected(**{**EXPECTED._asdict(), name: object()})
    found = difference(HEADER, odd)
    assert found is not None
    assert found.kind == "header_differs"
    assert found.found.startswith(name)


def test_rows_of_another_entry_are_stale() -> None:
    found = difference(HEADER, EXPECTED._replace(applied_index=12))
    assert found is not None
    assert found.kind == "state_stale"


def test_a_state_without_a_header_differs() -> None:
    found = difference(None, EXPECTED)
    assert found is not None
    assert found.found == "none"


def test_an_archives_end_moves_only_from_where_it_was_and_forward() -> None:
    commands: list[tuple[int, int, OfHeader]] = [
        (4, 0, Archived(1, Place(), FIRST)),
        (5, 0, Archived(1, Place(), SECOND)),  # not where the archive ends
        (6, 0, Archived(1, FIRST, SECOND)),  # its own entry is not after it
        (9, 0, Scrubbed(1, Scrub(passes=2))),
        (9, 1, Archived(1, FIRST, SECOND)),
        (12, 0, Archived(1, SECOND, FIRST)),
    ]
    states = Plan(None, (3, 4, 8, 9, 20)).places
    found = [(seen.archived, seen.scrub) for seen in follow(commands, states, Header())]
    assert found == [
        (Place(), Scrub()),
        (FIRST, Scrub()),
        (FIRST, Scrub()),
        (SECOND, Scrub(passes=2)),
        (SECOND, Scrub(passes=2)),
    ]


def test_the_tree_goes_with_the_archives_end() -> None:
    commands: list[tuple[int, int, OfHeader]] = [
        (4, 0, Archived(1, Place(), FIRST, False, LogTree(1, [b"a" * 32, b"b" * 32]))),
        (7, 0, Archived(1, FIRST, SECOND, False, LogTree(1, [b"c" * 32]))),  # of no six leaves
        (8, 0, Archived(1, FIRST, SECOND, False, None)),
    ]
    places = Plan(None, (5, 7, 9)).places
    trees = [(seen.archived, seen.tree.first_index) for seen in follow(commands, places, Header())]
    assert trees == [(FIRST, 1), (FIRST, 1), (SECOND, 0)]


def test_keys_are_added_in_order_and_end_with_a_recovery() -> None:
    first, other = (LogKey(1, each * 32, b"", bytes(64)) for each in (b"a", b"b"))
    vouched = LogKey(2, b"b" * 32, b"a" * 32, bytes(64))
    commands: list[tuple[int, int, OfHeader]] = [
        (1, 0, AddLogKey(0, first)),
        (2, 0, AddLogKey(1, first)),
        (2, 1, AddLogKey(0, other)),
        (2, 2, AddLogKey(1, LogKey(2, b"b" * 32, b"c" * 32, bytes(64)))),
        (2, 3, AddLogKey(1, LogKey(2, b"b" * 31, b"a" * 32, bytes(64)))),
        (3, 0, AddLogKey(1, vouched)),
        (5, 0, RenewIncarnations(9)),
    ]
    places = Plan(None, (1, 2, 4, 6)).places
    keys = [seen.log_keys for seen in follow(commands, places, Header())]
    assert keys == [[first], [first], [first, vouched], []]


def test_the_feature_level_only_rises() -> None:
    commands: list[tuple[int, int, OfHeader]] = [
        (1, 0, RaiseLevel(6)),
        (2, 0, RaiseLevel(4)),
        (3, 0, RenewIncarnations(9)),
    ]
    seen = follow(commands, [(0, 9), (1, 9), (2, 9), (3, 9)], Header())
    assert [one.features for one in seen] == [0, 6, 6, 6]
