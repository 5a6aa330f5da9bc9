"""A small hostile object makes a decoder take little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from struct import pack

import pytest

from streamd_audit import segments
from streamd_audit.errors import (
    CONTRADICTION,
    TOO_LARGE,
    TOO_SHORT,
    Damaged,
)
from tests.spark.both_decoders import FORMATS
from tests.spark.resealing import (
    SEGMENT_HEAD,
    at,
    entries,
    entry_length,
    frame,
    good_head,
    open_frame,
    parts_of_segment,
    piece_of,
    segment_of,
)


def peak_of(read: Callable[[], object]) -> int:
    """How much memory Python took at most, in bytes."""
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_small_segment_of_many_zeros_is_read_in_little_memory() -> None:
    payload = bytes(1024 * 1024)
    inside = b"".join(pack(">QBII", 1, 0, 0, len(payload)) + payload for _ in range(64))
    bomb = segment_of(open_frame(inside), len(inside), at(54, ">Q", 64))
    bomb = good_head(at(46, ">Q", 0)(at(38, ">Q", 1)(bomb)), SEGMENT_HEAD)
    assert len(bomb) < 64 * 1024
    found: list[bool] = []

    def read() -> None:
        with pytest.raises(Damaged, match=CONTRADICTION):
            found.extend(entry.is_linked for entry in segments.read_entries(bomb))

    assert peak_of(read) < 8 * 1024 * 1024
    assert found == [False] * 64


@pytest.mark.parametrize(
    ("hostile", "kind"),
    [
        (lambda: entries(at(entry_length(2), ">I", 64 * 1024 * 1024)), TOO_SHORT),
        (lambda: segment_of(open_frame(parts_of_segment()[1]), 2**62), TOO_LARGE),
    ],
)
def test_an_entry_with_a_large_declared_size_takes_no_memory(
    hostile: Callable[[], bytes], kind: str
) -> None:
    content = hostile()

    def read() -> None:
        with pytest.raises(Damaged, match=kind):
            list(segments.read_entries(content))

    assert peak_of(read) < 8 * 1024 * 1024


def test_a_piece_with_more_rows_than_declared_takes_no_memory() -> None:
    bomb = piece_of(frame(bytes(256 * 1024 * 1024)), b"rows")

    def read() -> None:
        with pytest.raises(Damaged, match=CONTRADICTION):
            FORMATS["piece"].audit(bomb)

    assert peak_of(read) < 1024 * 1024
