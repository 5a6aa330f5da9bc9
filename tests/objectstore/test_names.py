"""Names sort as the things they name, and unknown names are ignored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.objectstore import names
from streamd.objectstore.objects import check_name

numbers = st.integers(0, 2**32 - 1)
long_numbers = st.integers(0, 2**64 - 1)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
KINDS: tuple[type[names.ObjectName], ...] = (
    names.PackName,
    names.SegmentName,
    names.PieceName,
    names.ManifestName,
    names.EndName,
)


@given(digests, numbers, long_numbers, long_numbers, numbers)
def test_a_name_is_parsed_into_its_parts(
    digest: str, group_id: int, one: int, two: int, number: int
) -> None:
    for parts in (
        names.PackName(group_id, one, number, digest),
        names.SegmentName(group_id, one, two, digest),
        names.PieceName(group_id, one, two, number, digest),
        names.ManifestName(group_id, one, two, digest),
        names.EndName(group_id, one, two, number, digest),
    ):
        name = str(parts)
        assert [kind.parse(name) for kind in KINDS] == [
            parts if isinstance(parts, kind) else None for kind in KINDS
        ]
        assert check_name(name) == name


@given(digests, digests, st.tuples(long_numbers, long_numbers), st.tuples(long_numbers, numbers))
def test_segments_sort_by_their_first_entry(
    one: str, other: str, first: tuple[int, int], second: tuple[int, int]
) -> None:
    ordered = str(names.SegmentName(0, *first, one)) < str(names.SegmentName(0, *second, other))
    if first[0] != second[0]:
        assert ordered == (first[0] < second[0])


@pytest.mark.parametrize(
    "name", ["", "packs/", "packs/x.pack", "log/00000000/1-2-abc.segment", "checks/1", "README"]
)
def test_an_unknown_name_is_not_an_object_of_ours(name: str) -> None:
    assert all(kind.parse(name) is None for kind in KINDS)


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "../a", "a/..", ".tmp/a", "a b", "ä"])
def test_a_name_that_some_object_store_refuses_is_a_bug(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid object name"):
        check_name(name)
