"""Where an audit that continues from an earlier one begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd_audit.options import NotRun, Options
from streamd_audit.watermark import (
    Watermark,
    base_index,
    begins_after,
    read_watermark,
    write_watermark,
)

MARK = Watermark("7d0c3a52-7c4f-4a44-9f0d-0123456789ab", 812, 3, 0xC0FFEE)


def test_an_audit_continues_from_the_last_watermark(tmp_path: Path) -> None:
    write_watermark(tmp_path, MARK)
    options = Options("store", tmp_path, since="last")
    assert begins_after(options, MARK.cluster) == (812, MARK)


def test_an_index_needs_no_watermark(tmp_path: Path) -> None:
    assert begins_after(Options("store", tmp_path, since=7), MARK.cluster) == (7, None)
    assert begins_after(Options("store", tmp_path), MARK.cluster) == (None, None)


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
