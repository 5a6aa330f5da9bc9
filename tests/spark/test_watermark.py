"""Where an audit that continues from an earlier one begins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamd_audit.options import NotRun, Options
from streamd_audit.watermark import (
    Mark,
    Since,
    Watermark,
    base_index,
    begins_after,
    read_watermark,
    setbacks,
    write_watermark,
)

MARK = Watermark("7d0c3a52-7c4f-4a44-9f0d-0123456789ab", 812, 3, 0xC0FFEE)


def test_an_audit_continues_from_the_last_watermark(tmp_path: Path) -> None:
    write_watermark(tmp_path, MARK)
    options = Options("store", tmp_path, since="last")
    assert begins_after(options, MARK.cluster) == (Since(812, MARK.marks), MARK)


def test_an_index_needs_no_watermark(tmp_path: Path) -> None:
    assert begins_after(Options("store", tmp_path, since=7), MARK.cluster) == (Since(7), None)
    assert begins_after(Options("store", tmp_path), MARK.cluster) == (None, None)


def test_each_group_continues_from_its_own_mark() -> None:
    since = Since(812, (Mark(0, 812, 3, 0xC0FFEE), Mark(2, 44, 1, 5)))
    assert [since.of(group) for group in range(3)] == [812, 0, 44]
    assert [Since(7).of(group) for group in range(3)] == [7, 7, 7]


def test_an_audit_of_everything_is_compared_with_the_last_watermark(tmp_path: Path) -> None:
    write_watermark(tmp_path, MARK)
    assert begins_after(Options("store", tmp_path), MARK.cluster) == (None, MARK)
    assert begins_after(Options("store", tmp_path, since=7), MARK.cluster) == (Since(7), MARK)
    assert begins_after(Options("store", tmp_path), "another") == (None, None)


def test_a_watermark_has_every_group(tmp_path: Path) -> None:
    marks = {0: Mark(0, 812, 3, 0xC0FFEE), 2: Mark(2, 44, 1, 5)}
    several = Watermark.of(MARK.cluster, marks)
    assert (several.index, several.marks) == (812, tuple(marks.values()))
    write_watermark(tmp_path, several)
    assert read_watermark(tmp_path) == several


def test_a_watermark_of_an_earlier_release_has_one_group(tmp_path: Path) -> None:
    own = {"cluster": MARK.cluster, "index": 812, "term": 3, "chain": 0xC0FFEE}
    (tmp_path / "watermark.json").write_text(json.dumps(own))
    assert read_watermark(tmp_path) == MARK


@pytest.mark.parametrize(
    ("last", "place", "kinds"),
    [
        (812, (3, 0xC0FFEE), []),
        (900, (3, 0xC0FFEE), []),
        (811, None, ["history_rolled_back"]),
        (0, None, ["history_rolled_back"]),
        (900, (3, 0xC0FFED), ["history_changed"]),
        (900, (2, 0xC0FFEE), ["history_changed"]),
        (900, None, []),  # retention has removed the entry
    ],
)
def test_a_log_must_continue_what_was_judged(
    last: int, place: tuple[int, int] | None, kinds: list[str]
) -> None:
    places = {} if place is None else {(0, 812): place}
    found = list(setbacks(MARK.marks, {0: last} if last else {}, places))
    assert [one.kind for one in found] == kinds


def test_an_audit_without_a_watermark_of_this_cluster_is_refused(tmp_path: Path) -> None:
    options = Options("store", tmp_path, since="last")
    with pytest.raises(NotRun, match="has no watermark"):
        begins_after(options, MARK.cluster)
    write_watermark(tmp_path, MARK)
    with pytest.raises(NotRun, match="not another"):
        begins_after(options, "another")
    with pytest.raises(NotRun, match="--out"):
        begins_after(Options("store", since="last"), MARK.cluster)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cluster": "x"}', "no json"])
def test_a_malformed_watermark_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "watermark.json").write_text(text)
    with pytest.raises(NotRun, match="is not a watermark"):
        read_watermark(tmp_path)


@pytest.mark.parametrize(
    ("states", "first", "since", "expected"),
    [
        ([], 1, None, None),  # a young cluster: everything, from the empty state on
        ([300, 600], 1, None, None),  # the whole log is there
        ([300, 600], 250, None, 300),  # retention has removed its beginning
        ([300, 600], 301, None, 300),  # the log joins the state without a gap
        ([300, 600], 302, None, 600),  # it does not join the older state
        ([300, 600], 1, 650, 600),
        ([300, 600], 1, 599, 300),
        ([300, 600], 1, 200, None),  # no state is that old: from the beginning
        ([300, 600], 250, 200, 300),
    ],
)
def test_the_replay_begins_with_a_state_that_joins_the_log(
    states: list[int], first: int, since: int | None, expected: int | None
) -> None:
    assert base_index(states, first, since) == expected


def test_a_log_that_no_state_joins_cannot_be_judged() -> None:
    with pytest.raises(NotRun, match="begins with entry 302"):
        base_index([300], 302, None)
