"""Names of objects tell what can be restored."""

from __future__ import annotations

import pytest

from streamd.objectstore.catalog import Catalog, Range
from streamd.objectstore.names import ManifestName, SegmentName
from streamd.objectstore.objects import ObjectInfo

DIGEST = "0" * 64


def _catalog(segments: list[tuple[int, int]], manifests: list[int]) -> Catalog:
    names = [str(SegmentName(0, first, last, DIGEST)) for first, last in segments]
    names += [str(ManifestName(0, index, 7, DIGEST)) for index in manifests]
    names += [str(SegmentName(1, 1, 99, DIGEST)), "checks/x", "fence/y"]
    return Catalog(0, [ObjectInfo(name, 1, 0) for name in names])


def _path(catalog: Catalog, after: int, until: int | None = None) -> list[tuple[int, int]]:
    return [(one.parsed.first_index, one.parsed.last_index) for one in catalog.path(after, until)]


def test_segments_from_the_first_entry_on_need_no_checkpoint() -> None:
    catalog = _catalog([(1, 5), (6, 9)], [])
    assert catalog.ranges() == [Range(0, 9)]
    assert _path(catalog, 0) == [(1, 5), (6, 9)]


def test_a_restore_path_continues_from_a_checkpoint_inside_a_segment() -> None:
    catalog = _catalog([(4, 8), (9, 12)], [6])
    assert catalog.ranges() == [Range(6, 12)]
    assert _path(catalog, 6) == [(4, 8), (9, 12)]


def test_a_checkpoint_by_itself_is_a_restore_point() -> None:
    assert _catalog([], [6]).ranges() == [Range(6, 6)]


@pytest.mark.parametrize("orphan", [(1, 7), (4, 7), (1, 2), (4, 20)])
def test_a_segment_of_a_deposed_leader_does_not_end_the_path(orphan: tuple[int, int]) -> None:
    catalog = _catalog([(1, 3), (4, 6), (7, 9), (10, 12), orphan], [])
    path = _path(catalog, 0)
    assert catalog.reach(0) == max(12, orphan[1])
    at = 0
    for first, last in path:
        assert first <= at + 1 <= last
        at = last


def test_a_gap_separates_two_ranges_that_can_be_restored() -> None:
    catalog = _catalog([(1, 5), (6, 9), (15, 20), (21, 30)], [3, 14, 25])
    assert catalog.ranges() == [Range(0, 9), Range(14, 30)]
    assert _path(catalog, 9) == []


def test_segments_without_a_checkpoint_before_them_are_not_a_restore_point() -> None:
    assert _catalog([(15, 20)], []).ranges() == []


def test_the_path_ends_at_the_requested_entry() -> None:
    catalog = _catalog([(1, 5), (6, 9), (10, 12)], [])
    assert _path(catalog, 0, 5) == [(1, 5)]
    assert _path(catalog, 0, 6) == [(1, 5), (6, 9)]
    assert _path(catalog, 5, 5) == []
