"""Patterns of paths: which match, which are refused, and what the index does not look at."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.streams.subscriptions import globs
from streamd.streams.subscriptions.globs import PatternIndex

SEGMENTS = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(SEGMENTS, min_size=1, max_size=5).map("/".join)
PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "**"]), min_size=1, max_size=5).map("/".join)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("events/*", "events/a"),
        ("*", "a"),
        ("*/a", "events/a"),
        ("**", "a"),
        ("**", "a/b/c"),
        ("a/**", "a"),
        ("a/**", "a/b/c"),
        ("**/b", "b"),
        ("a/**/b", "a/b"),
        ("a/**/b", "a/x/b/y/b"),
        ("**/**", "a"),
        ("a/%2A", "a/*"),
        ("%2a", "*"),
        ("*", "*"),
        ("a/b", "a/b"),
    ],
)
def test_a_pattern_matches_paths(pattern: str, path: str) -> None:
    assert globs.fault(pattern) == ""
    assert globs.matches(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("events/*", "events"),
        ("events/*", "events/a/b"),
        ("*", "a/b"),
        ("a/**", "b"),
        ("a/**/b", "a/b/c"),
        ("**/b", "bb"),
        ("a/%2A", "a/b"),
        ("a", "A"),
    ],
)
def test_a_pattern_does_not_match_others(pattern: str, path: str) -> None:
    assert not globs.matches(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("", "empty"),
        ("a//b", "empty segment"),
        ("a*", "star among other characters"),
        ("***", "star among other characters"),
        ("x" * 1025, "longer than 1024 bytes"),
        ("é" * 513, "longer than 1024 bytes"),
    ],
)
def test_what_is_not_a_pattern_is_refused(pattern: str, why: str) -> None:
    assert why in globs.fault(pattern)


def test_slashes_at_the_ends_are_no_part_of_a_pattern() -> None:
    assert globs.normalised("/a/*/") == "a/*"


@pytest.mark.parametrize(
    ("pattern", "beginning"),
    [
        ("a/b", ("a/b", True)),
        ("a/%2A/*", ("a/*", False)),
        ("**", ("", False)),
        ("a/*/b", ("a", False)),
    ],
)
def test_all_matches_begin_with_the_segments_before_the_first_star(
    pattern: str, beginning: tuple[str, bool]
) -> None:
    assert globs.literal_beginning(pattern) == beginning


@given(st.lists(st.tuples(PATTERNS, st.booleans()), max_size=8), PATHS)
def test_the_index_finds_what_regular_expressions_find(
    patterns: list[tuple[str, bool]], path: str
) -> None:
    index = PatternIndex()
    for number, (pattern, _) in enumerate(patterns):
        index.add(number, pattern)
    for number, (pattern, stays) in enumerate(patterns):
        if not stays:
            index.remove(number, pattern)
    kept = {number: pattern for number, (pattern, stays) in enumerate(patterns) if stays}
    assert len(index) == len(kept)
    found = [
        number for number, pattern in kept.items() if expression(pattern).fullmatch(path + "/")
    ]
    assert index.matching(path) == found


def expression(pattern: str) -> re.Pattern[str]:
    """A pattern as a regular expression over a path with a slash after each segment."""
    parts = {"*": "[^/]+/", "**": "(?:[^/]+/)*"}
    return re.compile("".join(parts.get(one, f"{one}/") for one in pattern.split("/")))


def test_removed_patterns_leave_nothing_in_the_index() -> None:
    index = PatternIndex()
    patterns = ["a/*/b", "a/**", "**/%2A/c", "a/*/b"]
    for number, pattern in enumerate(patterns):
        index.add(number, pattern)
    for number, pattern in enumerate(patterns):
        index.remove(number, pattern)
    assert index._root.is_empty
    assert index.matching("a/x/b") == []


def test_one_of_many_patterns_is_found() -> None:
    index = PatternIndex()
    for number in range(10_000):
        index.add(number, f"tenant-{number}/**/events/*")
    assert index.matching("tenant-77/x/y/events/z") == [77]
